"""The page for the room: its tables add up, agree with the lessons, and name commands and variables that are there."""

import math
import re
import shlex
from pathlib import Path

import pytest
import typer

from labkit import course, repro
from labkit.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "notebooks" / "INSTRUCTOR.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
LESSONS = {lesson.number: lesson for lesson in course.lessons()}
CAPSTONE = "21"  # two hours, most of them for a script of one's own: no sections to deal out
NUMBERS = sorted({*LESSONS, CAPSTONE})
PARTS = ("question, predict", "build", "measure", "change", "exercises", "limits")
WHOLE = "whole"
DEALT = {  # the sections of a lesson whose words decide a part's minutes
    "question, predict": ("question", "predict"),
    "build": ("build",),
    "measure": ("measure",),
    "change": ("change one thing",),
    "limits": ("limits", "further questions"),
}
WORDS_MIN = 2  # by how much a part may lie beside its share of the words: text changes by a line now and then
USAGE_ERROR = typer.BadParameter.__mro__[1]  # click's, or that of the click within typer: versions differ
EVERY_SHOW = ("Two hours", "One day", "Three days, day 1", "Three days, day 2", "Three days, day 3")


def tables(page, heading):
    """The tables below a heading, each a list of rows as {column: cell}."""
    begin = re.search(rf"^#+ {re.escape(heading)}.*\n", page, re.MULTILINE)
    below = re.split(r"^#", page[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE)
    return [_rows(block.splitlines()) for block in blocks]


def _rows(lines):
    head, _, *body = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in body]


def table(heading, page=PAGE):
    """The first table below a heading."""
    return tables(page, heading)[0]


def exercise_minutes(number):
    """{"4.2": 25, ...}, as the headings of a lesson's exercises say."""
    found = re.findall(r"### Exercise (\d+\.\d+) · .*?\((\d+) min", LESSONS[number].text())
    return {name: int(minutes) for name, minutes in found}


def whole(number):
    """A lesson's minutes as its header says."""
    return LESSONS[number].minutes if number in LESSONS else 120


SECTIONS = {row["lesson"]: row for row in table("Minutes of each lesson, by section")}


def part_minutes(number, part):
    """What `all but 1.3`, `exercises but 4.2` or `build` of a lesson takes."""
    part, _, left_out = part.partition(" but ")
    column = {"all": WHOLE}.get(part, part)
    omitted = left_out.split(", ") if left_out else []
    return int(SECTIONS[number][column]) - sum(exercise_minutes(number)[each] for each in omitted)


def block_minutes(number):
    """What the exercises of a lesson take in the three days: those that go home are left out."""
    (part,) = [row["part"] for day in EVERY_SHOW[2:] for row in table(f"{day}:") if row["lesson"] == number]
    return part_minutes(number, part.replace("all", "exercises"))


def words(number):
    """How many words each section of a lesson has, by its name in small letters."""
    section, counted = "", {}
    for cell in course.split_cells(LESSONS[number].text()):
        for line in cell.source.splitlines() if cell.kind == "markdown" else ():
            section = line[3:].lower() if line.startswith("## ") else section
            counted[section] = counted.get(section, 0) + len(line.split())
    return counted


def agrees(said, number):
    """Whether seconds on the page are those of a recording on the machine that the page names, or say nothing.

    A new recording on the same machine may differ by a quarter or five seconds, and the page still stands.
    """
    name = re.search(r"`labkit record NN` on \*(.+?)\*", PAGE)[1]
    made = repro.recordings(LESSONS[number].name) if number in LESSONS else []
    measured = [each.results["seconds"] for each in made if each.hardware == name]
    return said == "–" or any(abs(int(said) - each) <= max(5, each / 4) for each in measured)


def test_every_lesson_stands_in_each_table_in_order():
    hardware = [row["lesson"].split()[0] for row in table("Which lesson needs which hardware")]
    assert hardware == NUMBERS == list(SECTIONS)
    predictions = [row["lesson"] for row in table("Before the predictions")]
    assert sorted(set(predictions)) == NUMBERS
    assert predictions == sorted(predictions)


def test_hardware_is_what_the_readme_says():
    for row in table("Which lesson needs which hardware"):
        number, title = row["lesson"].split(maxsplit=1)
        for line in re.findall(rf"^\| \[{number} .*", README, re.MULTILINE):
            assert line.startswith(f"| [{number} {title}]")
            assert [row["one GPU"], row["two GPUs"]] == [cell.strip() for cell in line.split("|")[-3:-1]]


def test_lessons_that_start_ranks_name_wsl():
    for row in table("Which lesson needs which hardware"):
        number = row["lesson"][:2]
        if number in LESSONS:
            assert ("WSL" in row["also wants"]) == ("run_ranks" in LESSONS[number].text()), number


@pytest.mark.parametrize("number", LESSONS)
def test_each_prediction_of_a_lesson_has_its_sentence(number):
    asked = re.findall(r'^predict\(\s*"(\w+)"', LESSONS[number].text(), re.MULTILINE)
    rows = [row for row in table("Before the predictions") if row["lesson"] == number]
    names = [row["prediction"] for row in rows]
    assert names == [f"`{name}`" for name in asked]
    assert all(re.fullmatch(r'"[A-Z].+[.?]"', row["say this"]) for row in rows)


@pytest.mark.parametrize("number", NUMBERS)
def test_minutes_of_sections_are_those_of_the_lesson(number):
    row = SECTIONS[number]
    assert int(row[WHOLE]) == whole(number)
    assert agrees(row["cells, s (measured)"], number)
    if number != CAPSTONE:
        minutes = {part: int(row[part]) for part in PARTS}
        assert sum(minutes.values()) == whole(number)
        assert minutes.pop("exercises") == sum(exercise_minutes(number).values())
        counted = words(number)
        share = {part: sum(counted[name] for name in DEALT[part]) for part in minutes}
        for part, planned in minutes.items():
            dealt = sum(minutes.values()) * share[part] / sum(share.values())
            assert planned >= 1, part
            assert abs(planned - dealt) <= WORDS_MIN, (part, planned, dealt)


def test_every_show_is_there():
    assert tuple(re.findall(r"^### (.+?): \d+ minutes", PAGE, re.MULTILINE)) == EVERY_SHOW


@pytest.mark.parametrize("show", EVERY_SHOW)
def test_a_show_adds_up(show):
    told, teaching = re.search(rf"^### {show}: (\d+) minutes, (\d+) of teaching$", PAGE, re.MULTILINE).groups()
    rows = table(f"{show}:")
    minutes = [int(row["min"]) for row in rows]
    breaks = sum(int(row["min"]) for row in rows if row["lesson"] == "break")
    assert (sum(minutes), sum(minutes) - breaks) == (int(told), int(teaching))
    assert int(teaching) <= 420
    assert breaks >= int(told) // 12
    clocks = [60 * int(row["clock"].split(":")[0]) + int(row["clock"].split(":")[1]) for row in rows]
    assert [after - before for before, after in zip(clocks, clocks[1:], strict=False)] == minutes[:-1]


@pytest.mark.parametrize("show", EVERY_SHOW)
def test_a_show_takes_the_minutes_of_its_lessons(show):
    for row in table(f"{show}:"):
        if row["lesson"] not in ("room", "break"):
            assert int(row["min"]) == part_minutes(row["lesson"], row["part"]), row
    shown = [row["lesson"] for row in table(f"{show}:") if row["lesson"].isdigit()]
    assert shown == sorted(shown)


def test_two_hours_are_two_hours_and_three_days_are_the_whole_course():
    assert sum(int(row["min"]) for row in table("Two hours:")) == 120
    days = [row["lesson"] for day in EVERY_SHOW[2:] for row in table(f"{day}:") if row["lesson"].isdigit()]
    assert days == NUMBERS


def test_the_rota_adds_up():
    for row in table("Thirty people, two GPUs"):
        number, each, turns, rota = row["lesson"], *(int(row[name]) for name in ("turn, min", "turns", "rota, min"))
        n_groups, cards = int(row["groups"].split()[0]), int(row["cards a turn"])
        assert n_groups * {"pairs": 2, "of three": 3, "of six": 6}[row["groups"].split(maxsplit=1)[1]] == 30
        assert (turns, rota) == (math.ceil(n_groups * cards / 2), turns * each)
        assert rota <= int(row["block, min"]) == block_minutes(number)
        assert agrees(row["CPU cells, s"], number)
        assert row["CPU cells, s"] == SECTIONS[number]["cells, s (measured)"]
        assert (cards == 2) == ("NCCL" in row["what a GPU changes"] or "a rank" in row["what a GPU changes"])
        assert f"gpu{'2' * (cards == 2)}" in LESSONS[number].gains


def test_a_turn_is_the_limit_of_the_gpu_check_and_a_minute():
    from labkit import gpu_check

    assert {60 * (int(row["turn, min"]) - 1) for row in table("Thirty people, two GPUs")} == {gpu_check._LESSON_S}


def commands(page):
    """Every command that a page names in code: what stands after `labkit`, as words, variables before it left out."""
    spans = [*re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE), *re.findall(r"`([^`\n]+)`", page)]
    found = [re.match(r"(?:[A-Z_]+=\S* )*labkit ([a-z-]+.*)", line) for span in spans for line in span.splitlines()]
    return [shlex.split(each[1]) for each in found if each]


def wrong_with(words):
    """What the command line has against a command: unknown, no such option, an argument too few; "" for nothing."""
    group = typer.main.get_command(app)
    try:
        name, command, rest = group.resolve_command(group.context_class(group), list(words))
        command.make_context(name, rest)
    except USAGE_ERROR as error:
        return error.format_message()
    return ""


NAMED = sorted({tuple(words) for words in commands(PAGE)})


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_a_command_is_as_labkit_takes_it(words):
    assert not wrong_with(words)


def test_the_commands_of_a_class_are_named():
    assert {"release", "collect", "grade", "override", "export", "similar", "doctor", "record", "kaggle"} <= {
        words[0] for words in NAMED
    }


def test_no_command_stands_outside_of_code_or_over_two_lines():
    known = typer.main.get_command(app).commands
    mentioned = [name for name in re.findall(r"\blabkit\s+([a-z-]+)", PAGE) if name in known]
    assert len(mentioned) == len(commands(PAGE))


@pytest.mark.parametrize(
    "wrong", ["releases 01", "release", "grade in", "grade in --out x --lessons 01", "capstone a.py --pairs 0"]
)
def test_a_command_that_is_wrong_is_found(wrong):
    assert wrong_with(shlex.split(wrong))


def test_make_targets_and_variables_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"lab", "gpu-check"} <= set(re.findall(r"`make ([a-z-]+)", PAGE)) <= targets
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "labkit").rglob("*.py"))
    variables = set(re.findall(r"LABKIT_[A-Z]+", PAGE))
    assert {"LABKIT_BUDGET", "LABKIT_HOME", "LABKIT_RUNS", "LABKIT_CACHE"} <= variables
    assert all(f'"{name}"' in sources for name in variables)


def test_messages_that_it_quotes_are_said_somewhere():
    """What stands in italics in the tables of failures is found in labkit or in a lesson, up to its first gap."""
    places = [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "solutions").glob("*.py")]
    sources = "".join(path.read_text(encoding="utf-8") for path in places)
    rows = [*table("What goes wrong, and the fix"), *tables(PAGE, "Release and grade")[1]]
    quoted = [said for row in rows for said in re.findall(r"\*([^*]+)\*", next(iter(row.values())))]
    assert len(quoted) > 10
    for said in quoted:
        pieces = [piece.strip(" ;:,.") for piece in re.split(r"…|; |: |within 10 s", said)]
        assert all(piece in sources for piece in pieces if piece), said


def test_the_readme_leads_here_and_the_page_is_short():
    assert "](notebooks/INSTRUCTOR.md)" in README
    assert len(PAGE.splitlines()) <= 350
