"""What a learner does with a lesson, in a real browser: run all, predict, fail an exercise, solve it, in both themes.

Lesson 01 runs in full; the others run on a smoke budget. One JupyterLab and one page serve all tests
of a lesson, in the order of the file. Pictures of what the browser showed are kept in screenshots/. One of them,
lesson.png, is the README's: copy it to tests/pictures/ where that should be renewed.
"""

import ast
import inspect
import re
from importlib import import_module

import browser
import pytest
from playwright.sync_api import expect

from labkit import build, course
from labkit.repro import budget

pytestmark = pytest.mark.browser

IN_FULL = "01"
NUMBERS = [IN_FULL, *(lesson.number for lesson in course.lessons() if lesson.number != IN_FULL)]
PICTURES = browser.ROOT / "screenshots"
READABLE = 4.5  # the contrast that WCAG 2.2 asks of text, criterion 1.4.3


@pytest.fixture(scope="module", params=[pytest.param(NUMBERS[0], marks=pytest.mark.alone), *NUMBERS[1:]])
def lesson(request):
    """The number of the lesson."""
    return request.param


def exercises(lesson):
    """The exercises of a lesson."""
    return import_module(f"labkit.checks.nb{lesson}").EXERCISES


@pytest.fixture(scope="module")
def lab(lesson, tmp_path_factory):
    """A JupyterLab for this lesson; its log goes to screenshots/ when it ends."""
    if browser.chromium() is None:
        pytest.skip(browser.NEEDS)
    PICTURES.mkdir(exist_ok=True)
    folder = tmp_path_factory.mktemp("lab")
    try:
        with browser.lab(folder, lesson, None if lesson == IN_FULL else "smoke") as running:
            yield running
    finally:
        (folder / "server.log").replace(PICTURES / f"server-{lesson}.log")


@pytest.fixture(scope="module")
def opened(lab, lesson, tmp_path_factory):
    """The notebook that `labkit lab NN` opens, run from top to bottom."""
    with browser.browser_page(tmp_path_factory.mktemp("browser")) as page:
        try:
            notebook = browser.Notebook(page, lab)
            notebook.run_all()
        except browser.Error:
            page.screenshot(path=PICTURES / f"not-run-{lesson}.png")
            raise
        yield notebook


@pytest.fixture
def notebook(opened, request):
    """The same notebook; how it looked at the end of each test is kept."""
    yield opened
    opened.page.screenshot(path=PICTURES / f"{request.node.name}.png")


def body(fn):
    """The lines of a function's body, its docstring left out."""
    lines = inspect.getsource(inspect.unwrap(fn)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    first = tree.body[1] if ast.get_docstring(tree) else tree.body[0]
    return lines[first.lineno - 1 :]


def filled(stub, fn):
    """An exercise's stub with the body of `fn` in the place of its last line, which raises."""
    head = stub.splitlines()
    assert "NotImplementedError" in head.pop()
    return "\n".join([*head, *body(fn)])


def test_run_all_goes_through_the_untouched_notebook(notebook, lab, lesson):
    assert re.search(rf"/lab/tree/notebooks/{lesson}_\w+\.ipynb$", notebook.page.url), "what labkit lab opens"
    assert not notebook.faults(), "no traceback, and nothing on stderr"
    assert not [text for text in notebook.outputs() if "✗" in text], "no claim is refuted, no check has failed"
    smoke = lesson != IN_FULL or budget() == "smoke"
    assert smoke or any(text.startswith("✓") for text in notebook.outputs()), "claims hold"
    progress = lab.labkit("progress")
    for exercise in exercises(lesson):
        expect(notebook.cell(f"check({exercise.name})")).to_contain_text(f"{exercise.number} · {exercise.name} · not")
        assert f"· {exercise.number}" in progress


def test_predictions_are_set_with_the_keyboard(notebook):
    predictions = notebook.cell("predict(").all()
    assert predictions
    for asked in predictions:
        name = re.search(r'predict\(\s*"(\w+)"', notebook.code(asked))[1]
        revealed = notebook.cell(f'reveal("{name}"')
        expect(revealed).to_contain_text("default guess, left as it was")
        handle, readout = asked.locator(".noUi-handle"), asked.locator(".widget-readout")
        before = readout.inner_text()
        notebook.tab_to(asked, handle)
        at_its_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        notebook.page.keyboard.press("ArrowLeft" if at_its_end else "ArrowRight")
        expect(readout).not_to_have_text(before)
        notebook.run(revealed)
        expect(revealed).to_contain_text("your guess: ")
        guess = re.search(r"your guess: ([-\d.e+]+)", revealed.inner_text())[1]
        assert float(guess) == pytest.approx(float(readout.inner_text().replace(",", "")), rel=0.01)


def stands_alone(fn):
    """Whether a wrong answer can be typed as it is: it calls nothing else of the file that it comes from."""
    called = (fn.__globals__.get(name) for name in fn.__code__.co_names)
    return all(getattr(each, "__module__", None) != fn.__module__ for each in called)


def solution(lesson, exercise):
    """The cell that solves the exercise, as the lesson has it."""
    cells = build.convert(course.find(lesson))
    return next(cell.solution for cell in cells if cell.kind == "code" and f"def {exercise.name}(" in cell.solution)


def test_an_exercise_is_solved_by_typing(notebook, lab, lesson):
    exercise = exercises(lesson)[0]
    wrong_answers = import_module(f"wrong_answers.nb{lesson}").WRONG[exercise.number]
    wrong, complaint = next((fn, complaint) for _, fn, complaint in wrong_answers if stands_alone(fn))
    answer, verdict = notebook.cell(f"def {exercise.name}("), notebook.cell(f"check({exercise.name})")
    stub = notebook.code(answer)
    for code, mark, message in ((filled(stub, wrong), "✗", complaint), (solution(lesson, exercise), "✓", "right")):
        notebook.type_code(answer, code)
        assert notebook.code(answer) == code, "the editor holds what was typed"
        notebook.run(answer)
        notebook.run(verdict)
        expect(verdict).to_contain_text(f"{mark} Exercise {exercise.number} · {exercise.name} · ")
        expect(verdict).to_contain_text(re.compile(message))
        if mark == "✗" and lesson == IN_FULL:
            claim = notebook.cell("claim(").first
            figure = claim.locator("xpath=preceding::*[contains(@class, 'jp-CodeCell')][.//img]").last
            notebook.picture_of([figure, claim, answer, verdict], PICTURES / "lesson.png")
        assert (f"✓ {exercise.number}" in lab.labkit("progress")) == (mark == "✓")
    assert not notebook.faults()


@pytest.mark.parametrize("theme", browser.THEMES)
def test_every_output_can_be_read(notebook, theme, lesson, capsys):
    notebook.set_theme(theme)
    figure = notebook.page.locator(".jp-CodeCell").filter(has=notebook.page.locator("img")).last
    shown = {"figure": figure, "prediction": notebook.cell("predict("), "check": notebook.cell("check(")}
    for what, cell in shown.items():
        cell.first.screenshot(path=PICTURES / f"{what}-{theme}-{lesson}.png")
    contrasts = notebook.contrasts()
    assert any("Exercise" in text for text, _ in contrasts), "verdicts are among the outputs"
    assert any("Your guess" in text for text, _ in contrasts), "so are the controls"
    assert not [pair for pair in contrasts if pair[1] < READABLE]
    with capsys.disabled():
        print(f"\nPictures of lesson {lesson} in the {theme} theme: {PICTURES}")
