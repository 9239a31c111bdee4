"""Figures beside recordings: what is shown, what is kept, and what `labkit record` leaves on disk."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import fabricated
import pytest
import torch

from labkit import claims, hardware, recording, repro, run, show
from labkit.course import CourseError

MEASURED = """# %% [markdown]
# # 02 · Toy
#
# ## Question

# %%
from labkit import claim, record

record("02", "the race", {{"slow (s)": 3.0, "fast (s)": 2, "which": "resized"}})
claim("fast is faster", holds={holds}, evidence="1.5x")
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A course with a lesson 02, seen from its folder, in which nothing has been measured yet."""
    root = fabricated.course(tmp_path, n02_toy=MEASURED.format(holds=True))
    monkeypatch.chdir(root)
    monkeypatch.setattr(recording, "_figures", {})
    monkeypatch.setattr(claims, "_results", {})
    return root


def kept(name="AMD EPYC, 2 cores", figures=None, made=(), lesson="02_toy", date="2026-11-30T01:02:03+00:00"):
    """Write a recording as another machine would have."""
    folder = recording.course.root() / "datasets" / "recorded" / name.lower().replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    held = {"manifest": {"hardware": {"name": name}, "date": date}, "results": {"figures": figures, "claims": made}}
    (folder / f"{lesson}.json").write_text(json.dumps(held))


def test_alone_it_says_that_nobody_has_recorded_this(capsys):
    recording.record("02", "the race", {"slow (s)": torch.tensor(3.14159), "images": 6048, "which": "resized"})
    assert capsys.readouterr().out == (
        "The race\n"
        "    ·                    slow (s)  images    which\n"
        "    · this machine, now      3.14   6,048  resized\n"
        "    · No other machine has recorded this yet.\n"
    )


def test_a_recording_is_a_row_with_its_machine_and_date(capsys):
    kept(figures={"the race": {"slow (s)": 1.25, "new": 3}, "another": {"x": 1}})
    kept(name="Tesla T4", figures={"another": {"x": 1}})
    recording.record("02", "the race", {"slow (s)": 3, "fast (s)": 2})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "    ·                                slow (s)  fast (s)",
        "    · this machine, now                     3         2",
        "    · AMD EPYC, 2 cores, 2026-11-30      1.25",
    ]


def test_in_a_notebook_only_the_figures_may_vary(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "show", lambda text, html: shown.append((text, html)))
    kept(figures={"the race": {"a < b": 1.25}})
    recording.record("02", "the race", {"a < b": 3.5})
    ((_, html),) = shown
    stable = html.split("<!--varying-->")[0] + html.split("<!--/varying-->")[-1]
    assert "The race" in stable
    assert "a &lt; b" in stable
    assert "3.5" not in stable
    assert "AMD" not in stable


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), [1.0], torch.tensor(torch.inf)])
def test_what_json_cannot_hold_is_refused_where_it_is_measured(figure):
    with pytest.raises(ValueError, match="'slow', under 'the race'"):
        recording.record("02", "the race", {"slow": figure})


def test_what_could_not_be_measured_is_shown_so_and_not_kept(capsys):
    recording.record("02", "the race", {"slow (s)": 3, "fast (s)": None})
    assert " ".join(capsys.readouterr().out.splitlines()[2].split()) == "· this machine, now 3 not measured"
    assert recording._figures == {("02", "the race"): {"slow (s)": 3}}


def test_what_a_lesson_shows_itself_is_kept_without_a_table(capsys):
    recording.keep("02", "the code", {"text": "a\nb"})
    assert capsys.readouterr().out == ""
    assert recording._figures == {("02", "the code"): {"text": "a\nb"}}


def test_what_others_recorded_can_be_asked_for_those_of_this_kind_first():
    kept(figures={"the race": {"slow (s)": 1.25}})
    kept(name="Tesla T4", figures={"the race": {"slow (s)": 0.5}})
    kept(name="Tesla V100", figures={"the race": {"fast (s)": 2}})
    path = recording.repro.recording_files("02_toy")[1]
    held = json.loads(path.read_text())
    held["results"]["tier"] = hardware.tier()
    path.write_text(json.dumps(held))
    assert list(recording.recorded("02", "the race", "slow (s)").items()) == [
        ("Tesla T4, 2026-11-30", 0.5),
        ("AMD EPYC, 2 cores, 2026-11-30", 1.25),
    ]
    assert recording.recorded("02", "the race", "none (s)") == recording.recorded("02", "none", "slow (s)") == {}


def test_no_figures_are_refused():
    with pytest.raises(ValueError, match="nothing to record under 'the race'"):
        recording.record("02", "the race", {})


@pytest.mark.parametrize("name", ["", " ", None, 3])
def test_figures_need_a_name(name):
    with pytest.raises((ValueError, TypeError)):
        recording.record("02", name, {"slow (s)": 1})
    assert recording._figures == {}


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (999.7, "1,000"),
        (999.4, "999"),
        (True, "yes"),
        (10**20, "100,000,000,000,000,000,000"),
        (0.00012345, "0.000123"),
    ],
)
def test_how_a_figure_is_written(capsys, figure, shown):
    recording.record("02", "the race", {"x": figure})
    assert capsys.readouterr().out.splitlines()[2].split()[-1] == shown


def _results(**results):
    made = {"hardware": {"name": "Tesla T4"}, "date": "2026-11-30"}
    return json.dumps({"manifest": made, "results": results})


WHOLE = {"figures": {"the race": {"x": 1}}, "claims": [{"text": "c", "status": "held", "evidence": "1x"}]}
OTHERS = {
    "half a file": _results(**WHOLE)[:-20],
    "no file of ours": "[]",
    "no results": _results(**WHOLE).replace('"results": {', '"results": [{').replace("}}", "}}]"),
    "null": _results(figures=None, claims=None),
    "lists": _results(figures=[1], claims={"a": 1}),
    "figures of another kind": _results(figures={"the race": [1]}, claims=[1, {"text": "c"}, {"status": "held"}]),
    "a figure of another kind": _results(figures={"the race": {"x": None, "y": [1]}}, claims=[]),
    "evidence of another kind": _results(figures={}, claims=[{"text": "c", "status": "held", "evidence": None}]),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_another_version_or_a_broken_disk_left_hides_nothing_else(root, capsys, text):
    """It neither stops the lesson nor keeps the good recordings from being shown."""
    kept(name="Tesla V100", figures=WHOLE["figures"], made=WHOLE["claims"])
    folder = root / "datasets" / "recorded" / "a-t4"
    folder.mkdir()
    (folder / "02_toy.json").write_text(text)
    recording.record("02", "the race", {"x": 2})
    lines = capsys.readouterr().out.splitlines()
    assert "    · Tesla V100, 2026-11-30  1" in lines
    assert recording.verdicts("c") == ["✓ recorded on Tesla V100, 2026-11-30: 1x"]


def test_a_broken_recording_is_named_below_the_table(root, capsys):
    (root / "datasets" / "recorded" / "a-t4").mkdir(parents=True)
    (root / "datasets" / "recorded" / "a-t4" / "02_toy.json").write_text("{")
    recording.record("02", "the race", {"x": 2})
    assert "    · a-t4/02_toy.json is not a recording" in capsys.readouterr().out


def test_a_machines_own_broken_recording_is_replaced(root):
    path = root / "datasets" / "recorded" / hardware.machine().slug / "02_toy.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert labkit("record", "02").returncode == 0
    assert json.loads(path.read_text())["results"]["figures"]


def test_a_lesson_that_goes_elsewhere_is_recorded_in_its_own_course(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    fabricated.course(root, n02_toy=MEASURED.format(holds=True) + f"import os\nos.chdir({str(elsewhere)!r})\n")
    done = labkit("record", "02")
    assert done.returncode == 0, done.stderr
    assert (root / "datasets" / "recorded" / hardware.machine().slug / "02_toy.json").exists()


def test_figures_under_another_lessons_number_are_refused(root):
    fabricated.course(root, n02_toy=MEASURED.format(holds=True) + "record('03', 'x', {'x': 1})\n")
    done = labkit("record", "02")
    assert done.returncode == 1
    assert "names another lesson" in done.stderr
    assert recording.recordings("02")[0] == []


def test_a_lesson_away_from_its_course_has_no_recordings(monkeypatch):
    def nowhere(_name):
        raise CourseError("No course found")

    monkeypatch.setattr(recording.course, "find", nowhere)
    assert recording.recordings("02") == ([], [])


def test_an_undecided_claim_shows_what_was_recorded_of_it(capsys, monkeypatch):
    monkeypatch.setattr(hardware, "tier", lambda: "cpu")
    held = {"text": "a GPU is faster", "status": "held", "evidence": "30x\n3 seeds"}
    kept(name="Tesla T4", made=[held, held | {"text": "another"}, held | {"status": "undecided"}])
    kept(name="Tesla V100", made=[held | {"status": "refuted", "evidence": "0.9x"}])
    claims.claim("a GPU is faster", holds=None, evidence="no GPU here", tier="gpu")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    · no GPU here",
        "    · ✓ recorded on Tesla T4, 2026-11-30: 30x; 3 seeds",
        "    · ✗ recorded on Tesla V100, 2026-11-30: 0.9x",
    ]
    assert claims.results()[0].evidence == "no GPU here"


def test_amx_is_a_tier_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(hardware, "has_amx", lambda: False)
    claims.claim("tiles are faster", holds=None, evidence="1", tier="amx")
    assert "needs: a CPU with AMX" in capsys.readouterr().out
    with pytest.raises(ValueError, match="'amx', which this machine has not"):
        claims.claim("tiles are faster", holds=True, evidence="1", tier="amx")
    monkeypatch.setattr(hardware, "has_amx", lambda: True)
    claims.claim("tiles are faster", holds=True, evidence="1", tier="amx")
    assert claims.results()[-1].status == "held"


def labkit(*arguments, budget="full"):
    """The command, run in the toy course by the labkit beside these tests."""
    env = os.environ | {
        "PYTHONPATH": str(fabricated.ROOT),
        "LABKIT_BUDGET": budget,
        "LABKIT_STRICT": "0",
    }
    command = [sys.executable, "-m", "labkit.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)


def test_labkit_record_keeps_figures_claims_and_how_to_make_them_again(root):
    done = labkit("record", "02")
    assert done.returncode == 0, done.stderr
    path = f"datasets/recorded/{hardware.machine().slug}/02_toy.json"
    assert done.stdout.splitlines()[-1] == f"wrote {path}"
    held = json.loads((root / path).read_text())
    assert held["results"]["figures"] == {"the race": {"slow (s)": 3.0, "fast (s)": 2, "which": "resized"}}
    assert held["results"]["claims"] == [{"text": "fast is faster", "status": "held", "evidence": "1.5x"}]
    assert held["results"]["tier"] == hardware.tier()
    assert held["manifest"]["command"] == "labkit record 02"
    assert str(root) not in json.dumps(held)
    ((made,), _) = recording.recordings("02")
    assert made.hardware == hardware.machine().name


def test_a_refuted_claim_is_recorded_as_refuted_and_said_by_the_exit_code(root):
    fabricated.course(root, n02_toy=MEASURED.format(holds=False))
    assert labkit("record", "02").returncode == 1
    ((made,), _) = recording.recordings("02")
    assert [held["status"] for held in made.results["claims"]] == ["refuted"]


def test_a_lesson_that_fails_is_not_recorded(root):
    fabricated.course(root, n02_toy=MEASURED.format(holds=True) + "raise ValueError\n")
    assert labkit("record", "02").returncode == 1
    assert recording.recordings("02")[0] == []


def test_a_run_records_nothing():
    assert labkit("run", "02").returncode == 0
    assert recording.recordings("02")[0] == []


def test_a_smoke_budget_is_not_recorded():
    done = labkit("record", "02", budget="smoke")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("A smoke budget decides nothing, so it is not recorded")


def test_a_gpu_that_torch_cannot_use_gets_no_figures_of_the_processor(monkeypatch):
    beside = replace(hardware.machine(), gpus=(hardware.Gpu(name="Tesla T4", memory_bytes=1),))
    monkeypatch.setattr(hardware, "machine", lambda: beside)
    monkeypatch.setattr(hardware, "tier", lambda: "cpu")
    with pytest.raises(CourseError, match="torch cannot use the Tesla T4 here"):
        run.run(recording.course.find("02"), record=True)
    assert recording.recordings("02") == ([], [])
    monkeypatch.setattr(hardware, "tier", lambda: "gpu")
    recording.refuse_unrecordable()


def test_a_recording_that_cannot_be_written_is_a_sentence(root):
    (root / "datasets").write_text("a file where a folder should be")
    done = labkit("record", "02")
    assert done.returncode == 1
    assert "Nothing was recorded:" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_manifest_names_the_data_that_were_loaded(monkeypatch):
    from labkit import data

    data.Split(name="toy-train", inputs=torch.zeros(1), targets=torch.zeros(1, dtype=torch.int64), classes=("a",),
               sha256="abc")  # fmt: skip
    monkeypatch.setattr(repro.manifests, "git", lambda *_: None)
    path = recording.write("02_toy", [], 1.25)
    assert json.loads(path.read_text())["manifest"]["data"]["toy-train"] == "abc"
