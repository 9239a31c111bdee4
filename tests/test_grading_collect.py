"""Collecting: every layout, every trap, and one student's fault never touches another student."""

import contextlib
import io
import json
import os
import re
import stat
import unicodedata
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest

from labkit.course import CourseError
from labkit.grading import arrivals, collect, handins, layouts, nested, roster

BOOK = b'{"cells": [], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def zipped(tmp_path):
    """A zip of files by name; a name may come as a ZipInfo, and twice if in a list of pairs."""

    def call(files):
        path = tmp_path / "handed in.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items() if isinstance(files, dict) else files:
                archive.writestr(name, data)
        return path

    return call


@pytest.fixture
def folder(tmp_path):
    """A folder of files by name."""

    def call(files):
        root = tmp_path / "handed in"
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return root

    return call


def students(*rows):
    """A roster: headings, then rows."""
    text = "\n".join(",".join(row.split("|")) for row in rows)
    path = Path("roster.csv")
    path.write_text(text, encoding="utf-8")
    return roster.load(path)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def by_student(found):
    return {one.student: (one.status, one.files) for one in found}


def said(found, student):
    return " ".join(next(one.sentences for one in found if one.student == student))


def tree(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


# Layouts.


def test_a_folder_for_each_student(folder, out):
    found = collect.collect(folder({"ada/01.ipynb": BOOK, "ada/more/02.ipynb": BOOK + b" ", "bob/x.ipynb": BOOK}), out)
    assert by_student(found) == {"ada": ("collected", ("01.ipynb", "02.ipynb")), "bob": ("collected", ("x.ipynb",))}
    assert tree(out) == ["ada/01.ipynb", "ada/02.ipynb", "bob/x.ipynb", "collected.json"]
    assert (out / "ada" / "02.ipynb").read_bytes() == BOOK + b" "
    written = json.loads((out / "collected.json").read_text())
    assert [one["student"] for one in written["students"]] == ["ada", "bob"]


@pytest.mark.parametrize("name", ["ada_01_lr_warmup.ipynb", "ada-01_lr_warmup (2).ipynb", "ada.ipynb", "ada.IPYNB"])
def test_one_file_for_each_student(folder, out, name):
    found = collect.collect(folder({name: BOOK, "bob 01_lr_warmup.ipynb": BOOK}), out)
    assert {one.student: one.status for one in found} == {"ada": "collected", "bob": "collected"}


def test_a_single_notebook(folder, out):
    root = folder({"ada_01_lr_warmup.ipynb": BOOK, "bob.ipynb": BOOK})
    assert by_student(collect.collect(root / "bob.ipynb", out)) == {"bob": ("collected", ("bob.ipynb",))}


CANVAS = {
    "lovelaceada_101_9001_01_lr_warmup.ipynb": BOOK,
    "smithjohn_LATE_102_9002_01_lr_warmup-1.ipynb": BOOK,
    "smithjohn_103_9003_01_lr_warmup.ipynb": BOOK,
}
CANVAS_BOOK = (
    "Student|ID|SIS Login ID|Section|Lesson 1 (12)",
    '    Points Possible||||10"',
    '"Lovelace, Ada"|101|ada|A|',
    '"Smith, John"|102|john1|A|',
    '"Smith, John"|103|john2|A|',
)


def test_canvas_by_number(zipped, out):
    found = collect.collect(zipped(CANVAS), out)
    assert by_student(found) == {
        "101": ("collected", ("01_lr_warmup.ipynb",)),
        "102": ("collected", ("01_lr_warmup-1.ipynb",)),
        "103": ("collected", ("01_lr_warmup.ipynb",)),
    }
    assert [one.student for one in found if one.late] == ["102"]


def test_canvas_by_name_refuses_two_people_of_one_name(zipped, out):
    found = collect.collect(zipped(CANVAS), out, pattern="[a-z]+")
    assert by_student(found) == {
        "lovelaceada": ("collected", ("01_lr_warmup.ipynb",)),
        "smithjohn": ("refused", ()),
    }
    assert "may be two people" in said(found, "smithjohn")
    assert not (out / "smithjohn").exists()


def test_canvas_with_the_grade_book_as_roster(zipped, out):
    found = collect.collect(zipped(CANVAS), out, roster=students(*CANVAS_BOOK))
    assert {one.student: one.status for one in found} == {"101": "collected", "102": "collected", "103": "collected"}


MOODLE = {
    "Ada Lovelace_501_assignsubmission_file_/01_lr_warmup.ipynb": BOOK,
    "Ada Lovelace_501_assignsubmission_onlinetext_/onlinetext.html": b"<p>",
    "José Ñandú_502_assignsubmission_file_/sub/a.ipynb": BOOK,
    "Bob_503_assignsubmission_file_01.ipynb": BOOK,
    "Text Only_504_assignsubmission_onlinetext_/onlinetext.html": b"<p>",
}
MOODLE_BOOK = (
    "Identifier|Full name|Email address",
    "Participant 501|Ada Lovelace|a@x.org",
    "Participant 502|José Ñandú|j@x.org",
)


def test_moodle(zipped, out):
    found = collect.collect(zipped(MOODLE), out)
    assert by_student(found) == {
        "501": ("collected", ("01_lr_warmup.ipynb",)),
        "502": ("collected", ("a.ipynb",)),
        "503": ("collected", ("01.ipynb",)),
    }


def test_moodle_with_its_worksheet_as_roster(zipped, out):
    found = collect.collect(zipped(MOODLE), out, roster=students(*MOODLE_BOOK))
    assert {one.student: one.status for one in found} == {
        "a@x.org": "collected",
        "j@x.org": "collected",
        "Bob": "refused",
    }
    assert "not on the roster" in said(found, "Bob")


METADATA = """---
submission_71:
  :submitters:
  - :name: Ada Lovelace
    :sid: 'a1'
    :email: ada@x.org
  :created_at: 2026-01-01
submission_72:
  :submitters:
  - :name: "Bob"
    :sid: b2
  - :name: Cy
    :email: cy@x.org
  :history:
  - :name: not a submitter's name
"""


def test_gradescope_and_its_groups(zipped, out):
    files = {
        "submission_71/01.ipynb": BOOK,
        "submission_72/02.ipynb": BOOK,
        "submission_metadata.yml": METADATA.encode(),
    }
    found = collect.collect(zipped({f"assignment_5_export/{name}": data for name, data in files.items()}), out)
    second = ("collected", ("02.ipynb",))
    assert by_student(found) == {"a1": ("collected", ("01.ipynb",)), "b2": second, "cy@x.org": second}


def test_gradescope_without_its_table_goes_by_number(zipped, out):
    assert list(by_student(collect.collect(zipped({"submission_71/a.ipynb": BOOK}), out))) == ["submission_71"]


@pytest.mark.parametrize("top", ["", "hw1/"])
def test_a_folder_around_everything_says_nothing(zipped, out, top):
    found = collect.collect(zipped({f"{top}ada/1.ipynb": BOOK, f"{top}bob/1.ipynb": BOOK}), out)
    assert list(by_student(found)) == ["ada", "bob"]


def test_a_single_students_folder_is_a_students(folder, out):
    found = collect.collect(folder({"ada/1.ipynb": BOOK, "ada/2.ipynb": BOOK}), out)
    assert by_student(found) == {"ada": ("collected", ("1.ipynb", "2.ipynb"))}


def test_what_systems_and_editors_leave_is_not_handed_in(zipped, out):
    files = [
        "ada/a.ipynb",
        "__MACOSX/ada/._a.ipynb",
        "ada/._a.ipynb",
        "ada/.ipynb_checkpoints/a-checkpoint.ipynb",
        ".DS_Store",
    ]
    assert by_student(collect.collect(zipped(dict.fromkeys(files, BOOK)), out)) == {"ada": ("collected", ("a.ipynb",))}


@pytest.mark.parametrize("name", ["a.ipynb.txt", "a.ipynb.json", "A.IPYNB"])
def test_endings_that_browsers_add_are_taken_off(zipped, out, name):
    found = collect.collect(zipped({f"ada/{name}": BOOK}), out)
    assert [one.files[0].lower() for one in found] == ["a.ipynb"]


def test_no_notebook_is_said(zipped, out):
    found = collect.collect(zipped({"ada/report.pdf": b"", "ada/notes.txt": b"", "bob/a.ipynb": BOOK}), out)
    assert by_student(found) == {"ada": ("nothing", ()), "bob": ("collected", ("a.ipynb",))}
    assert said(found, "ada") == "ada handed in report.pdf, notes.txt, and no notebook."


# Traps. Each comes beside bob's honest work, which must be there whatever the trap is.


def trapped(zipped, out, *entries, **options):
    found = collect.collect(zipped([("bob/a.ipynb", BOOK), *((entry, BOOK) for entry in entries)]), out, **options)
    assert (out / "bob" / "a.ipynb").read_bytes() == BOOK
    return found


def linked(name, mode=stat.S_IFLNK):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(("ada/../../evil.ipynb", "out of its folder"), ("ada/../bob/a.ipynb", "out of its folder")),
        *(("ada\\..\\..\\evil.ipynb", "out of its folder"), ("../evil.ipynb", "out of its folder")),
        *(("/ada/evil.ipynb", "absolute"), ("C:\\ada\\evil.ipynb", "absolute"), ("\\\\host\\ada.ipynb", "absolute")),
        *(("ada/e\nvil.ipynb", "nobody can see"),),
        *(("ada/\u202egnp.ipynb", "nobody can see"), ("ada/" + "d/" * 40 + "a.ipynb", "too deep")),
        *(("ada/" + "n" * 400 + ".ipynb", "too long"), (linked("ada/l.ipynb"), "is a link")),
        *(
            (linked("ada/pipe.ipynb", stat.S_IFIFO), "no plain file"),
            (linked("ada/dev.ipynb", stat.S_IFCHR), "no plain file"),
        ),
    ],
)
def test_names_that_lead_elsewhere_are_refused(zipped, out, tmp_path, name, says):
    found = trapped(zipped, out, name)
    refused = [one for one in found if one.status == "refused"]
    assert len(refused) == 1
    (sentence,) = refused[0].sentences
    assert says in sentence
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert tree(tmp_path) == ["handed in.zip", "out/bob/a.ipynb", "out/collected.json"]


def test_a_name_that_ends_early_in_another_tool_is_refused(zipped, out):
    source = zipped({"ada/a.ipynb@.txt": BOOK, "bob/a.ipynb": BOOK})
    source.write_bytes(source.read_bytes().replace(b"ipynb@", b"ipynb\0"))
    found = collect.collect(source, out)
    assert by_student(found) == {"ada": ("refused", ()), "bob": ("collected", ("a.ipynb",))}
    assert said(found, "ada") == "ada/a.ipynb\\x00.txt has signs in its name that nobody can see."


@pytest.mark.parametrize(
    "student", ["-rf", ".ssh", "~root", "a b", "nul", "con.x", "a:b", "a*", "x" * 300, "collected.json", "ада\u200b"]
)
def test_ids_that_are_no_folders_name_are_refused(zipped, out, tmp_path, student):
    found = trapped(zipped, out, f"{student}/a.ipynb")
    assert [one.status for one in found if one.student != "bob"] == ["refused"]
    assert tree(tmp_path) == ["handed in.zip", "out/bob/a.ipynb", "out/collected.json"]


def test_links_in_a_folder_are_not_followed(folder, out, tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text("secret")
    root = folder({"bob/a.ipynb": BOOK, "eve/b.ipynb": BOOK})
    (root / "ada").mkdir()
    (root / "ada" / "l.ipynb").symlink_to(secret)
    (root / "cy").symlink_to(tmp_path)
    (root / "eve" / "d").symlink_to(root)
    os.mkfifo(root / "eve" / "p.ipynb")
    found = collect.collect(root, out)
    assert by_student(found) == {
        **{"ada": ("refused", ()), "bob": ("collected", ("a.ipynb",)), "eve": ("collected", ("b.ipynb",))},
        "cy": ("refused", ()),
    }
    assert said(found, "eve") == "eve/d is a link. eve/p.ipynb is no plain file."
    assert "secret" not in "".join(path.read_text() for path in out.rglob("*.ipynb"))


@pytest.mark.parametrize("twin", ["BOB", "ｂob", "Bob"])
def test_two_folders_of_one_name_are_nobodys(zipped, out, twin):
    """Whose work counts as bob's must not depend on the order in an archive, nor on the file system."""
    found = collect.collect(zipped({"bob/a.ipynb": BOOK, f"{twin}/a.ipynb": b"other", "cy/a.ipynb": BOOK}), out)
    assert sorted(one.status for one in found) == ["collected", "refused"]
    assert "may be two people" in " ".join(one.sentences[0] for one in found if one.sentences)
    assert tree(out) == ["collected.json", "cy/a.ipynb"]


def test_two_spellings_of_one_letter_are_one_name(zipped, out):
    names = [unicodedata.normalize(form, "josé") for form in ("NFC", "NFD")]
    assert names[0] != names[1]
    (found,) = collect.collect(zipped({f"{name}/a.ipynb": name.encode() for name in names}), out)
    assert found.status == "refused"


def test_a_decomposed_name_is_one_id(zipped, out):
    (found,) = collect.collect(
        zipped({unicodedata.normalize("NFD", "josé") + "/a.ipynb": BOOK}), out, pattern=r"[\w\u0301]+"
    )
    assert found.student == unicodedata.normalize("NFC", "josé")


def test_files_that_would_overwrite_each_other_are_all_there(zipped, out):
    files = [("ada/a.ipynb", b"1"), ("ada/A.ipynb", b"2"), ("ada/x/a.ipynb", b"3"), ("ada/a.ipynb", b"4")]
    with pytest.warns(UserWarning, match="Duplicate name"):
        source = zipped(files)
    (found,) = collect.collect(source, out)
    assert found.files == ("a.ipynb", "A-2.ipynb", "a-3.ipynb", "a-4.ipynb")
    assert [(out / "ada" / name).read_bytes() for name in found.files] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "name", ['a<b>|"?*.ipynb', "-rf.ipynb", "..ipynb", "a\u0301.ipynb", "é" * 120 + ".ipynb", " .ipynb"]
)
def test_file_names_are_chosen_here(zipped, out, name):
    (found,) = collect.collect(zipped({f"ada/{name}": BOOK}), out)
    (written,) = found.files
    assert written == unicodedata.normalize("NFC", written)
    assert not set(written) & set('<>|"?*:\\/')
    assert written[0] not in ".-"
    assert (out / "ada" / written).read_bytes() == BOOK


def test_names_in_utf_8_that_is_not_marked_are_read(tmp_path, out):
    """As Moodle writes them."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("jos\u00e9/a.ipynb", BOOK)
    path = tmp_path / "m.zip"
    path.write_bytes(cleared(data.getvalue()))
    assert [one.student for one in collect.collect(path, out)] == ["josé"]


def misnamed(data):
    """A zip whose name `jos\xe9` is said to be UTF-8 and is not."""
    return data.replace("jos\u00e9".encode(), b"jose\xe9")


@pytest.mark.parametrize("name", ["jos\u00e9/a.ipynb", "ada/jos\u00e9.ipynb"])
def test_a_name_that_is_not_the_utf_8_it_says_costs_that_entry_alone(tmp_path, out, name):
    (tmp_path / "m.zip").write_bytes(misnamed(inner({"ada/a.ipynb": BOOK, name: BOOK, "bob/b.ipynb": BOOK})))
    found = collect.collect(tmp_path / "m.zip", out)
    both = {"ada": ("collected", ("a.ipynb",)), "bob": ("collected", ("b.ipynb",))}
    assert {who: what for who, what in by_student(found).items() if what[1]} == both
    assert "has signs in its name that nobody can see" in " ".join(said for one in found for said in one.sentences)


def test_such_a_name_in_a_zip_in_an_upload_costs_that_entry_alone(folder, out):
    hers = misnamed(inner({"jos\u00e9.ipynb": BOOK, "a.ipynb": BOOK}))
    found = collect.collect(folder({"ada/hw.zip": hers}), out)
    assert by_student(found) == {"ada": ("collected", ("a.ipynb",))}
    assert "nobody can see" in said(found, "ada")


def cleared(data):
    """A zip without the flag that says its names are UTF-8."""
    data = bytearray(data)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(mark)
        data[place + at + 1] &= ~0x08
    return bytes(data)


# Bombs and broken archives.


def test_a_bomb_costs_its_sender_only(zipped, out, monkeypatch):
    monkeypatch.setattr(collect, "MAX_BYTES", 1_000_000)
    found = collect.collect(
        zipped({"ada/a.ipynb": bytes(50_000_000), "bob/a.ipynb": BOOK, "cy/a.ipynb": bytes(999_999)}), out
    )
    assert by_student(found) == {
        **{"ada": ("refused", ()), "bob": ("collected", ("a.ipynb",)), "cy": ("collected", ("a.ipynb",))}
    }
    assert said(found, "ada") == "ada/a.ipynb is larger than 1 MB."


def test_no_more_is_read_than_may_be():
    """A file may grow, and a stream may go on for ever."""

    class Endless(io.BytesIO):
        def read(self, size=-1):
            assert 0 < size <= 101
            return b"x" * size

    entry = arrivals.Entry(name="a", parts=("a",), n_bytes=3, fault="", open=Endless)
    with pytest.raises(ValueError, match="is larger than"):
        entry.read(100)


def lying(path, size):
    """A zip whose directory says that its first file has `size` bytes."""
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02")
    data[place + 24 : place + 28] = size.to_bytes(4, "little")
    path.write_bytes(data)
    return path


def test_what_an_archive_says_of_a_size_is_not_believed(zipped, out, monkeypatch):
    monkeypatch.setattr(collect, "MAX_BYTES", 1_000_000)
    source = lying(zipped({"ada/a.ipynb": bytes(50_000_000), "bob/a.ipynb": BOOK}), 10)
    found = collect.collect(source, out)
    assert by_student(found)["bob"] == ("collected", ("a.ipynb",))
    assert sum(path.stat().st_size for path in out.rglob("*.ipynb")) < 1_000_000


def test_many_files_of_one_student_are_cut_off(zipped, out, monkeypatch):
    monkeypatch.setattr(collect, "MAX_STUDENT_BYTES", 3 * len(BOOK))
    files = {f"ada/{n}.ipynb": BOOK for n in range(5)} | {"bob/a.ipynb": BOOK}
    files |= {f"cy/{n}.ipynb": b"" for n in range(collect.MAX_FILES + 5)}
    found = collect.collect(zipped(files), out)
    assert {one.student: len(one.files) for one in found} == {"ada": 3, "bob": 1, "cy": collect.MAX_FILES}
    assert said(found, "ada").count("beyond what is collected") == 2
    assert "the first 20" in said(found, "cy")


def test_too_many_entries_are_refused_at_once(zipped, folder, out, monkeypatch):
    monkeypatch.setattr(arrivals, "MAX_ENTRIES", 10)
    files = {f"ada/{n}.ipynb": BOOK for n in range(12)}
    for source in (zipped(files), folder(files)):
        with pytest.raises(CourseError, match="holds more than 10 files"):
            collect.collect(source, out)


def test_a_file_that_cannot_be_unpacked_costs_its_sender_only(zipped, out):
    source = zipped({"ada/a.ipynb": BOOK * 50, "bob/a.ipynb": BOOK})
    data = bytearray(source.read_bytes())
    start = data.find(b"ada/a.ipynb") + len("ada/a.ipynb")
    data[start + 5 : start + 15] = b"\xff" * 10
    source.write_bytes(data)
    found = collect.collect(source, out)
    assert by_student(found) == {"ada": ("refused", ()), "bob": ("collected", ("a.ipynb",))}
    assert "ada/a.ipynb cannot be read" in said(found, "ada")


@pytest.mark.parametrize(("offset", "value", "says"), [(8, 1, "is encrypted"), (10, 98, "packed in a way")])
def test_encrypted_and_strangely_packed_files_cost_their_sender_only(zipped, out, offset, value, says):
    source = zipped({"ada/a.ipynb": BOOK, "bob/a.ipynb": BOOK})
    data = bytearray(source.read_bytes())
    for mark, at in ((b"PK\x03\x04", offset - 2), (b"PK\x01\x02", offset)):
        data[data.find(mark) + at] = value
    source.write_bytes(data)
    found = collect.collect(source, out)
    assert by_student(found)["bob"] == ("collected", ("a.ipynb",))
    assert says in said(found, "ada")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"Rar!\x1a\x07", b"\x1f\x8b", b"PK\x05\x06" + bytes(3)])
def test_what_is_no_zip_is_one_sentence(tmp_path, out, data):
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(CourseError, match="a.zip is no zip"):
        collect.collect(tmp_path / "a.zip", out)


# The folder that is written.


def test_a_folder_with_other_things_is_not_touched(folder, out):
    out.mkdir()
    (out / "thesis.txt").write_text("all my work")
    with pytest.raises(CourseError, match="is not empty"):
        collect.collect(folder({"ada/a.ipynb": BOOK}), out)
    assert tree(out) == ["thesis.txt"]


def test_collecting_again_replaces_what_was_collected_and_nothing_else(folder, out):
    root = folder({"ada/old.ipynb": BOOK, "bob/a.ipynb": BOOK})
    collect.collect(root, out)
    (root / "ada" / "old.ipynb").rename(root / "ada" / "new.ipynb")
    collect.collect(root, out)
    assert tree(out) == ["ada/new.ipynb", "bob/a.ipynb", "collected.json"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CourseError, match=r"holds other things \(notes.txt\)"):
        collect.collect(root, out)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_forged_report_deletes_nothing_elsewhere(folder, out, tmp_path):
    (tmp_path / "precious.ipynb").write_text("work")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.ipynb").write_text("work")
    out.mkdir()
    (out / "ada").symlink_to(tmp_path / "elsewhere")
    listed = [{"student": "..", "files": ["precious.ipynb"]}, {"student": "ada", "files": ["a.ipynb", "../a.ipynb"]}]
    (out / "collected.json").write_text(json.dumps({"students": listed}))
    with pytest.raises(CourseError, match="holds other things"):
        collect.collect(folder({"ada/a.ipynb": BOOK}), out)
    assert (tmp_path / "precious.ipynb").exists()
    assert (tmp_path / "elsewhere" / "a.ipynb").exists()


def test_source_and_out_may_not_lie_one_in_the_other(folder, tmp_path):
    root = folder({"ada/a.ipynb": BOOK})
    for target in (root, root / "out", tmp_path):
        with pytest.raises(CourseError, match="one in the other"):
            collect.collect(root, target)
    with pytest.raises(CourseError, match="nothing is not there"):
        collect.collect(tmp_path / "nothing", tmp_path / "o")
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="is a file"):
        collect.collect(root, tmp_path / "file")


# Patterns and rosters.


def test_a_pattern_allows_ids_and_picks_them_out(zipped, out):
    files = {"s123 Ada/a.ipynb": BOOK, "s124/a.ipynb": BOOK, "admin/a.ipynb": BOOK, "xs125/a.ipynb": BOOK}
    found = collect.collect(zipped(files), out, pattern=r"(?P<id>s\d+)( .*)?")
    assert {one.student: one.status for one in found} == {
        **{"s123": "collected", "s124": "collected", "admin": "refused", "xs125": "refused"}
    }
    assert "admin is no id that the pattern" in said(found, "admin")
    with pytest.raises(CourseError, match="no regular expression"):
        collect.collect(zipped(files), out, pattern="(")


def test_a_roster_tells_who_is_who_and_who_is_absent(zipped, out):
    known = students("id|name|email", "a1|Ada Lovelace|ada@x.org", "b2|Bob|b@x.org", "c3|Cy|c@x.org")
    files = {"ADA@x.org/a.ipynb": BOOK, "a1/b.ipynb": BOOK, "bob/c.ipynb": BOOK, "eve/d.ipynb": BOOK}
    found = collect.collect(zipped(files), out, roster=known)
    assert by_student(found) == {
        **{"a1": ("collected", ("a.ipynb", "b.ipynb")), "b2": ("collected", ("c.ipynb",))},
        **{"eve": ("refused", ()), "c3": ("absent", ())},
    }


def test_a_name_of_two_students_leads_to_neither(zipped, out):
    known = students("id|name", "a1|Kim Lee", "a2|Kim Lee")
    (found, *absent) = collect.collect(zipped({"Kim Lee/a.ipynb": BOOK}), out, roster=known)
    assert (found.status, [one.status for one in absent]) == ("refused", ["absent", "absent"])


ROSTERS = {
    "ours": ("student_id|name", "a1|Ada Lovelace"),
    "gradescope": ("First Name|Last Name|SID|Email|Sections", "Ada|Lovelace|a1|ada@x.org|A"),
    "canvas": ("Student|ID|SIS Login ID", "    Points Possible||", '"Lovelace, Ada"|a1|al'),
    "moodle": ("First name|Surname|ID number|Email address", "Ada|Lovelace|a1|ada@x.org"),
}


@pytest.mark.parametrize("name", ROSTERS)
def test_rosters_of_every_platform(name):
    known = students(*ROSTERS[name])
    assert [one.id for one in known.students] == ["a1"]
    for key in ("a1", "A1", " a1 ", "Ada Lovelace", "ada  lovelace", "lovelaceada"):
        assert known.find(key).id == "a1", key
    assert known.find("Ada") is None
    assert known.find("") is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_rosters_as_every_spreadsheet_writes_them(tmp_path, encoding, separator):
    path = tmp_path / "r.csv"
    path.write_bytes(f"ID{separator}Name\r\nj1{separator}José\r\n\r\n".encode(encoding))
    assert roster.load(path).find("JOSE\u0301").id == "j1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(("", "no column of ids"), ("colour,size\n1,2", "it has colour, size"), ("id,name\n", "names no student")),
        *(("id\na\nA\n", "line 3: 'A' is there before, as 'a'"), ("id\n../x\n", "line 2: '../x' is no id")),
        *(("id,name\na,A\n,B\n", "line 3: '' is no id"), ("id\n.ssh\n", "no id"), ("id\nnul\n", "no id")),
        *(("id,id\n1,9\n", "more than one column 'id'"), ("sep=;\nid;a\n../x;1\n", "line 3: '../x' is no id")),
        *(("id\n1.23457E+11\n", "line 2: '1.23457E+11' is a number that a"), ('id;a\n"1,2E+11";\n', "has cut short")),
        *((f"id\n{'x' * 300}\n", "at most 100 bytes"), ('id\n"' + "x" * 200_000 + '"', "field larger")),
    ],
)
def test_what_is_wrong_with_a_roster_is_one_sentence(tmp_path, text, says):
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(CourseError, match=r"r\.csv") as raised:
        roster.load(path)
    assert says in str(raised.value)
    with pytest.raises(CourseError, match="none.csv is not there"):
        roster.load(tmp_path / "none.csv")
    with pytest.raises(CourseError, match="cannot be read as a roster: Is a directory"):
        roster.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        *('sep=;\n"Last, First";id\n"Lovelace, Ada";a1\n', '"Last, First";id\n"Lovelace, Ada";a1\n'),
        *('"Last, First, Middle";id\nx;a1\n', 'sep=,\r\n"Last; First; Middle",id\r\nx,a1\r\n', 'id,"a;b;c"\na1,x\n'),
    ],
)
def test_what_separates_headings_is_told_from_what_stands_in_them(tmp_path, text):
    (tmp_path / "r.csv").write_bytes(text.encode())
    assert [one.id for one in roster.load(tmp_path / "r.csv").students] == ["a1"]


def test_a_row_knows_its_columns():
    (ada,) = students("id|Late days|section", "a1|2|B").students
    assert ada.row == {"id": "a1", "late days": "2", "section": "B"}


def test_a_line_of_gradescopes_table_ends_where_yaml_ends_it():
    text = "s1:\n  :submitters:\n  - :name: Ada\x85s2:\u2028  :submitters:\u2028  - :sid: eve\n    :sid: a1\r\n"
    (made,) = layouts.gradescope(text).values()
    assert made.submitters[0][0] == "a1"


def test_gradescopes_table_may_hold_anything():
    for text in ("", "a", "x:\n  - :name:", "submission_1:\n  :sid: 3", "- :sid: 4", METADATA * 2, "\0:\n"):
        layouts.gradescope(text)
    people = "submission_1:\n  :submitters:\n  - :name: 'O''Hara'\n    :sid: ~\n"
    assert layouts.gradescope(people)["submission_1"].submitters == [("O'Hara",)]


# The command.


def test_collect_says_what_became_of_each(labkit, zipped, out):
    source = zipped({"ada/a.ipynb": BOOK, "bob/../x.ipynb": BOOK, "cy/a.pdf": b""})
    code, text, error = labkit("collect", source, "--out", out)
    assert (code, error) == (1, "")
    assert text.splitlines()[-1] == "1 collected, 1 nothing, 1 refused"
    assert "leads out of its folder" in text
    code, text, _ = labkit("collect", source, "--out", out, "--json")
    assert (code, [one["status"] for one in json.loads(text)]) == (1, ["collected", "refused", "nothing"])


def test_collect_with_a_roster_and_a_pattern(labkit, folder, out):
    Path("r.csv").write_text("id\nada\n")
    code, text, _ = labkit("collect", folder({"ada/a.ipynb": BOOK}), "--out", out, "--roster", "r.csv")
    assert (code, text.splitlines()[-1]) == (0, "1 collected")
    assert labkit("collect", folder({}), "--out", out, "--pattern", "[")[0] == 2
    assert labkit("collect", folder({}), "--out", out, "--roster", "none.csv")[0] == 2


def test_what_a_terminal_would_obey_is_not_printed(labkit, zipped, out):
    _, text, _ = labkit("collect", zipped({"\x1b[2J/a.ipynb": BOOK, "ada/\x1b]0;a.ipynb": BOOK}), "--out", out)
    assert "\x1b" not in text
    assert "\\x1b" in text


# Times, archives in uploads, and a collection that is killed.


def test_gradescope_says_when(zipped, out):
    text = METADATA.replace("2026-01-01", "2026-01-01 10:00:00.123456000 Z")
    text += "  :created_at: 2026-02-02 10:00:00 Z\n  :created_at: 2026-03-03 10:00:00 Z\n"
    files = {"submission_71/01.ipynb": BOOK, "submission_72/02.ipynb": BOOK, layouts.METADATA: text.encode()}
    found = {one.student: one.handed_in for one in collect.collect(zipped(files), out)}
    when = "2026-02-02T10:00:00+00:00"  # those of earlier attempts come after it
    assert found == {"a1": "2026-01-01T10:00:00+00:00", "b2": when, "cy@x.org": when}
    known = handins.of_class(out, None)
    assert known["a1"].at.isoformat() == found["a1"]


def test_of_several_files_the_last_says_when(out):
    at = [datetime(2027, 3, day, tzinfo=timezone.utc) for day in (1, 3, 2)]
    owners = [layouts.Owner(mark="a1", keys=("a1",), file=f"{day}.ipynb", handed_in=day) for day in at]
    work = collect._Collection(out, re.compile(".*"), None)
    assert work._when("a1", owners)["handed_in"] == at[1].isoformat()


def test_gradescopes_scores_say_when_and_how_late(folder, out):
    head = "First Name|Last Name|SID|Email|Status|Submission Time|Lateness (H:M:S)"
    known = students(head, "Ada|L|a1|a@x|Graded|2026-01-01 10:00:00 -0800|26:00:00", "B|B|b2|b@x|Missing||")
    ada, bob = collect.collect(folder({"a1/a.ipynb": BOOK, "b2/a.ipynb": BOOK}), out, roster=known)
    assert (ada.late, ada.handed_in, ada.late_s) == (True, "2026-01-01T18:00:00+00:00", 93600)
    assert (bob.late, bob.handed_in, bob.late_s) == (False, "", None)


def inner(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, one in files.items():
            archive.writestr(name, one)
    return data.getvalue()


def test_a_zip_in_an_upload_is_opened_once(zipped, out):
    hers = {
        "hw/a.ipynb": BOOK + b" ",
        "hw/a.py": b"",
        "__MACOSX/hw/._a.ipynb": b"",
        "more.zip": inner({"b.ipynb": BOOK}),
    }
    name = "lovelaceada_101_9001_hw.ZIP"
    found = collect.collect(zipped({name: inner(hers), "smithjohn_102_9002_a.ipynb": BOOK}), out)
    assert by_student(found) == {"101": ("collected", ("a.ipynb",)), "102": ("collected", ("a.ipynb",))}
    assert (out / "101" / "a.ipynb").read_bytes() == BOOK + b" "
    assert said(found, "101") == f"{name}: more.zip was not opened: it is an archive in an archive."


def test_a_zip_beside_a_notebook_and_a_zip_without_one(folder, out):
    files = {"ada/a.ipynb": BOOK, "ada/b.zip": inner({"a.ipynb": BOOK + b" "}), "bob/b.zip": inner({"a.pdf": b""})}
    found = collect.collect(folder(files | {"cy/hw.rar": b"Rar!", "dan/x.zip": b"PK"}), out)
    assert by_student(found) == {
        **{"ada": ("collected", ("a.ipynb", "a-2.ipynb")), "bob": ("nothing", ()), "cy": ("nothing", ())},
        "dan": ("nothing", ()),
    }
    assert said(found, "bob") == "bob handed in b.zip, and no notebook."
    assert (
        said(found, "cy") == "cy/hw.rar was not opened: of archives only zip is. cy handed in hw.rar, and no notebook."
    )
    assert said(found, "dan").startswith("dan/x.zip is no zip that can be opened.")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(("../../evil.ipynb", "out of its folder"), ("/evil.ipynb", "absolute"), ("C:\\evil.ipynb", "absolute")),
        *((linked("l.ipynb"), "is a link"), ("e\nvil.ipynb", "nobody can see"), ("d/" * 40 + "a.ipynb", "too deep")),
    ],
)
def test_what_is_refused_outside_an_archive_is_refused_in_one(zipped, out, tmp_path, name, says):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name, BOOK)
        archive.writestr("good.ipynb", BOOK)
    found = collect.collect(zipped({"ada/hw.zip": data.getvalue(), "bob/a.ipynb": BOOK}), out)
    assert says in said(found, "ada")
    assert tree(tmp_path) == ["handed in.zip", "out/ada/good.ipynb", "out/bob/a.ipynb", "out/collected.json"]


def test_a_bomb_in_an_archive_costs_its_sender_only(zipped, out, monkeypatch):
    monkeypatch.setattr(collect, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(collect, "MAX_STUDENT_BYTES", 2_000_000)
    files = {"ada/hw.zip": inner({"a.ipynb": bytes(50_000_000)}), "bob/a.ipynb": BOOK}
    files |= {"cy/hw.zip": inner({f"{n}.txt": b"" for n in range(nested.MAX_ENTRIES + 1)})}
    files |= {f"dan/{n}.zip": inner({"a.ipynb": bytes(900_000), "noise": os.urandom(900_000)}) for n in range(4)}
    found = collect.collect(zipped(files), out)
    assert {one.student: len(one.files) for one in found} == {"ada": 0, "bob": 1, "cy": 0, "dan": 2}
    assert said(found, "ada").startswith("ada/hw.zip: a.ipynb is larger than 1 MB.")
    assert "cy/hw.zip holds more than 1000 files." in said(found, "cy")
    assert said(found, "dan").count("is larger than") == 2  # archives beyond what is held of one student


def test_of_archives_no_more_is_held_than_there_is_room_for(zipped, out, monkeypatch):
    monkeypatch.setattr(collect, "MAX_STUDENT_BYTES", 2_000_000)
    hers = {f"{n}.zip": inner({f"{n}.ipynb": BOOK, "noise": os.urandom(900_000)}) for n in range(4)}
    found = collect.collect(zipped({f"ada/{name}": data for name, data in hers.items()}), out)
    assert by_student(found) == {"ada": ("collected", ("0.ipynb", "1.ipynb"))}
    assert said(found, "ada").count("is larger than") == 2


@pytest.mark.parametrize("moment", range(6))
def test_a_collection_that_was_killed_starts_clean(folder, out, monkeypatch, moment):
    root = folder({f"{name}/{name}.ipynb": BOOK for name in ("ada", "bob", "cy")})
    steps = iter(range(100))

    class Killed(BaseException):
        pass

    def step(*_args):
        if next(steps) == moment:
            raise Killed

    write_bytes, replace = Path.write_bytes, os.replace
    monkeypatch.setattr(
        Path, "write_bytes", lambda path, data: (write_bytes(path, data[:9]), step(), write_bytes(path, data))
    )
    monkeypatch.setattr(os, "replace", lambda *names: (step(), replace(*names)))
    monkeypatch.setattr(os, "unlink", lambda *_names: None)  # a killed process tidies nothing up
    with contextlib.suppress(Killed):
        collect.collect(root, out)
    assert (
        moment == 5
        or "collected.json" not in tree(out)
        or json.loads((out / "collected.json").read_text())["unfinished"]
    )
    if moment in (1, 2, 3):
        with pytest.raises(CourseError, match="half collected"):
            handins.of_class(out, None)
    monkeypatch.undo()
    (root / "bob" / "bob.ipynb").unlink()
    collect.collect(root, out)
    assert tree(out) == ["ada/ada.ipynb", "collected.json", "cy/cy.ipynb"]


def test_what_is_not_of_a_killed_collection_stays(folder, out):
    root = folder({"ada/a.ipynb": BOOK})
    collect.collect(root, out)
    (out / "collected.json").write_text('{"unfinished": true, "students": []}')
    (out / "ada" / "thesis.txt").write_text("all my work")
    with pytest.raises(CourseError, match=r"holds other things \(ada\)"):
        collect.collect(root, out)
    assert (out / "ada" / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("id,Full name\nkl,Kim Lee\nlk,Lee Kim\n", {"Kim Lee": "kl", "Lee Kim": "lk", "kimlee": "kl"}),
        ("id,First name,Last name\nkl,Kim,Lee\nlk,Lee,Kim\n", {"Kim Lee": "kl", "Lee, Kim": "kl", "leekim": None}),
        ('id,Student\nkl,"Lee, Kim"\nlk,"Kim, Lee"\n', {"Kim Lee": "kl", "leekim": "kl", "kimlee": "lk"}),
        ("id,Full name\nkl,Kim Lee\nab,Ada Bell\n", {"Lee Kim": "kl", "bellada": "ab"}),
    ],
)
def test_of_two_whose_names_are_one_turned_round_the_order_tells(tmp_path, text, ids):
    (tmp_path / "r.csv").write_text(text)
    known = roster.load(tmp_path / "r.csv")
    assert {name: (found := known.find(name)) and found.id for name in ids} == ids
