"""Directories that only the broker's own user may look into: mode 0700.

The data directory and the directory of a `file://` store hold what rules of access are there to
keep: every record, the keys of users, and the secret of the cluster. A broker makes them so. Where
clients are asked who they are, or what they may, it does not start with one that others can enter:
they would read past all of that. Elsewhere, as on a laptop, it takes what it finds.

Failure case: InvalidSettings that says what to write. What lies in the directory is not looked at:
nobody reaches it but through its directory.
"""

import os
import stat
from pathlib import Path
from typing import Final

from wal.errors import InvalidSettings

MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: Path) -> None:
    """Make a directory, with its parents as the umask says; its name is durable. Raises OSError."""
    if path.is_dir():
        return
    _make_durable(path.parent)
    # Others find no moment in which it is open.
    path.mkdir(mode=MODE, exist_ok=True)
    sync_directory(path.parent)


def _make_durable(path: Path) -> None:
    if path.is_dir():
        return
    _make_durable(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_open(path: Path, what: str) -> None:
    """Raises InvalidSettings when others can enter a directory; `what` says what it is."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return  # It is made as it must be.
    except OSError as error:
        raise InvalidSettings(f"{what} {path}: {error.strerror or error}") from error
    if mode & _OTHERS:
        raise InvalidSettings(
            f"{what}: others may enter {path}, and read past users and rules; write: "
            f"chmod 700 {path}, or name a directory in it that is not there yet"
        )
