"""Directories with everybody's records and keys are the broker's own."""

import stat
from pathlib import Path

import pytest

from diskless.storage.private_places import make_private, refuse_open
from tests.support.brokers.live_broker import LiveBroker
from wal.errors import InvalidSettings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_broker_makes_its_directories_for_itself(tmp_path: Path) -> None:
    data, store = tmp_path / "there" / "data", tmp_path / "store" / "objects"
    with LiveBroker(data, {"object.store.url": f"file://{store}"}):
        assert mode(data) == mode(store) == 0o700
    make_private(tmp_path)


@pytest.mark.parametrize("open_one", ["data", "store"])
@pytest.mark.parametrize("open_mode", [0o750, 0o705, 0o770])
def test_where_users_log_in_nobody_else_may_enter(
    tmp_path: Path, open_one: str, open_mode: int
) -> None:
    for name in ("data", "store"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / open_one).chmod(open_mode)
    settings = {
        "object.store.url": f"file://{tmp_path / 'store'}",
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
    }
    with pytest.raises(InvalidSettings, match=f"write: chmod 700 {tmp_path / open_one}"):
        LiveBroker(tmp_path / "data", settings).__enter__()


def test_a_directory_that_is_not_there_is_not_open(tmp_path: Path) -> None:
    refuse_open(tmp_path / "none", "the data directory")


def test_who_asks_nobody_takes_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with LiveBroker(tmp_path / "data"):
        assert mode(tmp_path / "data") == 0o755
