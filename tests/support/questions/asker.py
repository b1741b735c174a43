"""Questions to a broker, one per API: what all of them need."""

import itertools
from typing import Any, Final
from uuid import UUID

from tests.support.questions.versioned_requests import PlainConnection

NOTHING: Final = 0
ILLEGAL_SASL_STATE: Final = 34
SECURITY_DISABLED: Final = 54
MEMBER_ID_REQUIRED: Final = 79
TOPIC: Final = "t"
TOPIC_RESOURCE: Final = 2
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
JOIN_GROUP, SYNC_GROUP, OFFSET_COMMIT, CREATE_TOPICS, METADATA = 11, 14, 8, 19, 3

_numbers = itertools.count()


def a_number() -> int:
    """One that nobody had before."""
    return next(_numbers)


def a_name(what: str) -> str:
    return f"{what}-{a_number()}"


class Asker:
    """Has one method per API, which asks it in a version and looks at the answer."""

    def __init__(self, connection: PlainConnection, topic_id: UUID) -> None:
        self._ask = connection.ask
        self._topic_id = topic_id

    def _topic(self, name: str = "name") -> dict[str, Any]:
        """A topic by name, and by id in versions that have it."""
        return {name: TOPIC, "topic_id": self._topic_id}

    def _create(self, topic: str, version: int = 7) -> str:
        answer = self._ask(
            CREATE_TOPICS,
            version,
            timeout_ms=5_000,
            validate_only=False,
            topics=[
                {
                    "name": topic,
                    "num_partitions": 2,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "5000"}],
                }
            ],
        )
        (created,) = answer.topics
        assert (created.name, created.error_code) == (topic, NOTHING)
        return topic
