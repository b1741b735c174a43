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


class TakenNames:
    """Names of topics there are, to which new ones must not be too similar."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_folded = {
            name.replace(".", "_"): name for name in names if "." in name or "_" in name
        }

    def check_collision(self, name: str) -> None:
        """Raises InvalidTopic when a taken name differs only in '.' against '_'.

        Kafka's metrics do not tell the two apart, and its tools expect the broker to refuse.
        """
        other = self._by_folded.get(name.replace(".", "_"))
        if other is not None and other != name:
            raise InvalidTopic(f"{name!r} collides with the topic {other!r}")


def is_internal(name: str) -> bool:
    """Whether clients treat the topic as one of the cluster's own."""
    return name in _INTERNAL
