"""Exercises 11.3 and 11.4: right answers written in other ways, and what is said of faults that only ranks show."""

import pytest
import torch
import torch.distributed as dist

from labkit.checker import find, generator_for, verdict


@pytest.fixture
def judged():
    """A function that gives the verdict on an answer to an exercise; a busy machine decides nothing."""

    def judge(name, fn):
        exercise = find(name)
        return verdict(fn, exercise, generator=generator_for(exercise, 0), time_limit_s=60.0)

    return judge


def directly(tensors):
    """No ring, but chunks: each rank adds up its own, then hands it out; as many bytes as a ring has."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([t.flatten() for t in tensors])
    chunks = list(flat.tensor_split(world_size))
    others = [each for each in range(world_size) if each != rank]
    arrived = {each: torch.empty_like(chunks[rank]) for each in others}
    receives = [dist.P2POp(dist.irecv, arrived[each], each) for each in others]
    for done in dist.batch_isend_irecv(receives + [dist.P2POp(dist.isend, chunks[each], each) for each in others]):
        done.wait()
    chunks[rank].add_(sum(arrived.values())).div_(world_size)
    receives = [dist.P2POp(dist.irecv, chunks[each], each) for each in others]
    for done in dist.batch_isend_irecv(receives + [dist.P2POp(dist.isend, chunks[rank], each) for each in others]):
        done.wait()
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def one_waits_for_the_other(tensors):
    """A ring of blocking messages, in which rank 0 receives first; divided before it goes round."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([t.reshape(-1) for t in tensors]) / world_size
    parts = flat.tensor_split(world_size)
    for step in range(2 * world_size - 2):
        give, own = parts[(rank - step) % world_size], parts[(rank - step - 1) % world_size]
        came = torch.zeros_like(own)
        receive = lambda came=came: dist.recv(came, (rank - 1) % world_size)
        send = lambda give=give: dist.send(give.clone(), (rank + 1) % world_size)
        for turn in (receive, send) if rank == 0 else (send, receive):
            turn()
        own.copy_(came + own if step < world_size - 1 else came)
    start = 0
    for tensor in tensors:
        tensor.view(-1)[:] = flat[start : start + tensor.numel()]
        start += tensor.numel()


def ring_all_reduce(x, room=None):
    """The lesson's ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.view(-1).tensor_split(world_size)
    room = torch.empty_like(chunks[0]) if room is None else room
    for step in range(2 * (world_size - 1)):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        part = room[: take.numel()]
        for done in dist.batch_isend_irecv([dist.P2POp(dist.irecv, part, left), dist.P2POp(dist.isend, give, right)]):
            done.wait()
        take.copy_(take + part if step < world_size - 1 else part)


def by_the_lessons_ring(tensors):
    """The one that was built before, once, for all gradients."""
    flat = torch.cat([t.flatten() for t in tensors])
    ring_all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        torch.div(part.view_as(tensor), dist.get_world_size(), out=tensor)


def filled_up(tensors):
    """Chunks of one length, the last filled up with zeros; the means put into the tensors' storage."""
    total, world_size = sum(t.numel() for t in tensors), dist.get_world_size()
    flat = torch.zeros(-(-total // world_size) * world_size)
    flat[:total] = torch.cat([t.flatten() for t in tensors])
    ring_all_reduce(flat)
    parts = (flat[:total] / world_size).split([t.numel() for t in tensors])
    while tensors:
        last = tensors.pop()
        last[...] = parts[len(tensors)].reshape(last.shape)


@pytest.mark.parametrize("fn", [directly, one_waits_for_the_other, by_the_lessons_ring, filled_up])
def test_a_mean_made_another_way_passes(fn, judged):
    found = judged("ring_mean", fn)
    assert found.status == "passed", found.message


def waits_for_nobody(tensors):
    """Rank 1 sends to rank 0, which never receives, and waits for a message that nobody sends."""
    if dist.get_rank() == 1:
        dist.recv(tensors[0], 0)


@pytest.mark.slow
def test_a_rank_that_waits_in_vain_is_a_verdict_and_not_a_hang(judged):
    found = judged("ring_mean", waits_for_nobody)
    assert found.status == "failed"
    assert "RankError" in found.message
    assert len(found.message) < 1500


def in_one_line(pieces, launch, world_size):
    under_way = [(gradient, launch(gradient)) for gradient in (piece() for piece in pieces)]
    return [(pending.wait(), gradient / world_size)[1] for gradient, pending in under_way]


def backwards(pieces, launch, world_size):
    """Waits for the last first, and divides in place, after the wait."""
    gradients, pending = [], []
    for piece in pieces:
        gradients += [piece()]
        pending += [launch(gradients[-1])]
    for gradient, each in zip(reversed(gradients), reversed(pending), strict=True):
        each.wait()
        gradient /= world_size
    return tuple(gradients)


def divided_first(pieces, launch, world_size):
    """Every rank divides its own before the sum, as gradients in 16 bits need it."""
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece() / world_size)
        under_way.append(launch(gradients[-1]))
    for each in under_way:
        each.wait()
    return gradients


@pytest.mark.parametrize("fn", [in_one_line, backwards, divided_first])
def test_messages_hidden_another_way_pass(fn, judged):
    found = judged("overlapped_means", fn)
    assert found.status == "passed", found.message
