"""Data sets: the same everywhere, held apart by face or file, and safe from damaged or unwritable caches."""

import hashlib
import io
import os
import pickle
import tarfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from labkit import data
from labkit.course import CourseError
from labkit.data import cifar10, digits, docs, glyphs


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Each test has an empty cache of its own."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Validation glyphs at the three sizes that the lessons use, drawn once for this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {size: glyphs.load("validation", size) for size in (24, 32, 48)}


class _Attack:
    """Pickled, it asks whoever reads it to make a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def _pixels(split):
    """Normalised pictures as 0..255 again."""
    return (split.inputs * glyphs.STD + glyphs.MEAN) * 255


# The cache


def _make():
    return {"values": np.arange(1000, dtype=np.int64)}


def _must_not_make():
    raise AssertionError("made again although the cache holds it")


def test_what_is_cached_is_read_back_and_not_made_again():
    arrays, digest = data.cached("thing", _make)
    again, digest_again = data.cached("thing", _must_not_make)
    assert np.array_equal(arrays["values"], again["values"])
    assert digest == digest_again == data.sha256_of(_make())


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped", "array", "hash", "pickled"])
def test_a_damaged_cache_file_is_made_again_without_a_word(cache, damage):
    _, digest = data.cached("thing", _make)
    path = cache / "thing.npz"
    whole = path.read_bytes()
    if damage == "hash":
        np.savez(path, values=np.arange(1000) + 1, sha256=np.array(digest))
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif damage == "pickled":
        np.savez(path, values=np.array([_Attack(cache / "sign")], dtype=object), sha256=np.array(digest))
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"empty": b"", "cut": whole[:middle], "text": b"hello", "flipped": flipped}[damage])
    arrays, again = data.cached("thing", _make)
    assert np.array_equal(arrays["values"], _make()["values"])
    assert again == digest
    data.cached("thing", _must_not_make)
    assert not (cache / "sign").exists(), "a cache file ran a program"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_cache_file_that_is_no_file_is_not_waited_for(cache):
    cache.mkdir()
    os.mkfifo(cache / "thing.npz")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(data.cached("thing", _make)), daemon=True)
    thread.start()
    thread.join(10)
    assert len(answers) == 1
    data.cached("thing", _must_not_make)


@pytest.mark.parametrize("size", [np.int64(24), np.uint8(24)])
def test_a_numpy_size_is_a_size(size):
    assert glyphs.load("validation", size=size).name == "glyphs-validation-24"


def test_the_file_appears_under_its_name_only_when_whole(cache, monkeypatch):
    def half_a_file(file, **_):
        file.write(b"half")
        assert not (cache / "thing.npz").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", half_a_file)
    with pytest.raises(KeyboardInterrupt):
        data.cached("thing", _make)
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_one_warning(cache):
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="thing could not be kept.*LABKIT_CACHE") as caught:
        arrays, _ = data.cached("thing", _make)
    assert len(caught) == 1
    assert np.array_equal(arrays["values"], _make()["values"])


def test_a_full_disk_costs_one_warning_and_leaves_nothing_behind(cache, monkeypatch):
    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        arrays, _ = data.cached("thing", _make)
    assert len(arrays["values"]) == 1000
    assert list(cache.iterdir()) == []


def test_a_second_writer_may_finish_while_the_first_still_writes(cache, monkeypatch):
    save = np.savez

    def slowly(file, **arrays):
        file.write(b"the first has begun")
        monkeypatch.setattr(np, "savez", save)
        inner, _ = data.cached("thing", _make)  # another process would do this, from start to end, right now
        assert np.array_equal(inner["values"], _make()["values"])
        file.seek(0)
        save(file, **arrays)

    monkeypatch.setattr(np, "savez", slowly)
    data.cached("thing", _make)  # a warning would be an error here
    assert [path.name for path in cache.iterdir()] == ["thing.npz"]
    data.cached("thing", _must_not_make)


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.array([1, 2, 4])},
        {"b": np.array([1, 2, 3])},
        {"a": np.array([1, 2, 3], dtype=np.int32)},
        {"a": np.array([[1, 2, 3]])},
    ],
    ids=["value", "name", "type", "shape"],
)
def test_a_hash_sees_value_name_type_and_shape(other):
    first = {"a": np.array([1, 2, 3])}
    assert data.sha256_of(first) != data.sha256_of(other)
    assert data.sha256_of(first) == data.sha256_of({"a": np.arange(6).reshape(3, 2)[:, 0] // 2 + 1})


# Glyphs


def test_no_face_is_in_two_splits():
    faces = [face for split in glyphs.FACES.values() for face in split]
    assert len(faces) == len(set(faces)) == 18
    assert [len(glyphs.FACES[split]) for split in ("train", "validation", "test")] == [9, 4, 5]


def test_every_face_draws_every_character_equally_often(pictures):
    label, face, _, _ = glyphs._plan("train")
    counts = np.zeros((9, 32), np.int64)
    np.add.at(counts, (face, label), 1)
    assert (counts == 21).all()
    assert torch.bincount(pictures[24].targets).tolist() == [4 * 8] * 32
    assert len(set(label[:32])) < 32, "the order must be mixed"


def test_all_characters_look_different_in_every_face():
    for face in ("DejaVuSans", "cmmi10", "STIXGeneral"):
        drawn = {glyphs._master(face, char).tobytes() for char in glyphs.CLASSES}
        assert len(drawn) == len(glyphs.CLASSES) == 32


def test_an_outline_is_filled_where_the_letter_is_and_not_in_its_hole():
    letter = glyphs._master("DejaVuSans", "D")
    rows, columns = np.nonzero(letter)
    assert abs(rows.min() + rows.max() - 223) <= 1, "centred"
    assert letter[112, columns.min() + 5] == 255, "the stem"
    assert letter[112, 112] == 0, "the hole"
    assert letter[rows.min() : rows.min() + 9, columns.max() - 3 :].sum() == 0, "D is round at the right"
    foot = glyphs._master("DejaVuSans", "L").astype(int)
    assert foot[112:].sum() > 1.3 * foot[:112].sum(), "upright"
    assert foot[:, :112].sum() > 1.3 * foot[:, 112:].sum(), "not mirrored"


def test_glyphs_are_the_same_again_on_one_thread_and_in_a_fresh_cache(pictures):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            again = glyphs.load("validation", 32)
    finally:
        torch.set_num_threads(before)
    assert again.sha256 == pictures[32].sha256
    assert torch.equal(again.inputs, pictures[32].inputs)


def test_glyphs_do_not_touch_the_global_random_state():
    torch.manual_seed(1), np.random.seed(1)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(1), np.random.seed(1)
    glyphs._plan("validation")
    assert (torch.rand(1), np.random.rand()) == expected


def test_picture_i_is_the_same_at_every_size(pictures):
    coarse = _pixels(pictures[24])
    halved = torch.nn.functional.avg_pool2d(_pixels(pictures[48]), 2)
    assert (coarse - halved).abs().max() <= 1.01, "24 px is 48 px averaged, but for rounding"
    thirds = torch.nn.functional.avg_pool2d(_pixels(pictures[24]), 3)
    quarters = torch.nn.functional.avg_pool2d(_pixels(pictures[32]), 4)
    assert (thirds - quarters).abs().max() <= 1.01
    assert (coarse - halved.roll(1, 0)).abs().mean() > 20, "and unlike the next picture"
    assert torch.equal(pictures[24].targets, pictures[48].targets)


@pytest.mark.parametrize("size", [9, 32, 48, 100])
def test_pixels_are_exact_averages_by_area(size):
    picture = np.random.default_rng(0).integers(0, 256, (2, 144, 5)).astype(np.uint8)
    picture[1] = 255
    exact = np.repeat(picture.astype(np.int64), size, axis=1).reshape(2, size, 144, 5).sum(2)  # 144 slivers to a band
    assert np.array_equal(glyphs._area_sums(picture, size), exact)


def test_inputs_are_normalised_images_and_targets_are_classes(pictures):
    split = pictures[48]
    assert split.inputs.shape == (1024, 1, 48, 48)
    assert split.inputs.dtype == torch.float32
    assert abs(split.inputs.mean()) < 0.5
    assert 0.5 < split.inputs.std() < 1.5
    assert split.classes[split.targets[0]] in split.classes
    assert len(split) == 1024


def test_published_hashes_are_said_to_match_or_not(pictures, monkeypatch):
    monkeypatch.setattr(
        glyphs, "PUBLISHED", {"glyphs-validation-24": pictures[24].sha256, "glyphs-validation-32": "00"}
    )
    assert glyphs.verified(pictures[24]) is True
    assert glyphs.verified(pictures[32]) is False
    assert glyphs.verified(pictures[48]) is None


def test_the_three_lesson_sizes_of_all_splits_have_a_published_hash():
    assert set(glyphs.PUBLISHED) == {f"glyphs-{split}-{size}" for split in glyphs.FACES for size in (24, 32, 48)}


@pytest.mark.parametrize("size", [7, 129, 24.5, "24"])
def test_a_size_that_is_not_drawn_is_refused_by_name(size):
    with pytest.raises(ValueError, match="from 8 to 128 pixels"):
        glyphs._checked(size)


@pytest.mark.parametrize("module", [glyphs, digits, docs, cifar10])
def test_an_unknown_split_is_refused_with_the_known_ones(module):
    with pytest.raises(ValueError, match="'dev'.*train, validation"):
        module.load("dev")


# Digits


def test_every_digit_picture_is_in_exactly_one_split_and_every_split_has_its_share():
    from sklearn.datasets import load_digits

    splits = [digits.load(split) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [1085, 357, 355]
    everything = torch.cat([split.inputs for split in splits]).mul(digits.STD).add(digits.MEAN).mul(16).round()
    rows = sorted(map(tuple, everything.flatten(1).int().tolist()))
    assert rows == sorted(map(tuple, load_digits().data.astype(int).tolist()))
    for split in splits:
        counts = torch.bincount(split.targets, minlength=10)
        assert counts.max() - counts.min() <= 6
        assert split.inputs.shape[1:] == (1, 8, 8)
    assert [split.sha256 for split in splits] == [digits.PUBLISHED[split.name] for split in splits]


# Docs


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library of forty files, one of them broken, with folders that must be left out."""
    place = tmp_path / "library"
    for i in range(40):
        path = place / f"pack{i % 3}" / f"mod{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'"""Module {i}."""\nif 1:\n    def f():\n        """Inner {i}: {"words " * 90}"""\n', encoding="utf-8"
        )
    (place / "broken.py").write_text("def (:\n")
    for folder in ("test", "site-packages/numpy"):
        (place / folder).mkdir(parents=True)
        (place / folder / "mod.py").write_text('"""LEFT OUT"""\nraise SystemExit\n')
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(place))
    return place


@pytest.mark.usefixtures("library")
def test_docs_targets_are_the_next_tokens():
    split = docs.load("train")
    assert len(split.inputs) == len(split.targets) > 5000
    assert torch.equal(split.inputs[1:], split.targets[:-1])
    assert split.inputs.dtype == torch.int64
    assert docs.decode(split.inputs).startswith("Module ")


def test_docs_split_by_file_and_leave_out_tests_and_packages(library):
    texts = {split: docs.decode(docs.load(split).inputs) for split in ("train",)}
    parts = {split: docs.files(library, split) for split in docs.SPLITS}
    assert not set(parts["train"]) & set(parts["validation"])
    assert {path.name for split in parts.values() for path in split} == {f"mod{i}.py" for i in range(40)} | {
        "broken.py"
    }
    assert 0 < len(parts["validation"]) < 12
    for path in parts["validation"]:
        assert f"Module {path.stem[3:]}." not in texts["train"]
    assert all(f"Inner {path.stem[3:]}:" in texts["train"] for path in parts["train"] if path.name != "broken.py")
    assert "LEFT OUT" not in texts["train"]


def test_documents_are_the_docstrings_one_by_one(library):
    (library / "short.py").write_text('def f():\n    """x"""\ndef g():\n    """xy"""\n')
    found = [docs.decode(document) for document in docs.documents("train")]
    read = [text for path in docs.files(library, "train") for text in docs.docstrings(path)]
    assert found == [text for text in read if len(text) > 1]
    assert "x" in read
    assert "xy" in found
    assert docs.decode(docs.load("train").inputs).startswith("\n\n".join(read)[:-1])
    assert any(name.startswith("docs-one-by-one-train-python-") for name in data.loaded())


def test_docs_of_nested_definitions_come_in_the_order_of_their_lines(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        '"""a"""\nclass C:\n    """b"""\n    def f(self):\n        """c\n\n            d"""\n'
        'try:\n    pass\nexcept ValueError:\n    async def g(): "e"\n'
        'else:\n    def h(): "\\d"\nx = """no docstring"""\n'
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(docs.docstrings(path)) == ["a", "b", "c\n\nd", "e", "\\d"]


def test_docs_tokens_go_there_and_back():
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert docs.decode(docs.encode(text)) == text
    assert docs.encode(text).max() == len(docs.CLASSES) - 1 == 95
    assert docs.decode(docs.encode("naïve\ttext")) == "nave   text"


def test_a_python_without_sources_is_said_to_be_one(library, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(library / "nothing"))
    with pytest.raises(CourseError, match="no readable source files"):
        docs.load("train")


# CIFAR-10, on a small copy made here


def _batch(seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
    return {b"data": images, b"labels": rng.integers(0, 10, 20).tolist(), b"batch_label": b"one"}


@pytest.fixture
def copy(tmp_path):
    """A folder with CIFAR-10's files in small, packed and unpacked in two places, and the hashes to expect."""
    contents = {name: pickle.dumps(_batch(i), protocol=2) for i, name in enumerate(cifar10.BATCH_MD5)}
    unpacked = tmp_path / "unpacked" / "inner" / cifar10.FOLDER
    unpacked.mkdir(parents=True)
    packed = tmp_path / "packed" / cifar10.ARCHIVE
    packed.parent.mkdir()
    with tarfile.open(packed, "w:gz") as archive:
        for name, content in contents.items():
            (unpacked / name).write_bytes(content)
            entry = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    hashes = {
        "archive_sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
        "batch_md5": {name: hashlib.md5(content).hexdigest() for name, content in contents.items()},
    }
    return tmp_path, hashes


@pytest.mark.parametrize("where", ["packed", "unpacked", "unpacked/inner", f"unpacked/inner/{cifar10.FOLDER}"])
def test_cifar10_is_found_verified_and_split(copy, where):
    place, hashes = copy
    train, validation, test = (cifar10._load(split, place / where, **hashes) for split in cifar10.SPLITS)
    assert [len(split) for split in (train, validation, test)] == [90, 10, 20]
    assert train.inputs.shape == (90, 3, 32, 32)
    last = torch.tensor(_batch(4)[b"data"][-1].reshape(3, 32, 32) / 255, dtype=torch.float32)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (cifar10.MEAN, cifar10.STD))
    assert torch.allclose(validation.inputs[-1] * std + mean, last, atol=1e-6)
    assert test.targets.tolist() == _batch(5)[b"labels"]


@pytest.mark.parametrize("where", ["packed", "unpacked"])
def test_cifar10_of_other_content_is_refused_before_it_is_opened(copy, where, monkeypatch):
    monkeypatch.setattr(cifar10, "_arrays", lambda _: pytest.fail("opened"))
    with pytest.raises(CourseError, match="is not the published file"):
        cifar10.load("train", copy[0] / where)


def test_cifar10_that_is_not_there_says_what_was_looked_for_and_where(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    with pytest.raises(CourseError, match="set LABKIT_DATA.*cifar-10-python.tar.gz.*does not download"):
        cifar10.load("train")
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(CourseError, match="nowhere.*cifar-10-batches-py"):
        cifar10.load("train")


def test_cifar10_with_a_batch_missing_says_which(copy):
    place, hashes = copy
    (place / "unpacked" / "inner" / cifar10.FOLDER / "data_batch_3").unlink()
    with pytest.raises(CourseError, match="data_batch_3 cannot be read"):
        cifar10._load("train", place / "unpacked", **hashes)


def test_a_pickle_that_calls_a_program_is_refused(tmp_path):
    sign = tmp_path / "sign"
    with pytest.raises(pickle.UnpicklingError, match="system.*refused"):
        cifar10._arrays(pickle.dumps({b"data": _Attack(sign)}, protocol=2))
    assert not sign.exists()
