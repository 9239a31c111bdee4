"""A training step played with names and sizes in place of tensors: what lives when, and the most there ever is.

An operation makes a `Sized`, which is a name and a number of bytes, and leaves on the tape what it keeps for the
backward pass. Nothing is computed. Memory is freed as torch's autograd frees it: a tensor goes when the last name and
the last operation that kept it let go of it. Two gradients of one tensor are added up in a third, as MemTracker does.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import no_type_check

LEAF = "parameter gradient:"


class Storage:
    """Bytes under a name, for as long as somebody holds this object."""

    @no_type_check  # here and below: a check of types would take a hundred times as long as what it checks
    def __init__(self, tape: "Tape", name: str, n_bytes: float):
        self.tape, self.name, self.n_bytes = tape, name, n_bytes
        tape.count(name, n_bytes)

    @no_type_check
    def __del__(self):
        self.tape.count(self.name, -self.n_bytes)


@dataclass(eq=False)
class Sized:
    """A tensor by its number of elements and the bytes of one.

    key: what its gradient is found by, which holds no memory. trained: a gradient flows to it. leaf: how often a
    parameter is used, whose own bytes are counted elsewhere, and whose gradient stays; 0: it is none.
    """

    name: str
    elements: float
    element_bytes: float
    storage: Storage | None = None
    trained: bool = True
    leaf: int = 0
    key: object = field(default_factory=object)

    @property
    def n_bytes(self) -> float:
        """Bytes of the tensor, and of its gradient."""
        return self.elements * self.element_bytes


@dataclass
class _Node:
    """What an operation left on the tape: its result's key, inputs without their memory, and what it keeps."""

    result: object
    inputs: list[tuple[str, float, object, int, bool]]  # name, bytes, key, leaf, whether the gradient goes on as it is
    kept: list[Storage]
    scratch_bytes: float
    section: str
    action: Callable[[], None] | None = None


class Tape:
    """Plays operations forward, then backward. peaks: the most of each phase, and what lived then, by name.

    A phase is "forward", or "loss"; in the backward pass "block backward", after the `section` an operation was in.
    leaf_growth: bytes of a parameter's gradient that stays for each byte of it that arrives; 0: it is added to a sum
    that is counted elsewhere.
    """

    def __init__(self, leaf_growth: float = 1):
        self.now, self.total, self.phase, self.section = Counter(), 0.0, "forward", "embedding"
        self.peaks: dict[str, tuple[float, dict[str, float]]] = {}
        self.leaf_growth, self.recording = leaf_growth, True
        self.nodes: list[_Node] = []
        self.gradients: dict[object, Storage] = {}
        self.leaves: dict[object, Storage] = {}
        self.waiting: dict[object, Storage] = {}
        self.uses: Counter = Counter()
        self.shrunk: set[object] = set()
        self.cached: list[Storage] = []

    @no_type_check
    def count(self, name: str, n_bytes: float) -> None:
        """Adds bytes under a name, or takes them away; remembers the largest total."""
        self.now[name] += n_bytes
        self.total += n_bytes
        if n_bytes > 0 and self.total > self.peaks.get(self.phase, (-1.0,))[0]:
            self.peaks[self.phase] = (self.total, dict(self.now))

    @no_type_check
    def run(
        self,
        name: str,
        elements: float,
        element_bytes: float,
        inputs: Sequence[Sized],
        *,
        keep: Sequence[Sized] = (),
        keep_result: bool = False,
        keep_bytes: float = 0,
        scratch_bytes: float = 0,
        passes: bool = False,
    ) -> Sized:
        """The result of one operation.

        keep, keep_result, keep_bytes: what it saves for its backward. scratch_bytes: what it needs besides while either
        runs. passes: its result's gradient is its inputs' gradient, where the width of an element is the same.
        """
        scratch = Storage(self, f"{name}, at work", scratch_bytes)
        trained = [each for each in inputs if each.trained]
        made = Sized(name, elements, element_bytes, Storage(self, name, elements * element_bytes), bool(trained))
        del scratch
        if self.recording and trained:
            kept = [each.storage for each in (*keep, *[made] * keep_result) if each.storage]
            if keep_bytes:
                kept.append(Storage(self, f"{name}, besides", keep_bytes))
            on = [passes and not each.leaf and each.element_bytes == element_bytes for each in trained]
            left = [(x.name, x.n_bytes, x.key, x.leaf, same) for x, same in zip(trained, on, strict=True)]
            self.nodes.append(_Node(made.key, left, kept, scratch_bytes, self.section))
        return made

    def act(self, action: Callable[[], None]) -> None:
        """Leaves something to be done when the backward pass comes by here."""
        if self.recording:
            self.nodes.append(_Node(None, [], [], 0, self.section, action))

    def backward(self, last: object, n_bytes: float) -> None:
        """Plays what was recorded in reverse, from a gradient of n_bytes of the tensor whose key is last."""
        self.gradients[last] = Storage(self, "gradient that comes in", n_bytes)
        while self.nodes:
            node = self.nodes.pop()
            self.phase = f"{node.section} backward"
            if node.action:
                node.action()
            else:
                self._back(node)

    def rerun(self, function: Callable[..., Sized], *inputs: Sized) -> Sized:
        """function's result, of whose inside nothing is kept: the backward pass plays it again, then its backward."""
        recording, section, held = self.recording, self.section, list(inputs)
        self.recording = False
        result_key = (result := function(*inputs)).key
        self.recording = recording

        def again():
            others, self.nodes, self.section = self.nodes, [], section
            incoming = self.gradients.pop(result_key)
            last = function(*held).key
            self.cached.clear()
            self.gradients[last] = incoming
            del incoming
            while self.nodes:
                self._back(self.nodes.pop())
            held.clear()  # torch's checkpoint holds its inputs until the last of its operations is done
            self.nodes = others

        self.act(again)
        return result

    def shrink(self, share: float) -> None:
        """Of the parameters' gradients that came since the last call, only a share stays (reduce-scatter)."""
        for key in self.leaves.keys() - self.shrunk:
            self.leaves[key] = Storage(self, self.leaves[key].name, self.leaves[key].n_bytes * share)
            self.shrunk.add(key)

    def leaf_bytes(self) -> float:
        """Bytes of the parameters' gradients so far."""
        return sum(storage.n_bytes for storage in self.leaves.values())

    @no_type_check
    def _back(self, node: _Node) -> None:
        """One operation's backward: gradients made, then what it kept and its result's gradient let go."""
        mine = self.gradients.pop(node.result, None)
        if mine is None:
            return
        scratch = Storage(self, "backward, at work", node.scratch_bytes)
        made = []
        for name, n_bytes, key, leaf, same in node.inputs:
            title = f"{LEAF} {name}" if leaf else f"gradient of {name}"
            made.append((key, leaf, mine if same else Storage(self, title, n_bytes)))
        del scratch, mine
        node.kept.clear()
        while made:
            self._arrive(made)

    @no_type_check
    def _arrive(self, made: list[tuple[object, int, Storage]]) -> None:
        """The first gradient made reaches its tensor: the first there is taken over, a second one added in new memory.

        It is taken out of the list here, so that nobody else holds it.
        """
        key, leaf, new = made.pop(0)
        here = self.waiting if leaf else self.gradients
        here[key] = Storage(self, new.name, new.n_bytes) if key in here else new
        self.uses[key] += 1
        if leaf and self.uses[key] == leaf:
            del new
            new = self.waiting.pop(key)
            grown = self.leaf_growth != 1
            self.leaves[key] = Storage(self, new.name, new.n_bytes * self.leaf_growth) if grown else new
