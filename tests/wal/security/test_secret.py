"""Secrets: what shows of them, and which files they are read from."""

import os
import pickle
import traceback
from pathlib import Path

import pytest

from wal.errors import InvalidSettings
from wal.security.secret import Secret, read_private

MARKER = "nobody-may-see-this"


def test_a_secret_shows_nowhere_and_is_given_when_asked_for() -> None:
    secret = Secret(MARKER)
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>40}",
        f"{[secret]}",
    ]
    assert not any(MARKER in text for text in shown)
    assert secret.reveal() == MARKER
    with pytest.raises(TypeError) as refused:
        pickle.dumps(secret)
    assert MARKER not in "".join(traceback.format_exception(refused.value))


def test_secrets_are_equal_when_their_texts_are() -> None:
    assert Secret("ä") == Secret("ä") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"
    assert Secret("a")
    assert not Secret()
    assert str(Secret()) == ""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o644, 0o620])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "password"
    file.write_text(MARKER)
    file.chmod(mode)
    if os.getuid() == 0:
        os.chown(file, 1, 1)
    with pytest.raises(InvalidSettings, match=r"^a\.key: others may read .* chmod 600") as refused:
        read_private(file, "a.key")
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_ones_own_is_read(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "password"
    file.write_text(MARKER)
    file.chmod(mode)
    assert read_private(file, "a.key") == MARKER.encode()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"^a\.key: cannot read .*/nowhere: No such file"):
        read_private(tmp_path / "nowhere", "a.key")
