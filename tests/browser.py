"""JupyterLab in a headless Chromium, as the browser test needs it and as anyone who looks at a lesson does.

    python tests/browser.py notebooks/00_start_here.ipynb screenshots/00

runs a copy of the notebook from top to bottom and saves pictures of all of it, in the light and in the dark theme.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
COURSE = ("datasets", "labkit", "notebooks", "solutions")
NEEDS = "The browser test drives Chromium: on Debian or Ubuntu, sudo apt-get install chromium."
START_S, RUN_S, ANSWER_S = 180, 1200, 120  # a machine under load; each step ends as soon as it is done
THEMES = ("light", "dark")
expect.set_options(timeout=30_000)

# Settings that a person would make, for a course without surprises: no question about news, every cell in the page
# (and not only those near the visible ones), the theme that the system prefers.
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes": {"adaptive-theme": True},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
_OWN = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "LABKIT_HOME")
_OWN += ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
# A port that nobody has; and should this process be killed, a server that ends by itself when it has had no browser.
_OPTIONS = ("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0")
_OPTIONS += ("--MappingKernelManager.cull_idle_timeout=300", "--MappingKernelManager.cull_interval=60")
_OPTIONS += ("--ServerApp.shutdown_no_activity_timeout=300",)
_OF_TESTS = ("LABKIT_QUIET", "LABKIT_STRICT")  # a learner has neither

_FINISHED = """() => {
    const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(prompt => prompt.textContent);
    const failed = document.querySelector('[data-mime-type="application/vnd.jupyter.stderr"]');
    const idle = document.querySelector('.jp-Notebook-ExecutionIndicator[data-status="idle"]');
    return idle && prompts.length && (failed || prompts.every(prompt => /\\[\\d+\\]/.test(prompt)));
}"""

_CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")
_EDGES = """panel => [...panel.querySelectorAll('.jp-Cell')].map(
    cell => Math.ceil(cell.getBoundingClientRect().bottom - panel.getBoundingClientRect().top + panel.scrollTop))"""

_SHOW_ONLY = """cells => document.querySelectorAll('.jp-Notebook .jp-Cell').forEach(
    cell => { cell.style.display = !cells || cells.includes(cell) ? '' : 'none'; })"""


def chromium() -> str | None:
    """The path of a Chromium or Chrome, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A running JupyterLab: its address, its token, the copy of the course that it serves, its environment."""

    url: str
    token: str
    folder: Path
    env: dict[str, str]

    def labkit(self, *words: str) -> str:
        """What the labkit command prints for the learner of this JupyterLab."""
        command = [sys.executable, "-m", "labkit.cli", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, encoding="utf-8", check=True, timeout=ANSWER_S
        )
        return done.stdout


@contextmanager
def lab(folder: Path, lesson: str, budget: str | None = None) -> Iterator[Lab]:
    """`labkit lab` on a copy of the course made in `folder`, with settings, progress and a port of its own.

    budget: that of its kernels, where it is not the one of this process.
    """
    course = folder / "course"
    for name in COURSE:
        shutil.copytree(ROOT / name, course / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    env = _environment(folder) | ({"LABKIT_BUDGET": budget} if budget else {})
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "labkit.cli", "lab", lesson, *_OPTIONS, f"--IdentityProvider.token={token}"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=course, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield Lab(url=_address(server, folder), token=token, folder=course, env=env)
        finally:
            _stop(server)


def _environment(folder: Path) -> dict[str, str]:
    """This environment, with everything that Jupyter and labkit write led into `folder`."""
    foreign = ("JUPYTER", "JPY_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign) and key not in _OF_TESTS}
    env |= {name: str(folder / name.lower()) for name in _OWN}
    for plugin, settings in _SETTINGS.items():
        path = Path(env["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", f"{plugin}.jupyterlab-settings")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), encoding="utf-8")
    return env


def _address(server: subprocess.Popen, folder: Path) -> str:
    """The server's address, once it has written it down."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        for path in (folder / "jupyter_runtime_dir").glob("jpserver-*.json"):
            try:
                return json.loads(path.read_text(encoding="utf-8"))["url"]
            except ValueError:
                pass  # it is being written
        time.sleep(0.1)
    said = (folder / "server.log").read_text(encoding="utf-8", errors="replace")[-3000:]
    raise RuntimeError(f"JupyterLab did not start within {START_S} s (exit code {server.poll()}):\n{said}")


def _stop(server: subprocess.Popen) -> None:
    """End the server; it ends its kernels first, and a kernel whose server was killed ends itself."""
    server.terminate()
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def browser_page(folder: Path, *, width: int = 1300, height: int = 900) -> Iterator[Page]:
    """A page in a headless Chromium that keeps its own files in `folder`."""
    env = os.environ | {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), env=env)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.set_default_timeout(1000 * ANSWER_S)
            page.set_default_navigation_timeout(1000 * START_S)
            yield page
        finally:
            browser.close()


class Notebook:
    """A notebook that is open in JupyterLab, used with mouse and keyboard."""

    def __init__(self, page: Page, lab: Lab, path: str | None = None) -> None:
        """Open `path`, or whatever `labkit lab` opens."""
        self.page = page
        page.goto(f"{lab.url}{f'lab/tree/{path}' if path else ''}?token={lab.token}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=1000 * START_S)
        # JupyterLab silently drops what is run before there is a kernel.
        page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for(timeout=1000 * START_S)

    def run_all(self) -> None:
        """Run > Run All Cells, until the kernel is idle and every cell is done or one has failed."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(_FINISHED, timeout=1000 * RUN_S, polling=250)

    def cell(self, start: str) -> Locator:
        """The code cell that has a line starting with `start`."""
        line = self.page.locator(".cm-line").filter(has_text=re.compile(rf"^{re.escape(start)}"))
        return self.page.locator(".jp-CodeCell").filter(has=line)

    def code(self, cell: Locator) -> str:
        """What stands in a cell's editor."""
        return "\n".join(cell.locator(".cm-line").all_text_contents())

    def type_code(self, cell: Locator, code: str) -> None:
        """Replace a cell's code key by key; after Enter, the editor's own indentation gives way to ours."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        for number, line in enumerate(code.splitlines()):
            if number:
                self.page.keyboard.press("Enter")
                self.page.keyboard.press("Shift+Home")
            self.page.keyboard.press("Delete")
            self.page.keyboard.type(line)
        expect(cell.locator(".cm-line")).to_have_count(len(code.splitlines()))

    def run(self, cell: Locator) -> None:
        """Shift+Enter in a cell, until it is done."""
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.text_content()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")
        expect(prompt).not_to_have_text(before, timeout=1000 * RUN_S)
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=1000 * RUN_S)

    def outputs(self) -> list[str]:
        """The text of every output."""
        return self.page.locator(".jp-Notebook .jp-OutputArea-output").all_inner_texts()

    def faults(self) -> list[str]:
        """Every traceback, and whatever else went to stderr: JupyterLab draws both alike."""
        return self.page.locator('.jp-Notebook [data-mime-type="application/vnd.jupyter.stderr"]').all_inner_texts()

    def set_theme(self, theme: str) -> None:
        """The `light` or the `dark` theme, as if the system's preference had changed."""
        self.page.emulate_media(color_scheme=theme)
        light = "true" if theme == "light" else "false"
        self.page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        self.page.wait_for_function("() => [...document.images].every(image => image.complete)")

    def contrasts(self) -> list[tuple[str, float]]:
        """Every visible piece of text in the outputs, with its contrast against what lies behind it."""
        return [(text, ratio) for text, ratio in self.page.evaluate(_CONTRASTS)]

    def tab_to(self, cell: Locator, target: Locator) -> None:
        """Press Tab, from a cell on, until `target` has the focus."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Escape")
        for _ in range(10):
            self.page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError("the Tab key does not get there")

    def pictures(self, stem: Path) -> list[Path]:
        """The whole notebook as stem-00.png, stem-01.png, ..., cut between cells where that is possible."""
        panel = self.page.locator(".jp-Notebook .jp-WindowedPanel-outer")
        self.page.mouse.move(0, 0)
        box, edges, saved, y = panel.bounding_box(), panel.evaluate(_EDGES), [], 0
        while y < edges[-1]:
            end = max((edge for edge in edges if y < edge <= y + box["height"]), default=y + int(box["height"]))
            scrolled = panel.evaluate("(panel, y) => { panel.scrollTop = y; return panel.scrollTop; }", y)
            clip = {"x": box["x"], "y": box["y"] + y - scrolled, "width": box["width"], "height": end - y}
            saved.append(stem.with_name(f"{stem.name}-{len(saved):02}.png"))
            self.page.screenshot(path=saved[-1], clip=clip)
            y = end
        return saved

    def picture_of(self, cells: Sequence[Locator], path: Path) -> None:
        """Some cells of the notebook, one below the other, as one picture."""
        size = self.page.viewport_size
        self.page.set_viewport_size({"width": size["width"], "height": 2400})
        self.page.evaluate(_SHOW_ONLY, [cell.element_handle() for cell in cells])
        (saved,) = self.pictures(path.with_suffix(""))
        saved.replace(path)
        self.page.evaluate(_SHOW_ONLY, None)
        self.page.set_viewport_size(size)


def look(path: Path, out: Path, *, width: int, height: int) -> list[str]:
    """Run a copy of the notebook at `path` and save pictures of it in `out`; returns what went wrong, a line each."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with lab(folder, "00") as server, browser_page(folder, width=width, height=height) as page:
            place = f"{path.resolve().parent.name}/{path.name}"
            (server.folder / place).parent.mkdir(exist_ok=True)
            shutil.copy(path, server.folder / place)
            notebook = Notebook(page, server, place)
            notebook.run_all()
            for theme in THEMES:
                notebook.set_theme(theme)
                for saved in notebook.pictures(out / f"{path.stem}-{theme}"):
                    print(saved)
            return notebook.faults()


def main(words: Sequence[str] | None = None) -> int:
    """The command line; 1 where a cell failed or wrote to stderr, 2 where there is no browser."""
    parser = argparse.ArgumentParser(description="Run a notebook in JupyterLab; save pictures of it in both themes.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("out", type=Path, help="a folder for the pictures")
    parser.add_argument("--width", type=int, default=1300, help="of the window, in px (default: 1300)")
    parser.add_argument("--height", type=int, default=1500, help="of the window, in px (default: 1500)")
    given = parser.parse_args(words)
    if chromium() is None:
        print(NEEDS, file=sys.stderr)
        return 2
    try:
        problems = look(given.notebook, given.out, width=given.width, height=given.height)
    except (Error, OSError, RuntimeError) as error:
        problems = [str(error)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
