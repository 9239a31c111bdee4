"""What all pages of a graded class are made of: one style for light and dark, phone and desk, and text made harmless.

A page fetches nothing and runs nothing; whatever a student or a process wrote is text in it.
"""

import re
from html import escape

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1d21; --soft: #575c64; --line: #d3d6db; --card: #f5f6f8;
  --ok: #1c6b37; --not: #9a3c0b; --other: #575c64; }
@media (prefers-color-scheme: dark) { :root { --back: #15171b; --text: #e7e8ea; --soft: #a8adb5; --line: #3a3f47;
  --card: #1f2329; --ok: #74d391; --not: #f2a571; --other: #a8adb5; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 52em;
  margin: 0 auto; padding: 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.4em; margin: .4em 0; } h2 { font-size: 1.1em; margin: 0 0 .3em; } p { margin: .4em 0; }
section { background: var(--card); border-left: .3em solid var(--other); border-radius: .3em; padding: .7em .9em;
  margin: 1em 0; }
section.ok { border-color: var(--ok); } section.not { border-color: var(--not); }
.ok > .said { color: var(--ok); } .not > .said { color: var(--not); } .said { font-weight: 600; }
pre { white-space: pre-wrap; margin: .3em 0; font: .88em/1.45 ui-monospace, monospace; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15em .8em; margin: .4em 0; }
dt { color: var(--soft); } dd { margin: 0; font: .88em/1.6 ui-monospace, monospace; white-space: pre-wrap; }
small, .soft { color: var(--soft); } summary { cursor: pointer; margin: .3em 0; } a { color: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { text-align: left; padding: .2em .8em .2em 0; vertical-align: top; overflow-wrap: normal; }
tr + tr td { border-top: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: .8em; border-radius: .2em; overflow: hidden; background: var(--line); margin: .4em 0; }
.bar i.ok { background: var(--ok); } .bar i.not { background: var(--not); } .bar i.other { background: var(--other); }
@media (max-width: 34em) { dl { display: block; } dd { margin: 0 0 .4em; } }
"""
SAID = {
    "ok": "right",
    "wrong": "not right yet",
    "error": "raised an error",
    "timeout": "took too long",
    "memory": "took too much memory",
    "died": "ended its own process",
    "output-limit": "printed too much",
    "missing": "missing",
    "not-attempted": "not attempted",
    "unreadable": "in a notebook that cannot be read",
    "tampered": "changed what reports to the grader",
    "manual": "waits for a person to grade it",
    "ungraded": "not graded: a fault of the grader",
}
"""Each status, as a student reads it."""
UNTRIED = ("missing", "not-attempted", "unreadable", "ungraded", "manual")
"""Statuses of an exercise of which nothing was judged."""
_LABELLED = re.compile(r"(\w[\w ]{0,20}?) {2,}(\S.*)")


def kind(status: str) -> str:
    """How a status looks: `ok`, `not` or `other`."""
    return "ok" if status == "ok" else "other" if status in UNTRIED else "not"


def whole(title: str, body: str) -> str:
    """A whole page that fetches nothing; the title is text, the body is HTML."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    return (
        f'<!doctype html><html lang="en"><head>{head}{policy}<title>{text(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def text(said: str) -> str:
    """A text as HTML: nothing in it is markup, and what would turn the line round or cannot be seen is written out."""
    return escape("".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in said))


def split(message: str) -> tuple[str, list[tuple[str, str]]]:
    """A verdict's message as its headline and its labelled lines; a line without a label belongs to the headline."""
    heads, lines = [], []
    for line in message.split("\n"):
        found = _LABELLED.fullmatch(line) if heads else None
        lines += [(found[1], found[2])] if found else []
        heads += [] if found else [line]
    return "\n".join(heads), lines


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are HTML already, which scrolls where it is wider than the page; no rows, nothing."""
    if not rows:
        return ""
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{one}</td>' for one in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
