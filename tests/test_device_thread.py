"""The device thread: it runs behind the host, waits where a GPU would, and computes what plain torch computes."""

import copy
import pickle
import subprocess
import sys
import threading
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from labkit import device_thread, launches, models, trace, train
from labkit.device_thread import DeviceError, Handle
from labkit.tasks import Task


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def dev():
    device = device_thread.open_thread(launch_s=0.0)
    yield device
    device.close()


def known(dev, fn):
    """Run fn once, so that its operations' shapes are known and it can be launched without a wait."""
    fn()
    dev.synchronize()


def held_up(dev):
    """An event; until it is set, nothing that is launched from here on can run."""
    gate = threading.Event()
    dev._send(Task(lambda: gate.wait(30) and None, [], {}, "gate", None), 0.0)
    return gate


def test_an_operation_returns_before_it_has_run(dev):
    x = dev.put(torch.ones(4))
    known(dev, lambda: (x + 1).sum())
    gate = held_up(dev)
    total = (x + 1).sum()
    pending = dev.fetch(total)
    assert not pending.done()
    assert total._box.held is None
    gate.set()
    assert pending.get() == 8
    assert pending.done()
    assert total.item() == 8


WAITS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0]),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "to cpu, float64": lambda x: x.to("cpu", torch.float64),
    "repr": repr,
    "format": lambda x: f"{x[0]:.2f}",
    "nonzero": lambda x: x.nonzero(),
    "where, one argument": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "boolean index": lambda x: x[x > 0],
    "assignment by mask, many values": lambda x: x.clone().__setitem__(x > 0, x[:2]),
    "assignment by mask, one value on the device": lambda x: x.clone().__setitem__(x > 0, x[0]),
    "tensor of scalars": lambda x: torch.tensor([x[0], x.sum()]),
    "as_tensor of scalars": lambda x: torch.as_tensor([[x[0], 1.0], [x.sum(), 2.0]], dtype=torch.float64),
    "tensor of whole numbers": lambda x: torch.tensor([x.long()[0], x.long().sum(), 3]),
    "tensor of answers": lambda x: torch.tensor([x[0] > 0, x[1] > 5]),
    "tensor of complex numbers": lambda x: torch.tensor([x[0] * 1j, x[1] + 0j]),
    "new_tensor of scalars": lambda x: torch.ones(2).new_tensor([x[0], x[1]]),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().abs().bincount(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long().clamp(min=0)),
    "index by a handle": lambda x: [10, 20, 30, 40][x.long()[3]],
    "copy into a plain tensor": lambda x: torch.empty(4).copy_(x),
    "copy from a plain tensor": lambda x: x.clone().copy_(torch.ones(4)),
    "in": lambda x: 2.0 in x,
    "pickle": pickle.dumps,
}
WAITS_NOT = {
    "add": lambda x: x + 1,
    "where, three arguments": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "assignment by mask, one value": lambda x: x.clone().__setitem__(x > 0, 0.0),
    "repeat_interleave with output_size": lambda x: x.repeat_interleave(x.long().clamp(min=0), output_size=3),
    "index by handles": lambda x: x[x.long().clamp(0, 3)],
    "clip": lambda x: nn.utils.clip_grads_with_norm_([x], 1.0, nn.utils.get_total_norm([x])),
    "to its own device": lambda x: x.to(x.device),
    "to float64": lambda x: x.to(torch.float64),
    "to cpu, non-blocking": lambda x: x.to("cpu", non_blocking=True),
    "view": lambda x: x.view(2, 2).t()[1],
    "isnan": lambda x: x.isnan().any(),
    "deepcopy": copy.deepcopy,
    "copy into a plain tensor, non-blocking": lambda x: torch.empty(4).copy_(x, non_blocking=True),
}


each_call = pytest.mark.parametrize(
    ("call", "waits"),
    [pytest.param(call, True, id=name) for name, call in WAITS.items()]
    + [pytest.param(call, False, id=name) for name, call in WAITS_NOT.items()],
)


@each_call
def test_what_waits_and_what_does_not(dev, call, waits):
    values = torch.tensor([2.0, 1.0, -1.0, 0.0])
    x = dev.put(values)
    call(x)
    dev.synchronize()
    before = dev.waits
    result = call(x)
    assert (dev.waits > before) == waits
    dev.synchronize()
    expected = call(values)
    if isinstance(result, torch.Tensor):
        assert torch.equal(result.cpu(), expected.to(result.dtype))
    elif not isinstance(result, (str, bytes, tuple)):
        assert (result == expected) is True or (result == expected) is NotImplemented or all(result == expected)


def trained(put, make_model, make_optimizer, **clip):
    """Losses, weights, gradients and buffers after some steps."""
    torch.manual_seed(0)
    model = put(make_model())
    x, y = put(torch.randn(32, 1, 24, 24)), put(torch.randint(0, 32, (32,)))
    optimizer, losses = make_optimizer(model.parameters()), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = train.mean_cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), **clip)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters()), *model.buffers(), *(p.grad for p in model.parameters())]


SGD = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4)
TRAININGS = {
    "resnet": (models.resnet, SGD, {}),
    "foreach": (models.convnet, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True), {}),
    "clipped": (models.convnet, SGD, {"max_norm": 0.1}),
    "clipped, foreach": (models.convnet, SGD, {"max_norm": 0.1, "foreach": True}),
    "adamw": (models.convnet, lambda p: torch.optim.AdamW(p, lr=1e-3), {}),
    "adamw, foreach": (models.resnet, lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True), {}),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_bit_for_bit_that_of_plain_torch(dev, name):
    make_model, make_optimizer, clip = TRAININGS[name]
    plain = trained(lambda what: what, make_model, make_optimizer, **clip)
    before = dev.waits
    ours = trained(dev.put, make_model, make_optimizer, **clip)
    with dev.recording() as spans:
        trained(dev.put, make_model, make_optimizer, **clip)
    assert not [span for span in spans if span.kind == "compile"], "shapes are learnt once"
    assert dev.waits - before == 6, "what was put waited, and nothing else"
    assert all(isinstance(each, Handle) for each in ours)
    assert all(torch.equal(each.cpu(), other) for each, other in zip(ours, plain, strict=True))


def seeded_each_time(put):
    x = put(torch.ones(20_000))
    return [(torch.manual_seed(k), nn.functional.dropout(x, 0.5))[1] for k in range(4)]


def beside_a_shuffle(put):
    x = put(torch.ones(20_000))
    return [each for _ in range(4) for each in (nn.functional.dropout(x, 0.5), torch.randperm(8))]


def forked(put):
    x, drawn = put(torch.ones(1000)), []
    for _ in range(3):
        drawn.append(nn.functional.dropout(x, 0.5))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            drawn.append(nn.functional.dropout(x, 0.5))
    return drawn


def checkpointed(put):
    model, x = put(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))), put(torch.ones(32, 64)).requires_grad_()
    for k in range(3):
        torch.manual_seed(k)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().sum().backward()
    return [x.grad]


def every_kind(put):
    x, own = put(torch.rand(6, 6)), torch.Generator().manual_seed(3)
    fills = ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "random_", "bernoulli_")
    made = [getattr(x.clone(), name)() for name in fills] + [
        x.clone().geometric_(0.3),
        x.clone().normal_(generator=own),
    ]
    x[:, ::2].normal_(2.0, 3.0)
    x.t()[1].uniform_()
    made += [torch.rand_like(x), torch.randn_like(x.t()), torch.randint_like(x, 9), torch.randint_like(x, 3, 9)]
    p = made[0].abs()
    made += [torch.bernoulli(p), torch.multinomial(p, 2), torch.poisson(p), torch.normal(p, p), p.clone().bernoulli_(p)]
    return [x, *made, nn.functional.rrelu(x, training=True), nn.functional.alpha_dropout(x, 0.5), torch.rand(3)]


RANDOM = [seeded_each_time, beside_a_shuffle, forked, checkpointed, every_kind]


@pytest.mark.parametrize("run", RANDOM)
def test_what_is_drawn_is_what_plain_torch_draws_whatever_the_host_does_to_the_generator(dev, run):
    torch.manual_seed(0)
    plain = [each.clone() for each in run(lambda what: what)]
    for _ in range(3):
        torch.manual_seed(0)
        ours = run(dev.put)
        torch.manual_seed(5)  # while it is still queued
        assert all(torch.equal(each.cpu(), other) for each, other in zip(ours, plain, strict=True))


def test_dropout_does_not_wait_and_leaves_nothing_undrawn(dev):
    x = dev.put(torch.ones(100))
    known(dev, lambda: nn.functional.dropout(x, 0.5))
    before, gate = dev.waits, held_up(dev)
    nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    undisturbed = torch.get_rng_state()
    gate.set()
    assert dev.waits == before
    dev.synchronize()
    assert torch.equal(torch.get_rng_state(), undisturbed)


def through_views(x, w):
    """Writes through views, with gradients through them."""
    y = (x * w).view(2, 6)
    y[0, 1:4] *= 3
    y.t()[2].add_(w.sum())
    first, second = y[:, :3], y[:, 3:]
    first -= second
    z = torch.cat([first, y[:, ::2]]).contiguous()
    z[z.shape[0] // 2 :] = x.flatten()[0]
    return z.square().sum() + y.unbind()[1].prod() + y.max(dim=1).values.sum()


def test_views_writes_and_gradients_through_them(dev):
    values, weights = torch.randn(3, 4), torch.randn(3, 4)
    results = []
    for put in (lambda what: what, dev.put):
        for _ in range(2):  # learning the shapes, then behind the host
            x, w = put(values.clone()), put(weights.clone()).requires_grad_()
            out = through_views(x, w)
            out.backward()
        results.append([out.detach().cpu(), w.grad.cpu(), x.cpu()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_slices_at_new_places_are_launched_without_learning(dev):
    x = dev.put(torch.arange(100.0))
    known(dev, lambda: x[0:10] * 2)
    with dev.recording() as spans:
        parts = [x[i : i + 10] * 2 for i in range(0, 90, 3)]
    assert not [span for span in spans if span.kind in ("compile", "wait")]
    assert [part[0].item() for part in parts] == [2.0 * i for i in range(0, 90, 3)]


def test_data_can_be_replaced_and_a_gradient_flows_through_cpu(dev):
    w = nn.Parameter(dev.put(torch.ones(3)))
    w.data = dev.put(torch.full((3,), 2.0))
    w.data.mul_(3)
    (w.cpu() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert w.tolist() == [6.0, 6.0, 6.0]
    assert w.grad.tolist() == [1.0, 2.0, 3.0]


def gradients_through_put(put):
    leaf, weight = torch.tensor([1.0, 2.0], requires_grad=True), nn.Parameter(torch.tensor([3.0, 4.0]))
    (put(leaf * weight) * put(leaf)).square().sum().backward()
    with torch.no_grad():
        assert not put(leaf).requires_grad
    return leaf.grad.tolist(), weight.grad.tolist()


def test_gradients_come_back_through_put_as_through_to(dev):
    assert gradients_through_put(dev.put) == gradients_through_put(lambda what: what.to("cpu", copy=True))


MODULES = {
    "linear": lambda: nn.Linear(2, 2),
    "frozen, with buffers": lambda: nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.BatchNorm1d(2)),
    "recurrent": lambda: nn.LSTM(2, 2),
}
BACK = {"cpu": lambda m: m.cpu(), "to": lambda m: m.to("cpu"), "to float64": lambda m: m.to("cpu", torch.float64)}


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_comes_back_whole_and_its_optimizer_still_knows_it(dev, name, back):
    torch.manual_seed(0)
    module = MODULES[name]()
    plain = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    before = dict(dev.put(module).named_parameters())
    state = {} if name != "recurrent" else {"hx": (dev.put(torch.zeros(1, 3, 2)),) * 2}
    result = module(dev.put(torch.ones(3, 2)) if not state else dev.put(torch.ones(1, 3, 2)), **state)
    (result[0] if state else result).sum().backward()  # what leads to the parameters is still alive
    assert BACK[back](module) is module
    assert dict(module.named_parameters()).keys() == before.keys()
    assert all(before[key] is held for key, held in module.named_parameters())
    for held, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert type(held) is nn.Parameter
        assert torch.equal(held, other.to(held.dtype))
        assert held.requires_grad == other.requires_grad
        assert (held.grad is None) != held.requires_grad
        assert held.grad is None or (type(held.grad) is torch.Tensor and held.grad.dtype == held.dtype)
    assert not any(isinstance(held, Handle) for held in module.buffers())
    optimizer.step()
    module(torch.ones(1, 3, 2, dtype=held.dtype)[0])
    assert all(isinstance(held, Handle) for held in dev.put(module).parameters())


def test_a_module_that_cannot_come_back_stays_where_it_is(dev):
    module = dev.put(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))  # of the second, the weight is kept for backward
    loss = module(dev.put(torch.ones(1, 2))).sum()
    with pytest.raises(RuntimeError, match=r"Run backward\(\) or delete the loss"):
        module.cpu()
    assert all(isinstance(held, Handle) for held in module.parameters())
    loss.backward()
    assert not any(isinstance(held, Handle) for held in module.cpu().parameters())


CONJUGATED = {
    "conj, real": lambda z: z.conj().real,
    "conj, imag": lambda z: z.conj().imag,
    "imag, used": lambda z: z.conj().imag.view(3, 2)[1:] * 2,
    "conj": lambda z: z.conj(),
    "adjoint": lambda z: z @ z.mH,
    "resolved": lambda z: z.conj().resolve_conj() + z,
    "written through": lambda z: (w := z.clone(), w.conj().mul_(1j), w.conj().imag.add_(1), w)[-1],
}


@pytest.mark.parametrize("name", CONJUGATED)
def test_what_is_still_to_be_conjugated_is(dev, name):
    values = torch.randn(2, 3, dtype=torch.cfloat)
    plain = CONJUGATED[name](values)
    for _ in range(2):
        ours = CONJUGATED[name](dev.put(values))
        assert (ours.is_conj(), ours.is_neg()) == (plain.is_conj(), plain.is_neg())
        assert torch.equal(ours.cpu(), plain)
        assert torch.equal(ours.clone().cpu(), plain)


def test_what_is_remembered_of_tensors_has_a_bound(dev, monkeypatch):
    monkeypatch.setattr(launches, "MOST", 30)
    x = dev.put(torch.arange(200.0))
    gate = held_up(dev)
    parts = [x[i : i + 5] for i in range(100)]
    gate.set()
    assert [(part + 1)[0].item() for part in parts] == [i + 1.0 for i in range(100)]
    assert len(launches._metas) <= 30


LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every second": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "inverted": lambda x: torch.linalg.inv(x[..., :3, :3] + 4 * torch.ones(3, device=x.device).diag()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_its_layout_a_tensor_comes_to_the_host_as_it_is(dev, layout):
    values = torch.randn(2, 3, 4, 5)
    ours, plain = LAYOUTS[layout](dev.put(values)), LAYOUTS[layout](values)
    for read in (lambda t: t.cpu(), lambda t: torch.tensor(t.tolist()), lambda t: torch.from_numpy(t.numpy())):
        assert torch.equal(read(ours), plain)
    assert ours.cpu().stride() == plain.clone().stride()
    assert repr(ours).startswith(repr(plain)[:-1])
    last = ours.to("cpu", memory_format=torch.channels_last)
    assert last.stride() == plain.to(memory_format=torch.channels_last).stride()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_is_put_and_trained(dev, kind):
    torch.manual_seed(0)
    model = kind(4, 6, num_layers=2, bidirectional=True)
    plain, x, state = copy.deepcopy(model), torch.randn(5, 3, 4), torch.zeros(4, 3, 6)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    dev.put(model)
    for _ in range(3):
        for each, put, optimizer in zip((model, plain), (dev.put, lambda what: what), optimizers, strict=True):
            optimizer.zero_grad()
            first = (put(state), put(state)) if kind is nn.LSTM else put(state)
            each(put(x), first)[0].square().sum().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.cpu(), theirs, atol=1e-6)
    with torch.profiler.profile(record_shapes=True):
        assert all(isinstance(held, Handle) for held in dev.put(kind(4, 6))._flat_weights)


def test_a_module_whose_weights_are_weakly_known_is_refused_in_words(dev):
    model = nn.Linear(2, 2)
    known_to = weakref.ref(model.weight)
    with pytest.raises(ValueError, match="put the module there first"):
        dev.put(model)
    assert known_to() is model.weight
    assert type(model.weight) is nn.Parameter


def test_an_optimizer_made_before_the_module_was_put_still_moves_it(dev):
    model = nn.Linear(2, 2)
    weight, optimizer = model.weight, torch.optim.SGD(model.parameters(), lr=1.0)
    dev.put(model)
    assert model.weight is weight
    assert isinstance(weight, Handle)
    before = weight.tolist()
    model(dev.put(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    assert weight.tolist() == [pytest.approx([each - 1 for each in row]) for row in before]


def test_a_module_keeps_its_shared_weights_and_a_copy_is_its_own(dev):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert dev.put(model) is model
    assert model[1].weight is model[0].weight
    kept = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.zero_()
    assert isinstance(kept[0].weight, nn.Parameter)
    assert kept[0].weight.requires_grad
    assert kept[0].weight.abs().sum().item() > 0
    assert type(pickle.loads(pickle.dumps(kept[0].weight))) is torch.Tensor


def test_a_plain_tensor_is_taken_as_it_was_when_launched(dev):
    x, offset = dev.put(torch.zeros(3)), torch.ones(3)
    known(dev, lambda: x + offset)
    gate = held_up(dev)
    total = x + offset
    offset.zero_()
    gate.set()
    assert total.tolist() == [1.0, 1.0, 1.0]


def test_an_error_is_told_at_the_next_wait_and_names_its_operation(dev):
    table, good = dev.put(torch.ones(3, 2)), dev.put(torch.tensor([0, 1]))
    bad = dev.put(torch.tensor([0, 7]))
    known(dev, lambda: torch.nn.functional.embedding(good, table).sum())
    total = torch.nn.functional.embedding(bad, table).sum()
    with pytest.raises(DeviceError, match="embedding failed on the device, after it was launched: IndexError"):
        dev.synchronize()
    dev.synchronize()
    with pytest.raises(DeviceError, match="embedding"):
        total.item()
    assert torch.nn.functional.embedding(good, table).sum().item() == 4


def test_shapes_that_do_not_fit_are_told_at_once(dev):
    a, b = dev.put(torch.ones(2, 3)), dev.put(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        a @ b
    dev.synchronize()


REFUSED = [
    lambda x: x.t_(),
    lambda x: x.resize_(2),
    lambda x: x.to("cuda"),
    lambda x: x.to_sparse(),
    lambda x: (x + 1).to_sparse_csr(),
    lambda x: nn.functional.embedding(x.long(), x.clone().requires_grad_(), sparse=True).sum().backward(),
    lambda x: nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 1])),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_it_cannot_do_it_says(dev, call):
    with pytest.raises((NotImplementedError, ValueError), match="cannot|no cuda"):
        call(dev.put(torch.ones(2, 2)))


@pytest.mark.parametrize("what", [3, [torch.ones(2)], None])
def test_only_tensors_and_modules_are_put(dev, what):
    with pytest.raises(ValueError, match="takes tensors and modules"):
        dev.put(what)


def test_only_what_is_on_the_device_is_fetched(dev):
    with pytest.raises(ValueError, match="not Tensor: put it there first"):
        dev.fetch(torch.ones(2))


MIXED = {
    "add": lambda a, b: a + b,
    "a list of them": lambda a, b: torch.cat([a, b]),
    "out": lambda a, b: torch.add(a, a, out=b),
    "copy_": lambda a, b: a.copy_(b),
    "index": lambda a, b: a[b.long()],
    "data, once replaced": lambda a, b: (setattr(c := a + 0, "data", b), c + a),
    "fetch": lambda a, b: a._home.fetch(b),
    "put": lambda a, b: a._home.put(b),
    "put a module": lambda a, b: a._home.put(nn.Sequential(nn.Linear(2, 2), b._home.put(nn.Linear(2, 2)))),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_refused_at_once(dev, name):
    other = device_thread.open_thread(launch_s=0.0)
    a, b = dev.put(torch.ones(2)), other.put(torch.zeros(2))
    with pytest.raises(ValueError, match=r"another device thread.*put\(tensor.cpu\(\)\)"):
        MIXED[name](a, b)
    assert (dev.put(b.cpu()) + dev.put(torch.ones(2))).tolist() == [1.0, 1.0]
    other.close()


def test_the_queue_is_bounded(dev):
    x = dev.put(torch.zeros(()))
    known(dev, lambda: x.add_(1))
    gate = held_up(dev)
    threading.Timer(0.2, gate.set).start()
    before = dev.waits
    for _ in range(device_thread.DEPTH + 10):
        x.add_(1)
    assert dev.waits > before
    assert x.item() == device_thread.DEPTH + 11


def test_a_recording_shows_launches_waits_and_work(dev):
    x = dev.put(torch.randn(64, 64))
    known(dev, lambda: (x @ x).sum().item())
    with dev.recording() as spans:
        (x @ x).sum().item()
    told = [(span.row, span.name, span.kind) for span in spans]
    assert {("host", "mm", "launch"), ("device", "mm", "kernel"), ("host", "item", "wait")} <= set(told)
    assert [span.kind for span in spans].count("wait") == 1
    assert min(span.start_s for span in spans) == 0.0
    launched = next(s for s in spans if s.name == "mm" and s.kind == "launch")
    ran = next(s for s in spans if s.name == "mm" and s.kind == "kernel")
    assert launched.start_s < ran.start_s


ASKED = {
    "bool": lambda x: 1 if x[0] > 0 else 2,
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "complex": lambda x: complex(x[0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("asks", ASKED)
def test_a_wait_bears_the_name_of_what_the_code_asked_for(dev, asks):
    x = dev.put(torch.tensor([2.0, 1.0]))
    with dev.recording() as spans:
        ASKED[asks](x)
        x[1].item()
    assert [span.name for span in spans if span.kind == "wait"] == [asks, "item"]


@pytest.mark.parametrize("show", [repr, str, lambda x: f"{x}", lambda x: f"{x[0]:.2f}"])
def test_whatever_shows_a_tensor_waits_as_print(dev, show):
    x = dev.put(torch.ones(2))
    with dev.recording() as spans:
        show(x)
    assert [span.name for span in spans if span.kind == "wait"] == ["print"]


def test_a_recording_ends_with_the_work_that_the_host_had_not_waited_for(dev):
    x = dev.put(torch.eye(400))
    with dev.recording() as spans:
        for _ in range(20):
            x = x @ x
    assert [span.kind for span in spans].count("kernel") == 20
    assert "wait" not in [span.kind for span in spans]


def test_what_the_host_does_can_be_noted_in_a_recording(dev):
    with dev.note("data", "before"):
        pass
    with dev.recording() as spans, pytest.raises(KeyError), dev.note("data", "read"):
        raise KeyError
    assert [(span.row, span.kind, span.name) for span in spans] == [("host", "data", "read")]
    with torch.profiler.profile() as profile, dev.note("data", "read"):
        pass
    assert ("data", "read") in {(span.kind, span.name) for span in trace.read(profile).spans}


def test_a_launch_costs_what_was_asked_for():
    dev = device_thread.open_thread(launch_s=2e-3)
    x = dev.put(torch.zeros(2))
    with dev.recording() as spans:
        x + 1
    dev.close()
    assert all(span.seconds >= 2e-3 for span in spans if span.kind == "launch")
    with pytest.raises(ValueError, match="0 or more"):
        device_thread.open_thread(launch_s=-1.0)


def test_a_profiler_sees_the_workers_operations_under_their_names(dev):
    x = dev.put(torch.randn(8, 8))
    known(dev, lambda: x @ x)
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=config) as profile:
        x @ x
        dev.synchronize()
    assert "labkit device: mm" in {event.name for event in profile.events()}


@pytest.mark.parametrize("within", ["put", "made and put"])
def test_a_module_is_put_while_a_profiler_records_shapes(dev, within):
    """What the profiler has seen it refers to, and torch then refuses to swap; ties between weights outlast that."""
    model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.profiler.profile(record_shapes=True):
        if within == "made and put":
            model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
            model[0].weight = model[1].weight
        before = [held.data.clone() for held in model.parameters()]
        assert dev.put(model) is model
        if within == "made and put":
            assert model[0].weight is model[1].weight
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model[1](model[0](dev.put(torch.ones(1, 4)))).sum().backward()
        optimizer.step()
    assert all(isinstance(held, Handle) for held in model.parameters())
    assert not any(torch.equal(held.cpu(), old) for held, old in zip(model.parameters(), before, strict=True))


def test_parameters_that_a_profiler_holds_and_an_optimizer_knows_are_not_put(dev):
    with torch.profiler.profile(record_shapes=True):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with pytest.raises(RuntimeError, match="before the optimizer is made, or before the profiler starts"):
            dev.put(model)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert type(model.weight) is torch.nn.Parameter


def test_a_profiler_sees_the_hosts_launches_waits_and_shapes_learnt(dev):
    x = dev.put(torch.randn(8, 8))
    known(dev, lambda: x @ x)
    with torch.profiler.profile() as profile:
        dev.fetch(x @ x).get()
        x.reshape(4, 16) @ x.reshape(16, 4)
        dev.synchronize()
    seen = [event.name for event in profile.events() if event.name.startswith("labkit ")]
    launched = ["mm", "copy to host", "mm"]
    assert [name for name in seen if "launch" in name] == [f"labkit launch: {name}" for name in launched]
    assert [name for name in seen if "wait" in name] == ["labkit wait: copy to host", "labkit wait: synchronize"]
    assert [name for name in seen if "compile" in name] == ["labkit compile: mm"]


def test_python_takes_turns_as_before_when_the_last_device_is_closed():
    before = sys.getswitchinterval()
    one, other = device_thread.open_thread(), device_thread.open()
    assert sys.getswitchinterval() < before
    one.close()
    one.close()
    assert sys.getswitchinterval() < before
    other.close()
    assert sys.getswitchinterval() == before


def test_what_stands_in_the_queue_of_a_closed_device_is_not_run():
    dev = device_thread.open_thread()
    x = dev.put(torch.zeros(()))
    known(dev, lambda: x.add_(1))
    gate = held_up(dev)
    pending = dev.fetch(x)
    threading.Timer(0.1, gate.set).start()
    dev.close()
    with pytest.raises(DeviceError, match="closed"):
        pending.get()
    with pytest.raises(DeviceError, match="closed"):
        x + 1


ENDINGS = {
    "the end of the program": "",
    "an exception": "raise SystemExit(3)",
    "Ctrl-C in a wait": "import _thread, threading; y.sum().item()",
    "a close": "dev.close()",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_hangs_at(ending):
    code = f"""
import threading, _thread, torch
from labkit import device_thread
torch.set_num_threads(1)
interrupt_soon = threading.Timer(0.3, _thread.interrupt_main).start
dev = device_thread.open_thread()
x = dev.put(torch.randn(300, 300))
y = (x @ x) * 1e-3
for _ in range(900):
    y = (x @ y) * 1e-3
{ENDINGS[ending]}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1, 3, 130, -2), done.stderr
    assert "Fatal" not in done.stderr
    assert not done.stderr or "SystemExit" in done.stderr or "KeyboardInterrupt" in done.stderr


QUIET = """
import torch
from labkit.device_cuda import CudaDevice
torch.cuda.get_device_name, torch.cuda.synchronize = lambda: "a GPU", lambda: None
for _ in range(2):
    with CudaDevice().recording() as spans:
        torch.ones(2) + 1
print(len(spans))
"""


def test_a_recording_of_a_gpu_prints_nothing_of_its_own():
    """No GPU is needed: the profiler then watches the CPU alone, and greets all the same."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", QUIET], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert int(ran.stdout) > 0
