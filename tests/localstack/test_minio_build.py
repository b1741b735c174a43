"""Getting MinIO: what `make minio` builds, what it leaves alone, and what it says when it fails."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localstack import minio
from localstack.local_server import LocalServerError

FakeGo = Callable[[str], None]


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    """Puts a program named `go` alone on the search path, beside what the shell has."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIO", raising=False)

    def write(script: str) -> None:
        go = programs / "go"
        go.write_text(f"#!/bin/sh\n{script}\n")
        go.chmod(0o755)

    return write


def test_the_server_is_built_once_and_found_from_then_on(
    fake_go: FakeGo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minio, "PROGRESS_EVERY_S", 0.05)
    fake_go(
        'echo "go: downloading a v1" >&2; echo b >&2; echo c >&2; sleep 0.3\n'
        'for last; do :; done; echo "$last" > "$GOBIN/minio"'
    )
    minio.install()
    told = capsys.readouterr().out
    assert "modules downloaded: 1, packages compiled: 2" in told
    built = minio.find()
    assert built is not None
    assert built.read_text() == f"{minio.MODULE}\n"
    fake_go("exit 1")
    minio.install()
    assert capsys.readouterr().out == f"MinIO is {built}\n"
    assert sorted(path.name for path in built.parent.iterdir()) == ["log", "minio"]


def test_a_build_that_fails_says_why_and_leaves_nothing_to_be_found(fake_go: FakeGo) -> None:
    fake_go('echo "a.go:1: no such thing" >&2; echo half > "$GOBIN/minio"; exit 3')
    with pytest.raises(LocalServerError, match=r"(?s)/log:.*a\.go:1: no such thing"):
        minio.install()
    assert minio.find() is None


def test_the_path_and_the_variable_name_another_server(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_path = tmp_path / "bin" / "minio"
    on_the_path.touch(mode=0o755)
    assert minio.find() == on_the_path
    monkeypatch.setenv("MINIO", "/opt/minio")
    assert minio.find() == Path("/opt/minio")
