"""Secrets: private files are checked as they are opened, and texts of others are safe to show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmsspark.base.errors import NotAllowed, SettingsError
from cmsspark.settings.secrets import open_private, read_private, safe_text


def test_the_file_that_was_checked_is_the_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("checked")
    path.chmod(0o600)
    with open_private(path) as stream:
        path.unlink()
        path.write_text("put there later")
        assert stream.read() == b"checked"


def test_a_file_that_others_can_use_is_refused_and_a_fifo_is_not_waited_for(
    tmp_path: Path,
) -> None:
    path, fifo = tmp_path / "secret", tmp_path / "fifo"
    path.write_text("x")
    path.chmod(0o640)
    os.mkfifo(fifo, 0o600)
    with pytest.raises(NotAllowed, match="0640"):
        read_private(path)
    with pytest.raises(SettingsError, match="regular file"):
        read_private(fifo)


def test_a_text_of_others_is_one_safe_line_without_secrets() -> None:
    assert safe_text("a\x1b[31mred\nline\u202e \x9b2J") == "a [31mred line 2J"
    assert safe_text("the pass\x00word", "password", "pass word") == "the ***"
    assert safe_text("x" * 298 + "password", "password") == "x" * 298 + "**"
