"""labkit.lm's models stated a second time, operation by operation, in sizes: one rank's step, up to the optimizer's.

Beside what a single rank shows, and what is therefore held against measurement, it states in the same terms tensor and
sequence parallel splits (Megatron's), the micro-batches that a pipeline holds (1F1B), ZeRO's gathered and scattered
parts, adapters, and experts, of which it assumes that all get as many tokens.
"""

from dataclasses import replace
from math import ceil

from labkit.architecture import Architecture
from labkit.states import PRECISIONS, Plan, held
from labkit.tape import LEAF, Sized, Storage, Tape

GATHERED = "gathered parameters"


class Step:
    """One rank's step. Its methods are labkit.lm's lines; the widths are a tensor-parallel rank's."""

    def __init__(self, arch: Architecture, plan: Plan, stage: int = 0):
        tp = plan.tp
        self.arch = replace(
            arch,
            heads=arch.heads // tp,
            kv_heads=arch.kv_heads // tp,
            hidden=arch.hidden // tp,
            vocab=ceil(arch.vocab / tp),
        )
        self.plan, self.first, self.last = plan, stage == 0, stage == plan.pp - 1
        self.weight_bytes, gradient_bytes, _, _, self.work_bytes = PRECISIONS[plan.precision]
        steps = plan.micro_batches or plan.pp
        self.in_flight = min(plan.pp - stage, steps)
        self.scatters, self.gathers = plan.zero > 1, plan.zero == 3 and plan.shards > 1
        # A later micro-batch's gradients are added to a sum that stands already: at once, or where each rank has but
        # a part of that sum, when a whole block's are there to be scattered.
        self.tape = Tape(gradient_bytes / self.weight_bytes if steps == 1 or self.scatters else 0)
        self.stays = 1 / plan.shards if steps == 1 else 0
        self.spread = tp if plan.sequence_parallel else 1
        self.tokens = plan.batch * plan.seq / self.spread
        tensors = held(arch, plan, stage)
        kept = lambda each: (
            each.total * (each.bits / 8 if each.bits else self.weight_bytes)
        )  # and gathered as it is kept
        in_blocks = sum(kept(each) for each in tensors if each.part not in ("embedding", "positions", "head"))
        self.block_bytes = in_blocks / (arch.layers // plan.pp)
        self.ends_bytes = sum(map(kept, tensors)) - in_blocks
        # Also the head, where the two are one.
        uses = 2 if arch.tied and self.first and self.last else 1
        n = self.arch.vocab * arch.width
        self.tied = Sized("token", n, self.weight_bytes, trained=not plan.lora, leaf=uses)

    def weight(self, name: str, elements: float) -> Sized:
        """A parameter; beside adapters it is frozen."""
        return Sized(name, elements, self.weight_bytes, trained=not self.plan.lora, leaf=1)

    def cast(self, x: Sized, element_bytes: float) -> Sized:
        """x with elements of this width: a copy, or x itself where it has it already."""
        if x.element_bytes == element_bytes:
            return x
        return self.tape.run(f"{x.name}, {8 * element_bytes:.0f} bits", x.elements, element_bytes, [x])

    def linear(
        self,
        x: Sized,
        weight: Sized,
        rows: float,
        columns: float,
        bias: bool = False,
        *,
        split: str = "",
        packed: bool = False,
    ) -> Sized:
        """rows results of each token's columns. Autocast copies the matrix, and keeps the copy for the pass.

        split: "rows" or "columns", by which tensor parallelism cuts the matrix. With sequence parallelism the former
        gathers its input for as long as it works, and the latter scatters its result. packed: kept in 4 bits, and
        widened for as long as it works.
        """
        matrices = [self.cast(weight, self.work_bytes)]
        if bias:
            matrices.append(self.cast(self.weight(f"{weight.name} bias", rows), self.work_bytes))
        self.tape.cached += [each.storage for each in matrices if each.storage and each.trained]
        x = self.cast(x, self.work_bytes)
        factor = {"rows": self.spread, "columns": 1 / self.spread}.get(split, 1)
        n = x.elements / columns * rows * factor
        whole = {"rows": x.elements, "columns": n}.get(split, 0) * self.spread * self.work_bytes
        name = "logits" if weight.name in ("head", "token") else f"{weight.name}'s result"
        return self.tape.run(
            name, n, self.work_bytes, [x, *matrices], keep=[x, matrices[0]] if weight.trained else [matrices[0]],
            scratch_bytes=(whole if self.spread > 1 else 0) + packed * weight.elements * self.work_bytes,
        )  # fmt: skip

    def matrix(self, x: Sized, name: str, rows: float, columns: float, bias: bool = False, *, split: str) -> Sized:
        """A matrix of a block, or all experts' one, and beside it two narrow ones where adapters are trained."""
        times, rank = max(self.arch.experts, 1) if name in ("gate", "up", "down") else 1, self.plan.lora
        weight, packed = self.weight(name, times * rows * columns), self.plan.base_bits == 4
        result = self.linear(x, weight, rows, columns, bias, split=split, packed=packed)
        if not rank:
            return result
        a = Sized(f"{name} adapter A", times * rank * columns, self.weight_bytes, leaf=1)
        b = Sized(f"{name} adapter B", times * rows * rank, self.weight_bytes, leaf=1)
        beside = self.linear(self.linear(x, a, rank, columns), b, rows, rank)
        beside = self.tape.run(f"{name} adapter, scaled", result.elements, result.element_bytes, [beside])
        return self.tape.run(f"{name}'s sum", result.elements, result.element_bytes, [result, beside], passes=True)

    def norm(self, x: Sized, width: int, name: str) -> Sized:
        """Layer norm keeps its input and two numbers a row; root-mean-square norm, in 32 bits, its products too."""
        run, n, rows, scale = self.tape.run, x.elements, x.elements / width, self.weight(name, width)
        if self.arch.norm == "layer":
            shift, stats = self.weight(f"{name} bias", width), 2 * rows * x.element_bytes
            return run(f"{name}'s result", n, x.element_bytes, [x, scale, shift], keep=[x], keep_bytes=stats)
        wide = self.cast(x, 4)
        square = run(f"{name}: squares", n, 4, [wide], keep=[wide], scratch_bytes=8 * n)
        root = run(f"{name}: 1 / root", rows, 4, [square], keep_result=True)
        del square
        normed = run(f"{name}: normed", n, 4, [wide, root], keep=[wide, root], scratch_bytes=4 * n)
        normed, frozen = self.cast(normed, x.element_bytes), not scale.trained
        keep, scratch = ([], 0) if frozen else ([normed], x.n_bytes)
        return run(f"{name}'s result", n, x.element_bytes, [normed, scale], keep=keep, scratch_bytes=scratch)

    def rotate(self, x: Sized) -> Sized:
        """Rotary positions, in 32 bits; nothing is kept but the tables."""
        wide = self.cast(x, 4)
        turned = self.tape.run(f"{x.name}, rotated", x.elements, 4, [wide], scratch_bytes=4 * x.elements)
        return self.cast(turned, x.element_bytes)

    def flash(self, q: Sized, k: Sized, v: Sized) -> Sized:
        """One kernel: it keeps its inputs, its result, and the logarithm of each row's sum."""
        n, a, sums = q.elements, q.element_bytes, 4 * q.elements / self.arch.head_width
        return self.tape.run("mixed values", n, a, [q, k, v], keep=[q, k, v], keep_result=True, keep_bytes=sums)

    def math(self, q: Sized, k: Sized, v: Sized) -> Sized:
        """Scores of every pair of tokens, written out; a batched product wants its operands copied head by head."""
        run, a, n = self.tape.run, q.element_bytes, q.elements
        pairs = n / self.arch.head_width * self.plan.seq
        k, v, q = (run(f"{x.name}, by heads", n, a, [x]) for x in (k, v, q))
        scores = run("scores", pairs, a, [q, k], keep=[q, k])
        scores = run("scores, scaled", pairs, a, [scores])
        wide = self.cast(run("scores, masked", pairs, a, [scores], keep_bytes=self.plan.seq**2), 4)
        del scores
        shares = run("softmax", pairs, 4, [wide], keep_result=True)
        del wide
        shares = self.cast(shares, a)
        return run("mixed values", n, a, [shares, v], keep=[shares, v])

    def attention(self, x: Sized) -> Sized:
        """Attention of a block, from the normed residual stream."""
        arch, d, math = self.arch, self.arch.width, self.plan.attention == "math"
        inner, kv = arch.heads * arch.head_width, arch.kv_heads * arch.head_width
        sizes = (("q", inner), ("k", kv), ("v", kv))
        q, k, v = (self.matrix(x, name, n, d, arch.qkv_bias, split="rows") for name, n in sizes)
        if arch.qk_norm:
            q, k = self.norm(q, arch.head_width, "q norm"), self.norm(k, arch.head_width, "k norm")
        if not arch.positions:
            q, k = self.rotate(q), self.rotate(k)
        core = self.math if math else self.flash
        mixed = self.tape.rerun(core, q, k, v) if self.plan.recompute == "selective" else core(q, k, v)
        del q, k, v
        if math:
            mixed = self.tape.run("mixed values, by tokens", mixed.elements, mixed.element_bytes, [mixed])
        return self.matrix(mixed, "out", d, inner, arch.out_bias, split="columns")

    def mlp(self, x: Sized) -> Sized:
        """The two- or three-matrix network of a block."""
        arch, run, d, hidden = self.arch, self.tape.run, self.arch.width, self.arch.hidden
        if not arch.gated:
            up = self.matrix(x, "up", hidden, d, arch.mlp_bias, split="rows")
            inner = run("gelu", up.elements, up.element_bytes, [up], keep=[up])
            del up
        else:
            gate = self.matrix(x, "gate", hidden, d, arch.mlp_bias, split="rows")
            open_ = run("silu", gate.elements, gate.element_bytes, [gate], keep=[gate])
            del gate
            up = self.matrix(x, "up", hidden, d, arch.mlp_bias, split="rows")
            inner = run("gated", up.elements, up.element_bytes, [open_, up], keep=[open_, up])
            del open_, up
        return self.matrix(inner, "down", d, hidden, arch.mlp_bias, split="columns")

    def experts(self, x: Sized) -> Sized:
        """Tokens copied to their experts, each as busy as the others, and the results weighed and added up."""
        arch, run, a = self.arch, self.tape.run, self.work_bytes
        routes = self.linear(x, self.weight("router", arch.experts * arch.width), arch.experts, arch.width)
        routes = run("routes", routes.elements, 4, [self.cast(routes, 4)], keep_result=True)
        n = x.elements * arch.experts_per_token
        result = self.mlp(run("tokens by experts", n, a, [self.cast(x, a)]))
        return run("experts' sum", x.elements, a, [result, routes], keep=[result, routes], scratch_bytes=result.n_bytes)

    def add(self, x: Sized, y: Sized) -> Sized:
        """The residual stream and what a part of a block adds to it."""
        return self.tape.run("residual stream", x.elements, x.element_bytes, [x, y], passes=True)

    def block(self, x: Sized) -> Sized:
        """The residual stream after one block."""
        x = self.add(x, self.attention(self.norm(x, self.arch.width, "norm 1")))
        return self.add(x, (self.experts if self.arch.experts else self.mlp)(self.norm(x, self.arch.width, "norm 2")))

    def unit(self, x: Sized) -> Sized:
        """A block, and around it what ZeRO gathers and scatters, on both ways.

        Stage 3 holds the parameters of the block at work and of the next, fetched ahead, as fully_shard does. From
        stage 2 on, a block's gradients are scattered when it is done.
        """
        plan, tape, here = self.plan, self.tape, []
        gather = lambda: here.append(Storage(tape, GATHERED, 2 * self.block_bytes)) if self.gathers else None

        def done():
            here.clear()
            if self.scatters:
                tape.shrink(self.stays)

        gather()
        tape.act(done)
        x = tape.rerun(self.block, x) if plan.recompute == "full" else self.block(x)
        if plan.reshard:
            here.clear()
            tape.act(gather)
        elif here:
            here[0] = Storage(tape, GATHERED, self.block_bytes)
        return x

    def layers(self, x: Sized, n: int) -> Sized:
        """n blocks: the first, one that stands for all between, and the last."""
        if n > 3:
            return self.unit(self.alike(n - 2, self.unit(x)))
        for _ in range(n):
            x = self.unit(x)
        return x

    def alike(self, times: int, x: Sized) -> Sized:
        """One block; what it leaves behind, on both ways, is counted as often as there are blocks like it."""
        tape, before, bulk, leaves, n_cached = self.tape, dict(self.tape.now), [], [], len(self.tape.cached)

        def between():
            bulk.clear()
            grown = tape.leaf_bytes() - leaves.pop()
            tape.leaves[key := object()] = Storage(tape, f"{LEAF} of blocks between", grown * (times - 1))
            tape.shrunk.add(key)

        tape.act(between)
        x = self.unit(x)
        tape.act(lambda: leaves.append(tape.leaf_bytes()))
        kept = {name: n_bytes - before.get(name, 0) for name, n_bytes in tape.now.items()}
        copies = {each.name for each in tape.cached[n_cached:]} if self.plan.recompute == "full" else set()
        for name, n_bytes in kept.items():
            if n_bytes > 0:
                others = Storage(tape, name, n_bytes * (times - 1))
                (tape.cached if name in copies else bulk).append(others)
        return x

    def play(self) -> Tape:
        """The step's tape, played to the end of the backward pass."""
        tape, arch, plan = self.tape, self.arch, self.plan
        ends = Storage(tape, GATHERED, self.ends_bytes if self.gathers else 0)
        x = self.start()
        tape.section = "block"
        x = self.layers(x, arch.layers // plan.pp)
        kept = {name: n_bytes for name, n_bytes in tape.now.items() if name != GATHERED}
        others = [Storage(tape, name, n_bytes * (self.in_flight - 1)) for name, n_bytes in kept.items()]
        if not self.last:
            tape.cached.clear()
            tape.backward(x.key, x.n_bytes)
        else:
            tape.section = "head"
            x = self.norm(x, arch.width, "last norm")
            head = self.tied if arch.tied else self.weight("head", self.tied.elements)
            x = self.loss(self.linear(x, head, arch.vocab, arch.width, split="rows"))
            tape.cached.clear()
            tape.backward(x.key, x.n_bytes)
        if self.scatters:
            tape.shrink(self.stays)
        del ends, others
        return tape

    def start(self) -> Sized:
        """What the first block gets: embeddings, or another stage's result."""
        n, width = self.tokens * self.arch.width, self.weight_bytes
        if not self.first:
            x = Sized("residual stream", n, width)
            x.storage = Storage(self.tape, x.name, x.n_bytes)
            return x
        x = self.tape.run("residual stream", n, width, [self.tied])
        if self.arch.positions:
            table = self.weight("position", self.arch.positions * self.arch.width)
            rows = self.plan.seq / self.spread * self.arch.width * width
            x = self.tape.run("residual stream", n, width, [x, table], passes=True, scratch_bytes=rows)
        return x

    def loss(self, logits: Sized) -> Sized:
        """Cross-entropy in 32 bits."""
        tape = self.tape
        tape.section = tape.phase = "loss"
        wide = self.cast(logits, 4)
        targets = 8 * self.plan.batch * self.plan.seq
        shares = tape.run("logits, log-softmax", wide.elements, 4, [wide], keep_result=True)
        return tape.run("loss", 1, 4, [shares], keep=[shares], keep_bytes=targets)
