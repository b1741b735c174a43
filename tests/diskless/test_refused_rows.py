"""What a client sees of what it may not have, where the table of all APIs does not tell."""

from typing import Any
from uuid import UUID

import pytest

from tests.support.questions.kafka_raw_client import a_batch, produce_frame
from tests.support.security.open_and_closed import (
    PARTITIONS,
    all_offsets,
    both,
    codes,
    fetch,
    names_and_codes,
    names_of_offsets,
    new_topics,
    produce,
    topics_by_id,
    topics_by_name,
)
from tests.support.security.refusing_broker import (
    ALTER,
    CLUSTER,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    NOT_ASKED,
    READ,
    TOPIC,
    WRITE,
    Denying,
    serving,
)


async def test_a_refused_topic_is_refused_whether_it_exists_or_not():
    async with serving(Denying((DESCRIBE, TOPIC), (DELETE, TOPIC), (DELETE, CLUSTER))) as broker:
        names = [{"name": name, "topic_id": None} for name in ("closed", "closed-absent", "absent")]
        deleted = await broker.client.ask(20, 6, topics=names)
        assert names_and_codes(deleted) == [("closed", 29), ("closed-absent", 29), ("absent", 3)]
        assert [row.topic_id for row in deleted.responses] == [None] * 3
        described = await broker.client.ask(3, 13, topics=names, allow_auto_topic_creation=False)
        assert names_and_codes(described) == [("closed", 29), ("closed-absent", 29), ("absent", 3)]
        assert [row.topic_id for row in described.topics] == [None] * 3
        assert broker.calls == []


async def test_the_name_of_a_topic_asked_for_by_id_is_not_in_the_text_of_an_error():
    denied = ((WRITE, TOPIC), (DELETE, TOPIC), (DESCRIBE, TOPIC), (DELETE, CLUSTER))
    async with serving(Denying(*denied)) as broker:
        produced = await broker.client.ask(0, 13, **produce(broker, 13))
        text = produced.responses[1].partition_responses[0].error_message
        assert text == "ANONYMOUS may not WRITE this topic"
        deleted = await broker.client.ask(20, 6, **topics_by_id(broker, 6))
        assert "closed" not in deleted.responses[1].error_message


async def test_an_unknown_id_is_unknown_and_not_refused():
    async with serving(Denying((WRITE, TOPIC))) as broker:
        asked = produce(broker, 13)
        unknown = {**asked["topic_data"][1], "topic_id": UUID(int=99)}
        answer = await broker.client.ask(
            0, 13, **{**asked, "topic_data": [*asked["topic_data"], unknown]}
        )
        assert codes("responses", "partition_responses")(answer) == [0, 29, 100]


@pytest.mark.parametrize("acks", [0, -1])
async def test_refused_batches_keep_no_memory(acks: int):
    async with serving(Denying((WRITE, TOPIC))) as broker:
        large = [a_batch(200_000)]
        await broker.client.send(produce_frame(1, large, topic="closed", acks=acks))
        if acks:
            correlation_id, _ = await broker.client.receive()
            assert correlation_id == 1
        else:
            # The only way to tell somebody who wants no answer.
            assert await broker.client.is_closed_by_server()
        assert broker.calls == []
        assert broker.broker.pool.statistics().in_use_bytes == 0


async def test_who_may_not_see_configs_is_not_told_how_a_new_topic_was_made():
    async with serving(Denying((DESCRIBE_CONFIGS, TOPIC))) as broker:
        created = await broker.client.ask(19, 7, **new_topics(broker, 7))
        shown, hidden = created.topics
        assert (shown.topic_config_error_code, shown.num_partitions) == (0, 2)
        assert len(shown.configs) > 0
        assert (hidden.error_code, hidden.topic_config_error_code) == (0, 29)
        assert (hidden.num_partitions, hidden.replication_factor) == (-1, -1)
        assert hidden.configs == ()


@pytest.mark.parametrize("version", range(2, 10))
async def test_all_offsets_of_a_group_are_those_of_topics_that_may_be_described(version):
    async with serving(Denying((DESCRIBE, TOPIC))) as broker:
        answer = await broker.client.ask(9, version, **all_offsets(broker, version))
        assert names_of_offsets(answer) == ["open"]


async def test_the_first_version_of_offset_fetch_tells_a_groups_error_beside_each_partition():
    async with serving(Denying((DESCRIBE, GROUP))) as broker:
        topics = both(lambda name: {"name": name, "partition_indexes": [0]})
        answer = await broker.client.ask(9, 1, group_id="closed", topics=topics)
        assert PARTITIONS(answer) == [30, 30]
        assert broker.calls == []


async def test_a_group_is_not_described_to_who_may_not_describe_the_topics_it_reads():
    async with serving(Denying((DESCRIBE, TOPIC))) as broker:
        answer = await broker.client.ask(
            69, 1, group_ids=["open", "reads-closed"], include_authorized_operations=True
        )
        shown, hidden = answer.groups
        assert (shown.error_code, len(shown.members)) == (0, 1)
        assert shown.authorized_operations == 0b110101001000
        assert (hidden.error_code, hidden.members) == (29, ())
        assert (hidden.group_id, hidden.authorized_operations) == ("reads-closed", NOT_ASKED)


async def test_a_permission_that_goes_ends_what_a_fetch_session_reads():
    authorizer = Denying()
    async with serving(authorizer) as broker:
        client = broker.client
        first = {**fetch(broker, 12), "session_epoch": 0}
        answer = await client.ask(1, 12, **first)
        assert codes("responses", "partitions")(answer) == [0, 0]
        more = {**first, "session_id": answer.session_id, "topics": []}
        authorizer.denials = [(READ, TOPIC)]
        broker.calls.clear()
        answer = await client.ask(1, 12, **{**more, "session_epoch": 1})
        assert [topic.topic for topic in answer.responses] == ["closed"]
        assert codes("responses", "partitions")(answer) == [29]
        assert broker.heard_of_closed() == []
        authorizer.denials = []
        answer = await client.ask(1, 12, **{**more, "session_epoch": 2})
        assert [topic.topic for topic in answer.responses] == ["closed"]
        assert codes("responses", "partitions")(answer) == [0]


async def test_a_session_asks_again_only_when_rules_or_its_topics_are_others():
    authorizer = Denying()
    async with serving(authorizer) as broker:
        client = broker.client
        partitions = fetch(broker, 13)["topics"][0]["partitions"]
        unknown = {"topic_id": UUID(int=99), "partitions": partitions}
        first = {**fetch(broker, 13), "session_epoch": 0}
        answer = await client.ask(1, 13, **first)
        more = {**first, "session_id": answer.session_id, "topics": []}

        async def asked(epoch: int, **others: Any) -> int:
            authorizer.asked.clear()
            await client.ask(1, 13, **{**more, "session_epoch": epoch, **others})
            return len(authorizer.asked)

        assert [await asked(1), await asked(2), await asked(3)] == [1, 0, 0]
        authorizer.denials = [(WRITE, TOPIC)]
        assert [await asked(4), await asked(5)] == [1, 0], "other rules"
        assert await asked(6, topics=[unknown]) == 1, "another topic"
        assert await asked(7) == 1, "one that is not known may become so"


async def test_a_fetch_of_nothing_that_may_be_read_is_answered_at_once():
    async with serving(Denying((READ, TOPIC))) as broker:
        asked = fetch(broker, 12)
        answer = await broker.client.ask(1, 12, **{**asked, "topics": asked["topics"][1:]})
        assert codes("responses", "partitions")(answer) == [29]
        assert broker.calls == []


async def test_authorized_operations_are_those_that_are_not_denied():
    denied = ((WRITE, TOPIC), (ALTER, TOPIC), (DELETE, GROUP), (ALTER, CLUSTER))
    everything = {"topic": 0b110111111000, "group": 0b110101001000, "cluster": 0b1111110100000}
    async with serving(Denying(*denied)) as broker:
        client = broker.client
        answer = await client.ask(
            3, 10, topics=None,
            include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
        )  # fmt: skip
        closed, opened = answer.topics
        assert opened.topic_authorized_operations == everything["topic"]
        assert closed.topic_authorized_operations == everything["topic"] - (1 << 4) - (1 << 7)
        assert answer.cluster_authorized_operations == everything["cluster"] - (1 << 7)
        answer = await client.ask(
            75, 0, topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None
        )
        assert [topic.topic_authorized_operations for topic in answer.topics] == [
            closed.topic_authorized_operations,
            everything["topic"],
        ]
        answer = await client.ask(
            15, 6, groups=["open", "closed"], include_authorized_operations=True
        )
        assert [group.authorized_operations for group in answer.groups] == [
            everything["group"],
            everything["group"] - (1 << 6),
        ]


async def test_who_may_not_describe_has_no_authorized_operations():
    denied = ((DESCRIBE, TOPIC), (DESCRIBE, GROUP), (DESCRIBE, CLUSTER))
    async with serving(Denying(*denied)) as broker:
        client = broker.client
        answer = await client.ask(
            3, 10, **topics_by_name(broker, 10),
            include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
        )  # fmt: skip
        assert answer.topics[1].topic_authorized_operations == NOT_ASKED
        assert answer.cluster_authorized_operations == 0
        answer = await client.ask(
            75, 0, topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None
        )
        assert answer.topics[0].topic_authorized_operations == NOT_ASKED
        answer = await client.ask(15, 6, groups=["closed"], include_authorized_operations=True)
        assert answer.groups[0].authorized_operations == NOT_ASKED
