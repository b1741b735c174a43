"""What WAL objects note of topics: everything but schemas that would make them long."""

from typing import Any
from uuid import UUID

from diskless.topics.noted_facts import NOTED_SCHEMA_MAX, NotedFacts
from metadata.operations import TopicDescription

TOPIC = UUID(int=7)


def noted(**configs: str) -> dict[str, str]:
    class Replicas:
        def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
            named = {name.replace("__", "."): value for name, value in configs.items()}
            known = TopicDescription(topic_id=TOPIC, name="t", partition_count=3, configs=named)
            return known if topic_id == TOPIC else None

    replicas: Any = Replicas()
    facts = NotedFacts(replicas).topic(TOPIC)
    assert facts is not None
    assert (facts.name, facts.partition_count) == ("t", 3)
    assert NotedFacts(replicas).topic(UUID(int=8)) is None
    return dict(facts.configs)


def test_a_schema_is_noted_unless_it_is_long() -> None:
    short, long = "x" * NOTED_SCHEMA_MAX, "x" * (NOTED_SCHEMA_MAX + 1)
    found = noted(value__schema=short, key__schema=long, value__schema__format="json")
    assert found == {"value.schema": short, "value.schema.format": "json"}
