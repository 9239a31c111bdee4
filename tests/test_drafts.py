"""A file is there whole or not at all, whatever ends the writing."""

import os

import pytest

from labkit import drafts


def test_a_text_is_written_in_a_folder_that_is_made_for_everybody_to_read(tmp_path):
    path = tmp_path / "new" / "a.json"
    for text in ("one\n", "\u00fc\r\n"):
        drafts.write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["a.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["replace", "fdopen", "chmod"])
def test_what_ends_the_writing_leaves_the_old_text_and_no_draft(tmp_path, monkeypatch, step, error):
    path = tmp_path / "a.json"
    drafts.write_text(path, "old")

    def failing(handle, *_):
        if step == "fdopen":
            os.close(handle)
        raise error

    monkeypatch.setattr(drafts.os, step, failing)
    with pytest.raises(type(error)):
        drafts.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]
