"""What run_ranks raises when ranks fail."""

from collections.abc import Mapping


class RankError(RuntimeError):
    """Ranks failed. Its text says which one did first and why, and where the others stood.

    kind: "raised" an exception, "exited" or was "killed" before it returned, "waited" in vain for other ranks,
    "differed" from them in a collective, "unpicklable" function or argument, "unreturnable" result.
    rank: the one that failed first, or None where it is no single one's fault. standing: where each rank stood.
    """

    def __init__(
        self, text: str, *, kind: str, rank: int | None = None, standing: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(text)
        self.kind, self.rank, self.standing = kind, rank, dict(standing or {})

    def __reduce__(self) -> tuple:
        """With what it was made of, for a way through other processes."""
        return _made_again, (str(self), self.kind, self.rank, self.standing)

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows: the ranks' own story, without the lines of the launcher."""
        return [f"RankError: {self}"]


def _made_again(text: str, kind: str, rank: int | None, standing: Mapping[int, str]) -> RankError:
    """A RankError that was pickled."""
    return RankError(text, kind=kind, rank=rank, standing=standing)
