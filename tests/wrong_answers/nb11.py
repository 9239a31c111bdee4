"""Wrong answers that learners of lesson 11 would give, each with a part of the message that must meet it."""

import torch
import torch.distributed as dist


def algorithm_bandwidth(op, n_bytes, seconds, world_size):
    return n_bytes / seconds


def all_reduce_for_all(op, n_bytes, seconds, world_size):
    return 2 * (world_size - 1) / world_size * n_bytes / seconds


def forgets_broadcast(op, n_bytes, seconds, world_size):
    factor = 2 if op == "all_reduce" else 1
    return factor * (world_size - 1) / world_size * n_bytes / seconds


def all_reduce_once(op, n_bytes, seconds, world_size):
    if op in ("broadcast", "reduce"):
        return n_bytes / seconds
    return (world_size - 1) / world_size * n_bytes / seconds


def upside_down(op, n_bytes, seconds, world_size):
    if op in ("broadcast", "reduce"):
        return n_bytes / seconds
    return (2 if op == "all_reduce" else 1) * world_size / (world_size - 1) * n_bytes / seconds


def seconds_over_bytes(op, n_bytes, seconds, world_size):
    factor = {"all_reduce": 2, "broadcast": 0, "reduce": 0}.get(op, 1)
    share = factor * (world_size - 1) / world_size if factor else 1
    return share * seconds / n_bytes


def in_bits(op, n_bytes, seconds, world_size):
    factor = {"all_reduce": 2, "broadcast": 0, "reduce": 0}.get(op, 1)
    share = factor * (world_size - 1) / world_size if factor else 1
    return 8 * share * n_bytes / seconds


def in_gigabytes(op, n_bytes, seconds, world_size):
    factor = {"all_reduce": 2, "broadcast": 0, "reduce": 0}.get(op, 1)
    share = factor * (world_size - 1) / world_size if factor else 1
    return share * n_bytes / seconds / 1e9


def one_after_the_other(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    message_s = lambda n: alpha_s + n / world_size / bytes_per_s
    return sum(compute_s) + sum(2 * (world_size - 1) * message_s(n) for n in n_bytes)


def the_larger_sum(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    message_s = lambda n: alpha_s + n / world_size / bytes_per_s
    return max(sum(compute_s), sum(2 * (world_size - 1) * message_s(n) for n in n_bytes))


def only_the_last_shows(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    return sum(compute_s) + 2 * (world_size - 1) * (alpha_s + n_bytes[-1] / world_size / bytes_per_s)


def _overlapped(compute_s, sent_s):
    computed = free_at = 0.0
    for compute, send in zip(compute_s, sent_s, strict=True):
        computed += compute
        free_at = max(computed, free_at) + send
    return free_at


def one_alpha_a_piece(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    return _overlapped(compute_s, [alpha_s + 2 * (world_size - 1) / world_size * n / bytes_per_s for n in n_bytes])


def half_a_ring(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    return _overlapped(compute_s, [(world_size - 1) * (alpha_s + n / world_size / bytes_per_s) for n in n_bytes])


def whole_vectors(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    return _overlapped(compute_s, [2 * (world_size - 1) * (alpha_s + n / bytes_per_s) for n in n_bytes])


def a_ring_that_never_idles(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    message_s = lambda n: alpha_s + n / world_size / bytes_per_s
    return compute_s[0] + sum(2 * (world_size - 1) * message_s(n) for n in n_bytes)


def computing_waits(compute_s, n_bytes, alpha_s, bytes_per_s, world_size):
    clock = compute_s[0]
    for compute, n in zip([*compute_s[1:], 0.0], n_bytes, strict=True):
        clock += max(compute, 2 * (world_size - 1) * (alpha_s + n / world_size / bytes_per_s))
    return clock


def no_communication(tensors):
    for tensor in tensors:
        tensor /= 1


def torchs_own(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def _exchange(*messages):
    for under_way in dist.batch_isend_irecv([dist.P2POp(*each) for each in messages]):
        under_way.wait()


def _ring_sum(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.view(-1).tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(take)
        _exchange((dist.isend, give, right), (dist.irecv, arrived, left))
        take.copy_(take + arrived if step < world_size - 1 else arrived)


def _put_back(tensors, flat):
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def everybody_to_everybody(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    arrived = [torch.empty_like(flat) for _ in others]
    sends = [(dist.isend, flat, rank) for rank in others]
    _exchange(*sends, *((dist.irecv, each, rank) for each, rank in zip(arrived, others, strict=True)))
    _put_back(tensors, (flat + sum(arrived)) / dist.get_world_size())


def by_way_of_rank_0(tensors):
    flat, world_size = torch.cat([t.flatten() for t in tensors]), dist.get_world_size()
    if dist.get_rank() == 0:
        for rank in range(1, world_size):
            arrived = torch.empty_like(flat)
            dist.recv(arrived, rank)
            flat += arrived
        flat /= world_size
        for rank in range(1, world_size):
            dist.send(flat, rank)
    else:
        dist.send(flat, 0)
        dist.recv(flat, 0)
    _put_back(tensors, flat)


def whole_vectors_round_the_ring(tensors):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([t.flatten() for t in tensors])
    total, give = flat.clone(), flat
    for _ in range(world_size - 1):
        arrived = torch.empty_like(flat)
        _exchange((dist.isend, give, (rank + 1) % world_size), (dist.irecv, arrived, (rank - 1) % world_size))
        total, give = total + arrived, arrived
    _put_back(tensors, total / world_size)


def forgets_to_divide(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    _ring_sum(flat)
    _put_back(tensors, flat)


def forgets_to_put_back(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    _ring_sum(flat)
    flat /= dist.get_world_size()


def rebinds_the_list(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    _ring_sum(flat)
    flat /= dist.get_world_size()
    for i, part in enumerate(flat.split([t.numel() for t in tensors])):
        tensors[i] = part.view_as(tensors[i])


def _ring_of(flat, chunks, steps=None):
    """A ring over the chunks given, of so many steps in each half."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    steps = world_size - 1 if steps is None else steps
    for step in range(2 * steps):
        at = step if step < steps else step - steps + world_size - 1
        give, take = chunks[(rank - at) % world_size], chunks[(rank - at - 1) % world_size]
        arrived = torch.empty_like(take)
        _exchange((dist.isend, give, (rank + 1) % world_size), (dist.irecv, arrived, (rank - 1) % world_size))
        if step < world_size - 1:
            take += arrived
        elif step >= steps:
            take.copy_(arrived)
    return flat / world_size


def chunk_for_tensor_split(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    _put_back(tensors, _ring_of(flat, flat.chunk(dist.get_world_size())))


def a_step_too_many(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    world_size = dist.get_world_size()
    _put_back(tensors, _ring_of(flat, flat.tensor_split(world_size), steps=world_size))


def in_float64(tensors):
    flat = torch.cat([t.flatten() for t in tensors]).double()
    _put_back(tensors, _ring_of(flat, flat.tensor_split(dist.get_world_size())))


def in_16_bits(tensors):
    flat = torch.cat([t.flatten() for t in tensors]).half()
    _put_back(tensors, _ring_of(flat, flat.tensor_split(dist.get_world_size())))


def all_receive_first(tensors):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(tensors[0])
    dist.recv(arrived, (rank - 1) % world_size)
    dist.send(tensors[0], (rank + 1) % world_size)
    tensors[0].copy_((tensors[0] + arrived) / world_size)


def a_ring_a_tensor(tensors):
    for tensor in tensors:
        _ring_sum(tensor)
        tensor /= dist.get_world_size()


def only_reduce_scatter(tensors):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([t.flatten() for t in tensors])
    chunks = flat.tensor_split(world_size)
    for step in range(world_size - 1):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(take)
        _exchange((dist.isend, give, (rank + 1) % world_size), (dist.irecv, arrived, (rank - 1) % world_size))
        take += arrived
    _put_back(tensors, flat / world_size)


def chunks_of_one_length(tensors):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([t.flatten() for t in tensors])
    length = flat.numel() // world_size
    whole = flat[: length * world_size]
    chunks = whole.view(world_size, length)
    for step in range(2 * (world_size - 1)):
        give, take = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(take)
        _exchange((dist.isend, give, (rank + 1) % world_size), (dist.irecv, arrived, (rank - 1) % world_size))
        take.copy_(take + arrived if step < world_size - 1 else arrived)
    _put_back(tensors, flat / world_size)


def rank_1_gives_up(tensors):
    if dist.get_rank() == 1:
        raise ValueError("no gradient here")
    forgets_to_divide(tensors)


def waits_at_once(pieces, launch, world_size):
    means = []
    for piece in pieces:
        gradient = piece()
        launch(gradient).wait()
        means.append(gradient / world_size)
    return means


def launches_at_the_end(pieces, launch, world_size):
    gradients = [piece() for piece in pieces]
    for pending in [launch(gradient) for gradient in gradients]:
        pending.wait()
    return [gradient / world_size for gradient in gradients]


def launches_one_late(pieces, launch, world_size):
    gradients, under_way = [], []
    for i, piece in enumerate(pieces):
        gradients.append(piece())
        if i:
            under_way.append(launch(gradients[i - 1]))
    under_way.append(launch(gradients[-1]))
    for pending in under_way:
        pending.wait()
    return [gradient / world_size for gradient in gradients]


def waits_one_late(pieces, launch, world_size):
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece())
        under_way.append(launch(gradients[-1]))
        if len(under_way) > 1:
            under_way.pop(0).wait()
    under_way.pop().wait()
    return [gradient / world_size for gradient in gradients]


def never_waits(pieces, launch, world_size):
    gradients = [piece() for piece in pieces]
    for gradient in gradients:
        launch(gradient)
    return [gradient / world_size for gradient in gradients]


def waits_for_the_last(pieces, launch, world_size):
    gradients = []
    for piece in pieces:
        gradients.append(piece())
        pending = launch(gradients[-1])
    pending.wait()
    return [gradient / world_size for gradient in gradients]


def sums_a_copy(pieces, launch, world_size):
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece())
        under_way.append(launch(gradients[-1].clone()))
    for pending in under_way:
        pending.wait()
    return [gradient / world_size for gradient in gradients]


def asks_the_process_group(pieces, launch, world_size):
    under_way = [(gradient, launch(gradient)) for gradient in (piece() for piece in pieces)]
    return [(pending.wait(), gradient / dist.get_world_size())[1] for gradient, pending in under_way]


def divides_under_way(pieces, launch, world_size):
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece())
        under_way.append(launch(gradients[-1]))
        gradients[-1] /= world_size
    for pending in under_way:
        pending.wait()
    return gradients


def leaves_the_sums(pieces, launch, world_size):
    gradients, under_way = [], []
    for piece in pieces:
        gradients.append(piece())
        under_way.append(launch(gradients[-1]))
    for pending in under_way:
        pending.wait()
    return gradients


def launches_nothing(pieces, launch, world_size):
    return [piece() for piece in pieces]


WRONG = {
    "11.1": [
        ("algorithm bandwidth", algorithm_bandwidth, "That is the algorithm bandwidth"),
        ("all-reduce's factor for all", all_reduce_for_all, "Each collective has its own factor"),
        ("forgets broadcast", forgets_broadcast, "their factor is 1"),
        ("all-reduce once", all_reduce_once, "moves everything twice|wrong result"),
        ("upside down", upside_down, "wrong result|ZeroDivisionError"),
        ("seconds over bytes", seconds_over_bytes, "not seconds over bytes"),
        ("in bits", in_bits, "not bits|8 times too large"),
        ("in gigabytes", in_gigabytes, "not GB|times too small"),
    ],
    "11.2": [
        ("one after the other", one_after_the_other, "Computing goes on while"),
        ("the larger sum", the_larger_sum, "cannot go before it is computed"),
        ("only the last shows", only_the_last_shows, "still busy"),
        ("one alpha a piece", one_alpha_a_piece, "pays alpha"),
        ("half a ring", half_a_ring, "Half of the ring"),
        ("whole vectors", whole_vectors, "R-th of the piece"),
        ("a ring that never idles", a_ring_that_never_idles, "wrong result"),
        ("computing waits", computing_waits, "Computing does not wait"),
    ],
    "11.3": [
        ("no communication", no_communication, "wrong result"),
        ("torch's own", torchs_own, "It calls all_reduce"),
        ("everybody to everybody", everybody_to_everybody, "Send chunks"),
        ("by way of rank 0", by_way_of_rank_0, "Send chunks"),
        ("whole vectors round the ring", whole_vectors_round_the_ring, "Send chunks"),
        ("forgets to divide", forgets_to_divide, "2 times too large"),
        ("forgets to put back", forgets_to_put_back, "in place is"),
        ("rebinds the list", rebinds_the_list, "in place is"),
        ("chunk in place of tensor_split", chunk_for_tensor_split, "IndexError"),
        ("a step too many", a_step_too_many, "R-1 steps, and not R"),
        ("in float64", in_float64, "has 8 bytes"),
        ("in 16 bits", in_16_bits, "wrong result|NaN|inf"),
        ("all receive first", all_receive_first, "wait for each other"),
        ("a ring a tensor", a_ring_a_tensor, "one vector of all gradients"),
        ("only reduce-scatter", only_reduce_scatter, "wrong result"),
        ("chunks of one length", chunks_of_one_length, "wrong result"),
        ("rank 1 gives up", rank_1_gives_up, "no gradient here"),
    ],
    "11.4": [
        ("waits at once", waits_at_once, "nothing is computed meanwhile"),
        ("launches at the end", launches_at_the_end, "as soon as it is there"),
        ("launches one late", launches_one_late, "as soon as it is there"),
        ("waits one late", waits_one_late, "nothing is computed meanwhile"),
        ("never waits", never_waits, "not waited for"),
        ("waits for the last only", waits_for_the_last, "wrong result"),
        ("sums a copy", sums_a_copy, "launched for a copy"),
        ("asks the process group", asks_the_process_group, "no ranks run in this check"),
        ("divides under way", divides_under_way, "divide after wait"),
        ("leaves the sums", leaves_the_sums, "2 times too large"),
        ("launches nothing", launches_nothing, "neither summed"),
    ],
}
