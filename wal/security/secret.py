"""Secrets: configured values that are never shown, and the files that hold them.

A `Secret` shows as `***` wherever values are shown: in logs, tracebacks, the repr of what has it,
f-strings. Only `reveal` gives it, which is called where it is used and nowhere else. It is not
pickled, so it cannot travel to another process unseen. One that is not set shows as nothing.

A file that holds a secret is read only if nobody else on the machine may read it: neither others
nor a group, except that of a file that belongs to root, which is how a platform hands a file to one
of its users.

Failure cases: `read_private` refuses, by name, what is not there and what others may read.
"""

import hmac
import os
import stat
from pathlib import Path
from typing import Final, NoReturn

from wal.errors import InvalidSettings

SHOWN: Final = "***"


class Secret:
    """A text that shows as `***`."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        """Whether it is set."""
        return bool(self._text)

    def __str__(self) -> str:
        return SHOWN if self._text else ""

    def __repr__(self) -> str:
        return f"Secret({self})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stays in its process")


def read_private(path: Path, what: str) -> bytes:
    """The content of a file that holds a secret; `what` names the setting. Raises InvalidSettings.

    The file that is looked at is the one that is read.
    """
    try:
        with path.open("rb") as file:
            refuse_readable(os.fstat(file.fileno()), path, what)
            return file.read()
    except OSError as error:
        raise InvalidSettings(f"{what}: cannot read {path}: {error.strerror or error}") from error


def refuse_readable(status: os.stat_result, path: Path, what: str) -> None:
    """Raises InvalidSettings when others may read, or change, the file."""
    allowed = stat.S_IRUSR | stat.S_IWUSR | stat.S_IXUSR
    if status.st_uid == 0:
        allowed |= stat.S_IRGRP
    if stat.S_IMODE(status.st_mode) & ~allowed:
        raise InvalidSettings(
            f"{what}: others may read {path}, and it holds a secret; write: chmod 600 {path}"
        )
