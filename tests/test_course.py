"""The splitter on small sources, and the anatomy of every real lesson."""

import ast
import re
from statistics import median

import fabricated
import pytest

from labkit import build, course
from labkit.course import CourseError

SECTIONS = (
    "question",
    "predict",
    "build",
    "measure",
    "change one thing",
    "exercises",
    "limits",
    "further questions",
    "sources",
)
LESSONS = course.lessons()
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def test_cells_know_their_kind_and_line():
    text = "# title: T\n# %% [markdown]\n# # T\n#\n# text\n\n# %%\n\n\nx = 1\n\n\n# %% a title\n# a comment\ny = 2  \n"
    cells = [(cell.kind, cell.source, cell.first_line) for cell in course.split_cells(text)]
    assert cells == [("markdown", "# T\n\ntext", 3), ("code", "x = 1", 10), ("code", "# a comment\ny = 2", 14)]


@pytest.mark.parametrize("text", ["", "x = 1\n", "# title: T\n"])
def test_a_source_without_marks_has_no_cells(text):
    assert course.split_cells(text) == []


def test_empty_cells_and_the_end_of_the_file():
    cells = course.split_cells("# %%\n# %%\n\n\n# %% [markdown]")
    assert [cell.source for cell in cells] == ["", "", ""]


def test_a_markdown_cell_with_code_in_it_is_named():
    with pytest.raises(CourseError, match="Line 3"):
        course.split_cells("# %% [markdown]\n# text\nx = 1\n")


@pytest.mark.parametrize("name", ["1", "01", "01_toy", "toy", "01_toy.py", " 01 "])
def test_a_lesson_has_many_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(fabricated.course(tmp_path))
    lesson = course.find(name)
    assert (lesson.name, lesson.title, lesson.minutes) == ("01_toy", "Toy", 5)
    assert lesson.gains == {"cpu": "everything", "gpu": "the same, faster"}
    assert lesson.student == lesson.source.parents[1] / "notebooks" / "01_toy.ipynb"


@pytest.mark.parametrize("name", ["", " ", ".py"])
def test_no_name_is_no_lesson(tmp_path, monkeypatch, name):
    monkeypatch.chdir(fabricated.course(tmp_path, n00_start=fabricated.LESSON))
    with pytest.raises(CourseError, match="There is no lesson"):
        course.find(name)


def test_code_is_kept_to_the_letter():
    """Else a multi-line string is another one in the notebook than in the source."""
    code = 'x = """a  \n\x0c\n\u2028b\x1c\t\n"""\ny = 1'
    (cell, after) = course.split_cells(f"# %%\n\n{code}\n\n# %%\nz = 2\n")
    assert (cell.source, after.first_line) == (code, 10)


def test_notebook_and_source_hold_the_same_code(tmp_path, monkeypatch):
    code = 'x = """a  \n\x0c\n\u2028b\x1c\t\n"""\ny = 1'
    monkeypatch.chdir(fabricated.course(tmp_path, n01_toy=f"# %%\n{code}\n"))
    (cell,) = build.convert(course.find("01"))
    assert cell.student == cell.solution == code
    assert cell.lines == tuple(range(6, 11))


def _write(folder, name, data):
    (folder / "solutions" / name).write_bytes(data)


HEADER = fabricated.HEADER.encode()


def test_a_byte_order_mark_is_no_part_of_the_source(tmp_path, monkeypatch):
    monkeypatch.chdir(fabricated.course(tmp_path))
    _write(tmp_path, "01_toy.py", b"\xef\xbb\xbf" + HEADER)
    assert course.find("01").text() == fabricated.HEADER


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("01_toy.py", HEADER + b"# caf\xe9\n", "01_toy.py is not UTF-8"),
        ("01_toy.py", HEADER.replace(b" 5", " ²".encode()), "01_toy.py: its header needs a line '# minutes: ...'"),
        ("01_other.py", HEADER, "01_other.py and 01_toy.py"),
    ],
)
def test_a_source_that_cannot_be_a_lesson_is_a_sentence(tmp_path, monkeypatch, name, data, said):
    monkeypatch.chdir(fabricated.course(tmp_path))
    _write(tmp_path, name, data)
    with pytest.raises(CourseError, match=re.escape(said)):
        course.lessons()


def test_the_course_is_found_from_a_folder_inside_it(tmp_path, monkeypatch):
    root = fabricated.course(tmp_path)
    monkeypatch.chdir(root / "notebooks")
    assert course.root() == root
    assert [lesson.name for lesson in course.lessons()] == ["01_toy"]


def code_lines(text):
    """Lines that hold code: neither blank nor only a comment, docstrings left out."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(1 for i, line in lines if line.strip() and not line.strip().startswith("#") and i not in documented)


def prose_words(text, *, headings):
    """The words of a markdown cell: addresses and code blocks left out, headings if asked."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|<?https?://\S+", " ", text)
    lines = [line for line in text.splitlines() if headings or not line.startswith("#")]
    return len(re.findall(r"\w[\w'’.,/-]*", "\n".join(lines)))


def headings(lesson):
    """Every heading as (level, text)."""
    markdown = "\n".join(cell.solution for cell in build.convert(lesson) if cell.kind == "markdown")
    return [(len(marks), text.strip()) for marks, text in re.findall(r"^(#+) (.+)$", markdown, re.MULTILINE)]


@every_lesson
def test_cells_are_short(lesson):
    code = [cell for cell in build.convert(lesson) if cell.kind == "code"]
    counts = [code_lines(cell.solution) for cell in code]
    assert median(counts) <= 6, f"the median code cell has {median(counts)} lines"
    long = {cell.lines[0]: count for cell, count in zip(code, counts, strict=True) if count > 25}
    assert not long, f"code cells of more than 25 lines, by source line: {long}"
    wide = [line for cell in code for line in cell.solution.splitlines() if len(line) > 100]
    assert not wide, f"lines of more than 100 characters, which a notebook cuts off: {wide}"


@every_lesson
def test_there_is_prose_between_code(lesson):
    kinds = "".join(cell.kind[0] for cell in build.convert(lesson))
    assert "ccc" not in kinds, "three code cells without prose between"
    assert kinds[0] == "m"


@every_lesson
def test_prose_is_one_idea_a_cell(lesson):
    cells = [cell.solution for cell in build.convert(lesson) if cell.kind == "markdown"]
    off = {
        text.splitlines()[0][:50]: prose_words(text, headings=True)
        for text in cells
        if prose_words(text, headings=True) < 20 or prose_words(text, headings=False) > 90
    }
    assert not off, f"markdown cells outside 20 to 90 words: {off}"


@every_lesson
def test_sections_stand_in_order(lesson):
    level, title = headings(lesson)[0]
    assert level == 1
    assert title.startswith(f"{lesson.number} · ")
    found = [text.lower() for level, text in headings(lesson) if level == 2 and "Exercise " not in text]
    assert len(found) == len(SECTIONS), found
    for text, section in zip(found, SECTIONS, strict=True):
        assert text.startswith(section), f"{text!r} where the section {section!r} belongs"


@every_lesson
def test_exercises_are_numbered_and_say_minutes_and_difficulty(lesson):
    titled = [text for _, text in headings(lesson) if "Exercise " in text]
    for count, text in enumerate(titled, start=1):
        pattern = rf"Exercise {int(lesson.number)}\.{count} · .+ \(\d+ min, (easy|medium|hard)\)"
        assert re.fullmatch(pattern, text), (
            f"{text!r} is not 'Exercise {int(lesson.number)}.{count} · Name (8 min, easy)'"
        )


@every_lesson
def test_every_exercise_has_a_stub_that_raises_and_a_check(lesson):
    student = "\n".join(cell.student for cell in build.convert(lesson) if cell.kind == "code")
    for number in build.exercises(lesson):
        assert f'raise NotImplementedError("exercise {number}")' in student, f"exercise {number} has no solution region"
    assert len(re.findall(r"^check\(\w+", student, re.MULTILINE)) == len(build.exercises(lesson))


@every_lesson
def test_every_cell_is_plain_python(lesson):
    """No magics: the source runs as a program."""
    for cell in build.convert(lesson):
        if cell.kind == "code":
            ast.parse(cell.student)
            ast.parse(cell.solution)


@every_lesson
def test_stored_outputs_refute_nothing_and_leave_only_gpus_open(lesson):
    """A claim of tier cpu is never undecided, and what is stored was run on a CPU."""
    if not (found := build.stored(lesson.solution)) or "source_sha256" not in found.noted:
        pytest.fail(f"{lesson.solution.name} was never executed: run labkit build --execute {lesson.number}")
    for output in (output for outputs in found.outputs for output in outputs):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"
        text = "".join(output.get("text", output.get("data", {}).get("text/plain", [])))
        assert not re.search(r"^✗ ", text, re.MULTILINE), text
        for needs in re.findall(r"^– .* · needs: (.*)$", text, re.MULTILINE):
            assert "GPU" in needs, text


def test_names_of_lessons_are_unique():
    assert len({lesson.number for lesson in LESSONS}) == len(LESSONS)
    assert len({lesson.topic for lesson in LESSONS}) == len(LESSONS)
