"""A contest told as text, as JSON, and as a page; and many of them as a leaderboard."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape

from labkit import hardware
from labkit.capstone.contest import Contest, Ratio, told
from labkit.capstone.doubts import LIMITS, doubts, remarks
from labkit.capstone.running import Outcome
from labkit.grading import page


def ratio_told(ratio: Ratio) -> str:
    """`5.1 times (4.6 to 5.5)`."""
    return f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def rows(contest: Contest) -> list[tuple[str, str]]:
    """What is told of a contest, as headings and sentences."""
    slow, fast = (_reached(runs) for runs in (contest.baseline, contest.submission))
    before, after = contest.test
    made = contest.changes
    lists = (("new", made.new), ("changed", made.changed), ("gone", made.dropped), ("imports", made.imports))
    named = [f"{word} {', '.join(names)}" for word, names in lists if names]
    return [
        ("faster, by the wall clock", ratio_told(contest.ratio)),
        ("by the processor's time", ratio_told(contest.cpu_ratio)),
        ("reached", f"{contest.target:.3f} of the validation pictures in {fast} runs (baseline {slow})"),
        ("test accuracy", f"{after:.3f} (baseline {before:.3f})"),
        ("record", contest.record.said),
        ("changed", "; ".join([f"{made.added} lines added, {made.gone} gone", *named])),
        ("machine", hardware.machine().name),
    ]


def _reached(runs: Sequence[Outcome]) -> str:
    return f"{sum(one.reached for one in runs)} of {len(runs)}"


def text(contest: Contest) -> str:
    """A contest for a terminal."""
    told_rows = rows(contest)
    width = max(len(name) for name, _ in told_rows)
    seen = doubts(contest)
    look = [f"look at: {line}" for line in seen] or ["Nothing was seen that a person should look at."]
    return "\n".join(
        [contest.name, *(f"  {name:{width}}  {said}" for name, said in told_rows), *remarks(contest), *look, *LIMITS]
    )


def as_dict(contest: Contest) -> dict:
    """A contest as plain values, with every run."""
    ratios = {"ratio": asdict(contest.ratio), "cpu_ratio": asdict(contest.cpu_ratio)}
    before, after = contest.test
    told_of = {
        "test": {"baseline": before, "submission": after},
        "doubts": doubts(contest),
        "remarks": remarks(contest),
    }
    return asdict(contest) | ratios | told_of | {"machine": hardware.machine().name}


def as_json(contest: Contest) -> str:
    """A contest for programs."""
    return json.dumps(as_dict(contest), indent=1)


def html(contest: Contest) -> str:
    """A page that stands alone; what a submission says is text in it."""
    seen = doubts(contest)
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in rows(contest))
    remarked = "".join(f"<p>{escape(line)}</p>" for line in remarks(contest))
    doubted = "".join(f"<p>{escape(line)}</p>" for line in seen) or "<p>Nothing was seen.</p>"
    runs = "".join(
        f"<tr><td>{k}</td><td>{escape(told(slow))}</td><td>{escape(told(fast))}</td></tr>"
        for k, (slow, fast) in enumerate(zip(contest.baseline, contest.submission, strict=True), 1)
    )
    body = (
        f"<h1>{escape(contest.name)}</h1><section class='other'><dl>{items}</dl>{remarked}</section>"
        f"<section class='{'not' if seen else 'ok'}'><h2>To look at</h2>{doubted}"
        f"<p class='soft'>{escape(' '.join(LIMITS))}</p></section>"
        f"<div class='wide'><table><tr><th>pair</th><th>baseline</th><th>submission</th></tr>{runs}</table></div>"
    )
    return page.whole(f"Capstone: {contest.name}", body)


def ranked(contests: Sequence[Contest]) -> list[Contest]:
    """The best first: those without doubts and with every run at the target, by their ratio; then the others."""
    return sorted(contests, key=lambda one: (_fair(one), one.ratio.value), reverse=True)


def _fair(contest: Contest) -> bool:
    return all(one.reached for one in contest.submission) and not doubts(contest)


def leaderboard(contests: Sequence[Contest]) -> str:
    """The ranks of submissions, a line each; one that a person should look at has no rank."""
    lines, rank = [], 0
    for one in ranked(contests):
        rank += (fair := _fair(one))
        record = {True: "record makes it again", False: "record does not make it again", None: "no record"}
        told_of = f"{ratio_told(one.ratio)}, test {one.test[1]:.3f}, {record[one.record.same]}"
        lines.append(f"{rank if fair else '-':>3}  {one.name[:30]:30}  {told_of}")
        lines += [f"     look at: {line}" for line in doubts(one)]
    return "\n".join(lines)
