"""Makes the typed columns of topics follow their schemas, before a roll is planned with them.

A coordinator lists topics that have schemas; tiering/types/following.py makes columns of these, and
they are offered to the coordinator. A topic whose columns are not those of its configs is not
planned until then. Each topic is looked after once in a run.

Failure cases: those of `tiering.coordinator_client.repeated`.
"""

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from metadata.operations import SetTopicColumns, TopicSchemas
from tiering.coordinator_client import CoordinatorClient, repeated
from tiering.rounds import Progress
from tiering.types.following import followed
from tiering.types.registry import Registry, RegistryUnavailable


class SchemaFollower:
    """Looks after the columns of topics in one run."""

    def __init__(
        self,
        client: CoordinatorClient,
        registry: Registry | None,
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._registry = registry
        self._progress = progress
        self._sleep = sleep
        self._looked_after: set[UUID] = set()
        self.problems: dict[str, str] = {}
        """Why schemas give no columns, by `<topic>-key` and `<topic>-value`."""

    def look_after(self, schemas: Sequence[TopicSchemas]) -> bool:
        """Make columns follow schemas; returns whether any changed."""
        wanted = [one for one in schemas if one.topic_id not in self._looked_after]
        offered: list[SetTopicColumns] = []
        for topic in wanted:
            self._looked_after.add(topic.topic_id)
            try:
                columns, problems = followed(topic, self._registry)
            except RegistryUnavailable as error:
                # What it has stays. If its configs are new, it is planned in a later pass.
                self._not_typed(topic, "value", str(error))
                continue
            for side, problem in problems.items():
                self._not_typed(topic, side, problem)
            if columns != topic.has:
                offered.append(SetTopicColumns(topic.topic_id, *columns))
        if not offered:
            return False
        # Another job may have been first, or the topic be gone: what is planned next shows it.
        repeated(lambda: self._client.set_topic_columns(offered), self._sleep)
        return True

    def _not_typed(self, topic: TopicSchemas, side: str, reason: str) -> None:
        self.problems[f"{topic.name}-{side}"] = reason
        self._progress.not_typed(topic.name, side, reason)
