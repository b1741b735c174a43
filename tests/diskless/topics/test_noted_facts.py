"""What WAL objects note of topics: everything, and of long schemas what tells them apart.

Their text is noted once, before a topic gets them.
"""

import random
from typing import Any
from uuid import UUID

from diskless.topics.noted_facts import NotedFacts
from diskless.topics.schema_notes import SchemaNotes
from metadata.operations import TopicDescription
from wal.chunks.kept_notes import KeptNotes, decode_kept_notes
from wal.chunks.object_notes import NOTED_SCHEMA_MAX, is_schema_reference, schema_reference
from wal.clock import ManualClock
from wal.stores.memory_store import MemoryStore

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


SHORT, LONG = "x" * NOTED_SCHEMA_MAX, "é" * (NOTED_SCHEMA_MAX + 1)


def test_a_schema_is_noted_unless_it_is_long() -> None:
    found = noted(value__schema=SHORT, key__schema=LONG, value__schema__format="json")
    reference = schema_reference(LONG)
    assert found == {
        "key.schema": reference,
        "value.schema": SHORT,
        "value.schema.format": "json",
    }
    assert is_schema_reference(reference)
    assert schema_reference(LONG + "x") != reference


async def test_long_schemas_are_noted_with_their_text_and_others_are_not() -> None:
    clock = ManualClock()
    async with MemoryStore(clock=clock) as store:
        notes = SchemaNotes(store, clock=clock, rng=random.Random(1))
        await notes.keep([{"value.schema": SHORT, "retention.ms": "1"}, {}])
        assert not [stat async for stat in store.list("")]
        await notes.keep([{"value.schema": LONG}, {"key.schema": LONG, "value.schema": SHORT}])
        (stat,) = [stat async for stat in store.list("notes/")]
        kept = decode_kept_notes(await store.get(stat.key), stat.key)
        assert kept == KeptNotes(schemas=(LONG,))
