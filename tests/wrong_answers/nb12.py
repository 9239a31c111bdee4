"""Wrong answers that learners of lesson 12 would give, each with a part of the message that must meet it."""

import copy
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from labkit.checks import replicas


def seeds_with_the_rank(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch + rank)
    return torch.randperm(n, generator=dice).tolist()[rank::world_size]


def forgets_the_epoch(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=dice).tolist()[rank::world_size]


def forgets_the_seed(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(epoch)
    return torch.randperm(n, generator=dice).tolist()[rank::world_size]


def pads_as_the_sampler_does(n, rank, world_size, epoch, seed):
    sampler = DistributedSampler(range(n), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def drops_the_rest(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=dice).tolist()
    return order[rank : n - n % world_size : world_size]


def cuts_in_chunks(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=dice).chunk(world_size)[rank].tolist()


def seeds_torch(n, rank, world_size, epoch, seed):
    torch.manual_seed(seed + epoch)
    return torch.randperm(n).tolist()[rank::world_size]


def draws_without_a_seed(n, rank, world_size, epoch, seed):
    return torch.randperm(n).tolist()[rank::world_size]


def draws_from_python(n, rank, world_size, epoch, seed):
    order = list(range(n))
    random.shuffle(order)
    return order[rank::world_size]


def seeds_with_a_hash(n, rank, world_size, epoch, seed):
    order = list(range(n))
    random.Random(hash(f"{seed}-{epoch}")).shuffle(order)
    return order[rank::world_size]


def seeds_with_the_process(n, rank, world_size, epoch, seed):
    order = np.random.default_rng([seed, epoch, os.getpid()]).permutation(n)
    return order[rank::world_size].tolist()


def seeds_python(n, rank, world_size, epoch, seed):
    random.seed(1000 * seed + epoch)
    return random.sample(range(n), n)[rank::world_size]


def seeds_numpy(n, rank, world_size, epoch, seed):
    np.random.seed(1000 * seed + epoch)
    return np.random.permutation(n)[rank::world_size].tolist()


def only_shifts(n, rank, world_size, epoch, seed):
    return [(each + epoch + seed) % n for each in range(n)][rank::world_size]


def shifts_one_shuffle(n, rank, world_size, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).roll(epoch).tolist()
    return order[rank::world_size]


def shifts_from_the_end(n, rank, world_size, epoch, seed):
    order = [(each + 3 * epoch + seed) % n for each in range(n)][:: 1 - 2 * (epoch % 2)]
    return [each.tolist() for each in np.array_split(order, world_size)][rank]


def sorts_its_share(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    return sorted(torch.randperm(n, generator=dice).tolist()[rank::world_size])


def never_shuffles(n, rank, world_size, epoch, seed):
    return list(range(rank, n, world_size))


def gives_a_tensor(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=dice)[rank::world_size]


def counts_from_one(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    return [1 + each for each in torch.randperm(n, generator=dice).tolist()[rank::world_size]]


def everything_to_everybody(n, rank, world_size, epoch, seed):
    dice = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=dice).tolist()


def _n_right(model, inputs, targets, mine):
    return (model(inputs[mine]).argmax(1) == targets[mine]).sum()


def _mine():
    return slice(dist.get_rank(), None, dist.get_world_size())


def tells_its_own_part(model, inputs, targets):
    mine = _mine()
    return _n_right(model, inputs, targets, mine).item() / len(targets[mine])


def averages_accuracies(model, inputs, targets):
    accuracy = torch.tensor(tells_its_own_part(model, inputs, targets), dtype=torch.double)
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


def sums_accuracies(model, inputs, targets):
    accuracy = torch.tensor(tells_its_own_part(model, inputs, targets), dtype=torch.double)
    dist.all_reduce(accuracy)
    return accuracy.item()


def evaluates_padding(model, inputs, targets):
    mine = list(DistributedSampler(range(len(inputs)), shuffle=False))
    n_right = _n_right(model, inputs, targets, mine)
    dist.all_reduce(n_right)
    return n_right.item() / (len(mine) * dist.get_world_size())


def drops_the_uneven_rest(model, inputs, targets):
    n_each = len(inputs) // dist.get_world_size()
    mine = slice(n_each * dist.get_rank(), n_each * (dist.get_rank() + 1))
    n_right = _n_right(model, inputs, targets, mine)
    dist.all_reduce(n_right)
    return n_right.item() / len(inputs)


def looks_at_everything(model, inputs, targets):
    return (model(inputs).argmax(1) == targets).sum().item() / len(targets)


def asks_a_copy_for_everything(model, inputs, targets):
    return looks_at_everything(copy.deepcopy(model), inputs, targets)


def asks_no_model(model, inputs, targets):
    return (inputs.argmax(1) == targets).sum().item() / len(targets)


def works_with_the_weights(model, inputs, targets):
    return ((inputs @ model.weight).argmax(1) == targets).sum().item() / len(targets)


def sends_nothing(model, inputs, targets):
    model(inputs[_mine()])
    return works_with_the_weights(model, inputs, targets)


def gathers_predictions(model, inputs, targets):
    parts = [None] * dist.get_world_size()
    mine = _mine()
    dist.all_gather_object(parts, (model(inputs[mine]).argmax(1) == targets[mine]).tolist())
    return sum(map(sum, parts)) / len(targets)


def only_rank_0_knows(model, inputs, targets):
    n_right = _n_right(model, inputs, targets, _mine())
    dist.reduce(n_right, dst=0)
    return n_right.item() / len(targets)


def leaves_where_it_has_none(model, inputs, targets):
    mine = _mine()
    if len(targets[mine]) == 0:
        return 0.0
    n_right = _n_right(model, inputs, targets, mine)
    dist.all_reduce(n_right)
    return n_right.item() / len(targets)


def cuts_too_few_chunks(model, inputs, targets):
    rank, world = dist.get_rank(), dist.get_world_size()
    n_right = (model(inputs.chunk(world)[rank]).argmax(1) == targets.chunk(world)[rank]).sum()
    dist.all_reduce(n_right)
    return n_right.item() / len(targets)


def divides_in_float32(model, inputs, targets):
    n_right = _n_right(model, inputs, targets, _mine())
    dist.all_reduce(n_right)
    return (n_right / len(targets)).item()


def gives_a_count(model, inputs, targets):
    n_right = _n_right(model, inputs, targets, _mine())
    dist.all_reduce(n_right)
    return n_right.item()


def forgets_to_return_it(model, inputs, targets):
    n_right = _n_right(model, inputs, targets, _mine())
    dist.all_reduce(n_right)


def _sum_of(model, inputs, targets, reduction="sum"):
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction=reduction)


def _reduce(model, divisor):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= divisor


def _count(batches):
    return torch.as_tensor(sum((targets != -100).sum() for _, targets in batches)).double()


def averages_batches(model, micro_batches):
    total = torch.zeros((), dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = _sum_of(model, inputs, targets, "mean") / len(micro_batches)
        loss.backward()
        total += loss.detach()
    _reduce(model, dist.get_world_size())
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def divides_by_its_own_count(model, micro_batches):
    n_tokens, total = _count(micro_batches), torch.zeros((), dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = _sum_of(model, inputs, targets) / n_tokens
        loss.backward()
        total += loss.detach()
    _reduce(model, dist.get_world_size())
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def communicates_nothing(model, micro_batches):
    n_tokens, total = _count(micro_batches), 0.0
    for inputs, targets in micro_batches:
        loss = _sum_of(model, inputs, targets) / n_tokens
        loss.backward()
        total += float(loss)
    return total


def _summed(model, micro_batches):
    total = torch.zeros((), dtype=torch.double)
    for inputs, targets in micro_batches:
        loss = _sum_of(model, inputs, targets)
        loss.backward()
        total += loss.detach()
    return total


def sums_and_never_divides(model, micro_batches):
    total = _summed(model, micro_batches)
    _reduce(model, 1)
    dist.all_reduce(total)
    return float(total)


def counts_what_is_ignored(model, micro_batches):
    total = _summed(model, micro_batches)
    both = torch.stack([total, torch.tensor(float(sum(t.numel() for _, t in micro_batches)), dtype=torch.double)])
    dist.all_reduce(both)
    _reduce(model, both[1])
    return float(both[0] / both[1])


def divides_by_tokens_and_ranks(model, micro_batches):
    both = torch.stack([_summed(model, micro_batches), _count(micro_batches)])
    dist.all_reduce(both)
    _reduce(model, both[1] * dist.get_world_size())
    return float(both[0] / both[1])


def returns_its_own_loss(model, micro_batches):
    total, n_tokens = _summed(model, micro_batches), _count(micro_batches)
    mine = float(total / n_tokens)
    dist.all_reduce(n_tokens)
    _reduce(model, n_tokens)
    return mine


def sends_each_micro_batch(model, micro_batches):
    total, gradients = torch.zeros(2, dtype=torch.double), None
    for inputs, targets in micro_batches:
        model.zero_grad()
        loss = _sum_of(model, inputs, targets)
        loss.backward()
        total += torch.stack([loss.detach(), (targets != -100).sum()])
        _reduce(model, 1)
        new = [p.grad.clone() for p in model.parameters()]
        gradients = new if gradients is None else [a + b for a, b in zip(gradients, new, strict=True)]
    dist.all_reduce(total)
    for p, each in zip(model.parameters(), gradients, strict=True):
        p.grad = each / total[1]
    return float(total[0] / total[1])


def gathers_all_batches(model, micro_batches):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, micro_batches)
    batches = sum(everybody, [])
    total = _summed(model, batches)
    for p in model.parameters():
        p.grad /= _count(batches)
    return float(total / _count(batches))


def never_has_none(model, micro_batches):
    both = torch.stack([_summed(model, micro_batches), _count(micro_batches)])
    dist.all_reduce(both)
    _reduce(model, both[1])
    return float(both[0] / both[1])


def skips_where_it_has_none(model, micro_batches):
    both = torch.stack([_summed(model, micro_batches), _count(micro_batches)])
    dist.all_reduce(both)
    for p in model.parameters():
        if p.grad is None:
            continue
        dist.all_reduce(p.grad)
        p.grad /= both[1]
    return float(both[0] / both[1])


def _right_from(model, total, n_tokens):
    both = torch.stack([total, n_tokens])
    dist.all_reduce(both)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    _reduce(model, both[1])
    return float(both[0] / both[1])


def sends_gradients_twice(model, micro_batches):
    loss = _right_from(model, _summed(model, micro_batches), _count(micro_batches))
    _reduce(model, dist.get_world_size())
    return loss


def all_in_one_batch(model, micro_batches):
    if not micro_batches:
        return _right_from(model, *torch.zeros(2, dtype=torch.double))
    inputs, targets = map(torch.cat, zip(*micro_batches, strict=True))
    loss = _sum_of(model, inputs, targets)
    loss.backward()
    return _right_from(model, loss.detach(), _count([(inputs, targets)]))


def one_backward_for_all(model, micro_batches):
    if not micro_batches:
        return _right_from(model, *torch.zeros(2, dtype=torch.double))
    loss = sum(_sum_of(model, *each) for each in micro_batches)
    loss.backward()
    return _right_from(model, loss.detach(), _count(micro_batches))


def counts_in_float32(model, micro_batches):
    total = torch.zeros(2)
    for inputs, targets in micro_batches:
        loss = _sum_of(model, inputs, targets)
        loss.backward()
        total += torch.stack([loss.detach(), (targets != -100).sum()]).float()
    dist.all_reduce(total)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    _reduce(model, total[1])
    return (total[0] / total[1]).item()


class NoCommunication(replicas.Ddp):
    def ready(self, which):
        pass


class NoBroadcast(replicas.Ddp):
    def __init__(self, model, groups):
        kept = [each.clone() for each in model.state_dict().values()]
        super().__init__(model, groups)
        for tensor, own in zip(model.state_dict().values(), kept, strict=True):
            tensor.copy_(own)


class ParametersOnly(replicas.Ddp):
    def __init__(self, model, groups):
        kept = [each.clone() for each in model.buffers()]
        super().__init__(model, groups)
        for tensor, own in zip(model.buffers(), kept, strict=True):
            tensor.copy_(own)


class OnlyWhatIsTrained(replicas.Ddp):
    def __init__(self, model, groups):
        kept = [p.detach().clone() for p in model.parameters()]
        super().__init__(model, groups)
        for p, own in zip(model.parameters(), kept, strict=True):
            if not p.requires_grad:
                p.data.copy_(own)


class Summed(replicas.Ddp):
    def ready(self, which):
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.works.append(dist.all_reduce(self.buckets[which], async_op=True))


class DividedByTwo(replicas.Ddp):
    def ready(self, which):
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.buckets[which] /= 2
            self.works.append(dist.all_reduce(self.buckets[which], async_op=True))


class FiresEarly(replicas.Ddp):
    """Each backward pass sends; the sum of the first one is summed again with the second."""

    def ready(self, which):
        self.left[which] -= 1
        if self.left[which] == 0:
            dist.all_reduce(self.buckets[which])
            self.left[which] = len(self.groups[which])

    def wait(self):
        super().wait()
        for bucket in self.buckets:
            bucket /= dist.get_world_size()


class SendsEachMicroBatch(replicas.Ddp):
    """As torch's DDP without no_sync: right, at twice the bytes."""

    def ready(self, which):
        self.left[which] -= 1
        if self.left[which] == 0:
            self.buckets[which] /= dist.get_world_size()
            dist.all_reduce(self.buckets[which])
            self.left[which] = len(self.groups[which])


class LastMicroBatchOnly(replicas.Ddp):
    def ready(self, which):
        if not self.sync:
            self.buckets[which].zero_()
        super().ready(which)


class AfterTheBackwardPass(replicas.Ddp):
    def ready(self, which):
        pass

    def wait(self):
        if self.works is not None and hasattr(self, "left"):
            for bucket in self.buckets:
                bucket /= dist.get_world_size()
                dist.all_reduce(bucket)
        self.left = []


class OneForEachTensor(replicas.Ddp):
    def __init__(self, model, groups):
        super().__init__(model, [[p] for params in groups for p in params])


class OneForAll(replicas.Ddp):
    def __init__(self, model, groups):
        super().__init__(model, [[p for params in groups for p in params]])


class KeepsCopies(replicas.Ddp):
    """Gradients of their own, copied into a bucket and back."""

    def __init__(self, model, groups):
        super().__init__(model, groups)
        for params in groups:
            for p in params:
                p.grad = torch.zeros_like(p)

    def ready(self, which):
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.buckets[which] = torch.cat([p.grad.flatten() for p in self.groups[which]]) / dist.get_world_size()
            self.works.append(dist.all_reduce(self.buckets[which], async_op=True))

    def wait(self):
        super().wait()
        for params, bucket in zip(self.groups, self.buckets, strict=True):
            for p, part in zip(params, bucket.split([p.numel() for p in params]), strict=True):
                if p.grad is not None:
                    p.grad.copy_(part.view_as(p))

    def zero_grad(self):
        for params in self.groups:
            for p in params:
                p.grad.zero_()


class GathersToAll(replicas.Ddp):
    def ready(self, which):
        self.left[which] -= self.sync
        if self.left[which] == 0:
            all_of_them = [torch.empty_like(self.buckets[which]) for _ in range(dist.get_world_size())]
            dist.all_gather(all_of_them, self.buckets[which])
            self.buckets[which].copy_(torch.stack(all_of_them).mean(0))


class BindsLate(replicas.Ddp):
    """Every hook reports the last group."""

    def ready(self, which):
        super().ready(len(self.groups) - 1)


class DropsGradients(replicas.Ddp):
    def zero_grad(self):
        for params in self.groups:
            for p in params:
                p.grad = None


class Blocks(replicas.Ddp):
    def ready(self, which):
        self.left[which] -= self.sync
        if self.left[which] == 0:
            self.buckets[which] /= dist.get_world_size()
            dist.all_reduce(self.buckets[which])


class WaitsAtOnce(replicas.Ddp):
    def ready(self, which):
        super().ready(which)
        self.wait_for_works()

    def wait_for_works(self):
        while self.works:
            self.works.pop().wait()


class NeverWaits(replicas.Ddp):
    def wait(self):
        self.works = []
        self.left = [len(params) for params in self.groups]


class KeepsWorks(replicas.Ddp):
    def wait(self):
        for work in self.works:
            work.wait()
        self.left = [len(params) for params in self.groups]


class BroadcastsEachStep(replicas.Ddp):
    def __init__(self, model, groups):
        super().__init__(model, groups)
        self.model = model

    def zero_grad(self):
        for tensor in self.model.state_dict().values():
            dist.broadcast(tensor, src=0)
        super().zero_grad()


class HooksBeforeAddingUp(replicas.Ddp):
    def __init__(self, model, groups):
        super().__init__(model, groups)
        for which, params in enumerate(groups):
            for p in params:
                p._post_accumulate_grad_hooks.clear()
                p.register_hook(lambda _, which=which: self.ready(which))


class Typo(replicas.Ddp):
    def ready(self, which):
        self.left[which] -= synk  # noqa: F821
        super().ready(which)


class NeverCountsAnew(replicas.Ddp):
    def wait(self):
        while self.works:
            self.works.pop().wait()
        self.left = getattr(self, "left", [len(params) for params in self.groups])


class NeverZeroes(replicas.Ddp):
    def zero_grad(self):
        pass


WRONG = {
    "12.1": [
        ("seeds with the rank", seeds_with_the_rank, "does not hang on the rank"),
        ("forgets the epoch", forgets_the_epoch, "The epoch must change the seed"),
        ("forgets the seed", forgets_the_seed, "The seed must count too"),
        ("pads", pads_as_the_sampler_does, "an example dealt twice"),
        ("drops the rest", drops_the_rest, "cut nothing off"),
        ("cuts in chunks", cuts_in_chunks, "Deal one at a time"),
        ("seeds torch", seeds_torch, "the same dice"),
        ("draws without a seed", draws_without_a_seed, "Draw from a torch.Generator"),
        ("draws from Python", draws_from_python, "an example dealt twice(.|\n)*torch.Generator"),
        ("seeds with a hash", seeds_with_a_hash, "an example dealt twice(.|\n)*hash\\(\\) of a text"),
        ("seeds with the process", seeds_with_the_process, "an example dealt twice"),
        ("seeds Python's dice", seeds_python, "the same dice"),
        ("seeds NumPy's dice", seeds_numpy, "the same dice"),
        ("only shifts", only_shifts, "only shifted"),
        ("shifts one shuffle", shifts_one_shuffle, "only shifted"),
        ("shifts and turns round", shifts_from_the_end, "only shifted"),
        ("sorts its share", sorts_its_share, "the same order in each epoch|In a sorted order"),
        ("never shuffles", never_shuffles, "the same order in each epoch"),
        ("gives a tensor", gives_a_tensor, "Return a list of Python's ints"),
        ("counts from one", counts_from_one, "numbered from 0"),
        ("everything to everybody", everything_to_everybody, "an example dealt twice"),
    ],
    "12.2": [
        ("tells its own part", tells_its_own_part, "accuracy of its own part"),
        ("averages accuracies", averages_accuracies, "parts differ in size|NaN"),
        ("sums accuracies", sums_accuracies, "wrong result"),
        ("evaluates padding", evaluates_padding, "DistributedSampler pads"),
        ("drops the rest", drops_the_uneven_rest, "wrong result"),
        ("looks at everything", looks_at_everything, "not in the way asked for.*|shown 1000 of 1000"),
        ("asks a copy for everything", asks_a_copy_for_everything, "not in the way asked for.*|shown 1000 of 1000"),
        ("asks no model", asks_no_model, "wrong result"),
        ("works with the weights", works_with_the_weights, "it on each rank's part"),
        ("sends nothing", sends_nothing, "A rank sent nothing"),
        ("gathers predictions", gathers_predictions, "count first, then sum"),
        ("only rank 0 knows", only_rank_0_knows, "wrong result"),
        ("leaves where it has none", leaves_where_it_has_none, "RankError: all_reduce .* waited for rank 1"),
        ("cuts too few chunks", cuts_too_few_chunks, "IndexError(.|\n)*where +line .*chunk"),
        ("divides in float32", divides_in_float32, "Right but for rounding"),
        ("gives a count", gives_a_count, "wrong result"),
        ("forgets the return", forgets_to_return_it, "`return` missing"),
    ],
    "12.3": [
        ("averages batches", averages_batches, "NaN|means of means"),
        ("divides by its own count", divides_by_its_own_count, "must be summed over the ranks, too"),
        ("communicates nothing", communicates_nothing, "nothing was summed"),
        ("never divides", sums_and_never_divides, "times too large|divided once"),
        ("counts what is ignored", counts_what_is_ignored, "that count"),
        ("divides by ranks too", divides_by_tokens_and_ranks, "divided once"),
        ("returns its own loss", returns_its_own_loss, "wrong result"),
        ("sends each micro-batch", sends_each_micro_batch, "RankError"),
        ("gathers all batches", gathers_all_batches, "not in the way asked for(.|\n)*all_gather"),
        ("never has no gradient", never_has_none, "NoneType(.|\n)*where +line .*all_reduce"),
        ("skips where it has none", skips_where_it_has_none, "RankError"),
        ("all in one batch", all_in_one_batch, "not in the way asked for(.|\n)*memory is short"),
        ("one backward for all", one_backward_for_all, "not in the way asked for(.|\n)*memory is short"),
        ("counts in float32", counts_in_float32, "Right but for rounding"),
        ("sends gradients twice", sends_gradients_twice, "not in the way asked for(.|\n)*once"),
    ],
    "12.4": [
        ("no communication", NoCommunication, "no gradient is sent(.|\n)*must be summed over all ranks"),
        ("a typo", Typo, "NameError: name 'synk'(.|\n)*where +line .*synk"),
        ("blocks", Blocks, "not in the way asked for(.|\n)*stood still"),
        ("waits at once", WaitsAtOnce, "not in the way asked for(.|\n)*stood still"),
        ("never waits", NeverWaits, "found +wait\\(\\) returns too early"),
        ("keeps its handles", KeepsWorks, "holds more"),
        ("broadcasts in each step", BroadcastsEachStep, "or in zero_grad"),
        ("hooks before adding up", HooksBeforeAddingUp, "hooks come too soon|wrong weights"),
        ("no broadcast", NoBroadcast, "Each rank drew weights of its own"),
        ("broadcasts parameters only", ParametersOnly, "leaves out buffers"),
        ("broadcasts what is trained only", OnlyWhatIsTrained, "Each rank drew weights of its own"),
        ("sums and never divides", Summed, "Divide the sum by the number of ranks"),
        ("divides by two", DividedByTwo, "Divide the sum by the number of ranks"),
        ("hooks fire before accumulation ends", FiresEarly, "no message before the last one"),
        ("sends each micro-batch", SendsEachMicroBatch, "while sync was False"),
        ("the last micro-batch only", LastMicroBatchOnly, "must be in what is averaged"),
        ("after the backward pass", AfterTheBackwardPass, "send a full bucket from the hook"),
        ("one for each tensor", OneForEachTensor, "for . groups: one for each"),
        ("one for all", OneForAll, "for . groups: one for each"),
        ("keeps copies", KeepsCopies, "a view into the bucket"),
        ("gathers to all", GathersToAll, "by all_gather too"),
        ("binds late", BindsLate, "some groups are never sent"),
        ("drops gradients", DropsGradients, "gradients leave their buckets|Keep the views"),
        ("never counts anew", NeverCountsAnew, "counted anew"),
        ("never zeroes", NeverZeroes, "wrong weights"),
    ],
}
