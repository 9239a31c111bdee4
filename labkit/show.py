"""One message, shown as HTML in a notebook and as plain text elsewhere.

What differs from run to run (a time, a ratio) is marked with `varying`, so that a stored output can be compared with a
fresh one: tests/nbval_sanitize.cfg removes whatever stands between the marks, and indented `· ` lines in plain text.
"""

import codecs
import sys
from collections.abc import Collection, Mapping, Sequence
from html import escape

VARYING_OPEN, VARYING_CLOSE = "<!--varying-->", "<!--/varying-->"
VARYING_LINE = "    · "
_PLAIN = {"✓": "v", "✗": "x", "–": "-", "·": ".", "µ": "u", "×": "x"}


def varying_html(html: str) -> str:
    """`html`, marked as something that a stored output is not held to."""
    return f"{VARYING_OPEN}{html}{VARYING_CLOSE}"


def varying_text(text: str) -> str:
    """`text`, each line marked as something that a stored output is not held to."""
    return "\n".join(VARYING_LINE + line for line in text.splitlines())


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code (a terminal IPython shows plain text)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


_COLOURS = {
    "good": "var(--jp-success-color1, #388e3c)",
    "bad": "var(--jp-error-color1, #d32f2f)",
    "neutral": "var(--jp-border-color1, #8a8a8a)",
}


def panel(tone: str, html: str) -> str:
    """`html` with a bar at its left in the colour of `good`, `bad` or `neutral`; text keeps the theme's own colour."""
    style = f"border-left: 4px solid {_COLOURS[tone]}; padding: 2px 0 2px 12px; margin: 4px 0; max-width: 60em"
    return f'<div style="{style}">{html}</div>'


def lenient_streams() -> None:
    """Have stdout and stderr write a plain sign for what their encoding lacks (a Windows pipe has no ✓), not raise."""
    codecs.register_error("labkit", _plain_signs)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.errors != "labkit":
            stream.reconfigure(errors="labkit")


def _plain_signs(error: UnicodeEncodeError) -> tuple[str, int]:
    """ASCII in place of what cannot be encoded: a held and a refuted claim stay two different signs."""
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def show(text: str, html: str | None = None, views: Mapping[str, object] | None = None) -> None:
    """Show a message: `html` where a notebook can draw it, `text` elsewhere; `views` are richer forms, by type."""
    if not in_notebook():
        lenient_streams()
        print(text, flush=True)
        return
    from IPython.display import display

    html = f"<pre>{escape(text)}</pre>" if html is None else html
    display({"text/plain": text, "text/html": html, **(views or {})}, raw=True)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    varying: bool | Sequence[str] = False,
    notes: Sequence[str] = (),
) -> None:
    """Show a table: the first column to the left, the others to the right, the caption above it, notes below.

    varying: a stored output is held to the caption, as HTML to the headings too, and not to rows and notes; or the
    headings of the columns alone that it is not held to (as text they follow in lines of their own).
    """
    cells = [[str(cell) for cell in row] for row in (headings, *rows)]
    if isinstance(varying, bool):
        free, shown = (), "\n".join([*_lines(cells), *notes])
        shown = varying_text(shown) if varying else shown
    else:
        free = [i for i, heading in enumerate(headings) if heading in varying]
        held = [[cell for i, cell in enumerate(row) if i not in free] for row in cells]
        apart = [[row[0], *(row[i] for i in free)] for row in cells]
        shown = "\n".join([*_lines(held), *notes, varying_text("\n".join(_lines(apart)))])
    text = f"{caption}\n{shown}" if caption else shown
    body = "".join(_html_row(row, "td", free) for row in cells[1:])
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    body, below = (varying_html(body), varying_html(below)) if varying is True else (body, below)
    html = f"<table><thead>{_html_row(cells[0], 'th')}</thead><tbody>{body}</tbody></table>{below}"
    show(text, f"<p>{escape(caption)}</p>{html}" if caption else html)


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as text, each column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]


def _html_row(cells: Sequence[str], tag: str, free: Collection[int] = ()) -> str:
    """One row of `td` or `th`, its first cell aligned to the left, the cells of `free` marked as varying."""
    shown = [varying_html(escape(cell)) if i in free else escape(cell) for i, cell in enumerate(cells)]
    first = f'<{tag} style="text-align:left">{shown[0]}</{tag}>'
    return f"<tr>{first}{''.join(f'<{tag}>{cell}</{tag}>' for cell in shown[1:])}</tr>"
