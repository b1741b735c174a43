"""Kafka's rules for topic names."""

import re
from collections.abc import Iterable
from typing import Final

from metadata.operations import METADATA_TOPIC
from wal.errors import InvalidTopic

NAME_LENGTH_MAX: Final = 249

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", METADATA_TOPIC})


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic."""
    if not name:
        raise InvalidTopic("a topic name may not be empty")
    if name in (".", ".."):
        raise InvalidTopic("a topic may not be named '.' or '..'")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopic(f"a topic name has at most {NAME_LENGTH_MAX} characters")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(f"{name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'")


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raises InvalidTopic when another name differs only in '.' against '_'.

    Kafka's metrics do not tell the two apart, and its tools expect the broker to refuse.
    """
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == folded:
            raise InvalidTopic(f"{name!r} collides with the topic {other!r}")


def is_internal(name: str) -> bool:
    """Whether clients shall treat the topic as one of the cluster's own."""
    return name in _INTERNAL
