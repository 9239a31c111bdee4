"""One message, shown as HTML in a notebook and as plain text elsewhere.

What differs from run to run (a time, a ratio) is marked with `varying`, so that a stored output can be compared with a
fresh one: tests/nbval_sanitize.cfg removes whatever stands between the marks, and indented `· ` lines in plain text.
"""

import sys
from html import escape

VARYING_OPEN, VARYING_CLOSE = "<!--varying-->", "<!--/varying-->"
VARYING_LINE = "    · "


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


def show(text: str, html: str | None = None) -> None:
    """Show a message: `html` where a notebook can draw it, `text` everywhere else."""
    if not in_notebook():
        print(text, flush=True)
        return
    from IPython.display import display

    html = f"<pre>{escape(text)}</pre>" if html is None else html
    display({"text/plain": text, "text/html": html}, raw=True)
