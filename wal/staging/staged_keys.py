"""Names staged objects: `staged/<sink id>/<ULID>`, WAL objects that no broker wrote.

The name says whose they are: only a commit of that sink id may name them. The ULID says when the
task that wrote the object began with it, and so until when it may be committed.

A sink id is 1 to SINK_ID_CHARS_MAX letters, digits, `.`, `_` and `-`, and neither `.` nor `..`.
"""

import re
from typing import Final

from wal.coordinates import ObjectKey
from wal.errors import Rejected
from wal.ulid import ULID_CHARS, ulid_timestamp_ms

STAGED_PREFIX: Final = "staged/"
SINK_ID_CHARS_MAX: Final = 128

_SINK_ID: Final = rf"(?!\.\.?(?:/|$))[A-Za-z0-9._-]{{1,{SINK_ID_CHARS_MAX}}}"
_SINK_ID_ALONE: Final = re.compile(_SINK_ID)
_STAGED_KEY: Final = re.compile(
    rf"{STAGED_PREFIX}({_SINK_ID})/([0-7][0-9A-HJKMNP-TV-Z]{{{ULID_CHARS - 1}}})"
)


def check_sink_id(sink_id: str) -> None:
    """Raises Rejected."""
    if _SINK_ID_ALONE.fullmatch(sink_id) is None:
        raise Rejected(
            f"sink id {sink_id!r}: must be 1 to {SINK_ID_CHARS_MAX} letters, digits, '.', '_', '-'"
        )


def staged_key(sink_id: str, ulid: str) -> ObjectKey:
    return ObjectKey(f"{staged_prefix(sink_id)}{ulid}")


def staged_prefix(sink_id: str) -> str:
    """Returns the start of the keys of one sink."""
    return f"{STAGED_PREFIX}{sink_id}/"


def is_staged(key: str) -> bool:
    """Whether the key lies where staged objects lie, whatever it is otherwise."""
    return key.startswith(STAGED_PREFIX)


def sink_of(key: str) -> str | None:
    """The sink id in the key of a staged object; None when it is not exactly such a key."""
    match = _STAGED_KEY.fullmatch(key)
    return None if match is None else match[1]


def minted_ms_of_staged_key(key: str) -> int | None:
    """When a staged object was begun; None when it is not exactly such a key."""
    match = _STAGED_KEY.fullmatch(key)
    return None if match is None else ulid_timestamp_ms(match[2])
