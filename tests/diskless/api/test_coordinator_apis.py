"""The coordinators' operations on a broker's listener, over a real socket."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from diskless.api import RunningOperations, coordinator_apis
from diskless.api.coordinator import diskless_find_batches
from diskless.api.coordinator.coordinator_operation import FIRST_OWN_KEY
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import PORTION_TOPICS, done_at_once
from diskless.ports import ClientInfo
from diskless.server.registry import Request
from metadata import operations as ops
from metadata.acls import AclBinding, AclFilter, DeletedAcls, PatternType, Permission
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.brokers import (
    ALTER_TOPIC_CONFIGS,
    COMMIT_REWRITES_HERE,
    CREATE_PARTITIONS_AT,
    DELETE_TOPICS_AT,
    SET_TOPIC_COLUMNS,
)
from metadata.messages.commit_file import COMMIT_FILES_AT
from metadata.messages.find_batches import FindBatchesMessage
from metadata.messages.shapes import Addressed
from metadata.rewrites import (
    COMPACTION,
    PlannedRewrites,
    PlanRewrites,
    Rewrite,
    RewriteCommit,
    RewriteInput,
    RewritePlan,
    RewrittenSegment,
)
from metadata.scram.credentials import ScramCredential
from tests.support.brokers.kafka_fakes import DenyEverything
from tests.support.profiles import examples
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.samples.coordinator_samples import SAMPLES, told
from tests.support.wire.coordinator_listener import (
    EXTENT,
    KEY,
    A,
    B,
    Coordinators,
    Search,
    Serving,
    ask,
    batch_fields,
    codes_of,
    serving,
)
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import (
    ClusterAuthorizationFailed,
    CommitFailed,
    DisklessError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    NotCoordinator,
    ObjectExpired,
    TopicExists,
    UnknownCredential,
    UnknownFile,
    UnknownPartition,
    UnknownTopicId,
)

# --- every operation ------------------------------------------------------------------------------


async def test_every_operation_reaches_the_coordinators_as_it_was_asked() -> None:
    extents = [EXTENT]
    topic = ops.TopicDescription(
        topic_id=A, name="t", partition_count=2, configs={"retention.ms": "5"}, assignments={1: 3}
    )
    plan = ops.SegmentPlan(
        partition=TopicIdPartition(A, 0),
        topic_name="t",
        object_key=ObjectKey("segments/s"),
        base_offset=Offset(0),
        last_offset=Offset(9),
        extents=(EXTENT,),
    )
    rolled = ops.RolledSegment(
        partition=TopicIdPartition(A, 0),
        object_key=ObjectKey("segments/s"),
        base_offset=Offset(0),
        last_offset=Offset(9),
        object_bytes=1,
        crc32c=2,
        record_count=10,
        max_timestamp_ms=3,
    )
    file = ops.CommitFile(
        object_key=KEY,
        file_size_bytes=100,
        uploader_broker_id=4,
        batches=[a_batch(0), a_batch(1)],
        owner_ids=(2, 1),
    )
    creation = ops.CreateTopic(name="t", partition_count=2, configs={"retention.ms": "5"})
    growth = ops.CreatePartitions(topic_id=A, name="t", partition_count=2)
    alter = ops.AlterTopicConfigs(topic_id=A, before={}, configs={"segment.ms": "6"})
    quotas = ops.AlterClientQuotas(
        entity=(("client-id", "c"), ("user", None)),
        changes={"producer_byte_rate": 5.0, "consumer_byte_rate": None},
    )
    rule = AclBinding(2, "t", PatternType.LITERAL, "User:u", "*", 3, Permission.ALLOW)
    added = ops.AlterScramCredential(
        user="u",
        mechanism=1,
        credential=ScramCredential(iterations=4_096, salt=b"s", stored_key=b"k", server_key=b"v"),
        is_first=True,
    )
    removed = ops.AlterScramCredential(user="u", mechanism=2, credential=None)
    share = ops.CreatePartitionsAt(topic_id=A, name="t", partitions=(1, 3))
    handed = ops.HandedFile(object_key=KEY, object_format=1, file_size_bytes=9, owner_ids=(0, 1))
    broker = ops.RegisteredBroker(1, "here", 9092, "rack", B, "X://here:9093")
    find = ops.FindBatches(TopicIdPartition(A, 0), 5, 100)
    delete = ops.DeleteRecords(TopicIdPartition(A, 0), -1)
    listing = ops.ListOffsets(TopicIdPartition(A, 0), -1)
    unknown = UnknownTopicId("no such")
    rewrite_plan = RewritePlan(
        topic_name="t",
        partition=TopicIdPartition(A, 0),
        kind=COMPACTION,
        generation=3,
        planned_at_ms=4,
        delete_horizon_ms=5,
        producers_since_ms=6,
        target_bytes=7,
        inputs=(RewriteInput(ObjectKey("segments/s"), 1, Offset(0), Offset(9), 10, 3),),
    )
    rewrite = Rewrite(
        partition=TopicIdPartition(A, 0),
        generation=3,
        segments=(
            RewrittenSegment(Offset(0), Offset(9), ObjectKey("segments/s-3"), 1, 2, 9, 1, 3),
        ),
    )
    limits = {"max_bytes": 9, "at_least_one": False, "batches_per_partition_max": 2}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
        ("create_partitions", ([growth],), {}, [None]),
        ("delete_topics", ([A, B],), {}, [None, unknown]),
        ("commit_file", (file,), {}, [ops.BatchCommit(5, -1, 0), ops.BatchCommit(6, -1, 0, True)]),
        (
            "call",
            (COMMIT_FILES_AT, Addressed(3, [file, file])),
            {},
            [
                ops.CommittedFile([ops.BatchCommit(5, -1, 0), ops.BatchCommit(6, -1, 0, True)]),
                ops.CommittedFile([], ObjectExpired("too old")),
            ],
        ),
        ("delete_records", ([delete],), {}, [ops.DeletedRecords(7)]),
        ("list_offsets", ([listing],), {}, [ops.ListedOffset(7)]),
        ("find_batches", ([find],), limits, [ops.FoundBatches(1, 9, extents)]),
        ("describe_files", ([KEY],), {"coordinator": 3}, [ops.DescribedFile(True)]),
        (
            "describe_files",
            ([KEY],),
            {"coordinator": None},
            [ops.DescribedFile(error=UnknownFile("k"))],
        ),
        ("create_topics", ([creation],), {}, [topic]),
        ("allocate_producer_ids", (), {}, [range(1_000, 2_000)]),
        ("tombstone_files", (3, [KEY]), {}, [ops.Tombstone(True)]),
        ("hand_over_files", (3, [handed]), {}, [None]),
        ("call", (CREATE_PARTITIONS_AT, Addressed(3, [share])), {}, [None]),
        ("call", (DELETE_TOPICS_AT, Addressed(3, [A])), {}, [None]),
        ("register_broker", (broker,), {}, [None]),
        ("plan_segments", (ops.PlanSegments(True),), {}, [ops.PlannedSegments((plan,))]),
        ("commit_segments", ([rolled],), {}, [ops.SegmentCommit(True)]),
        (
            "call",
            (ALTER_TOPIC_CONFIGS, [alter]),
            {},
            [ops.AlteredTopicConfigs(True, {"segment.ms": "6"})],
        ),
        ("alter_client_quotas", ([quotas],), {}, [None]),
        ("call", (SET_TOPIC_COLUMNS, [ops.SetTopicColumns(A, 1, b"b", b"c")]), {}, [None]),
        ("create_acls", ([rule],), {}, [None]),
        ("delete_acls", ([AclFilter(principal="User:u")],), {}, [DeletedAcls((rule,))]),
        ("alter_scram_credentials", ([added, removed],), {}, [None, UnknownCredential("none")]),
        ("plan_rewrites", (PlanRewrites(5),), {}, [PlannedRewrites((rewrite_plan,))]),
        ("call", (COMMIT_REWRITES_HERE, [rewrite]), {}, [RewriteCommit(True)]),
    ]
    async with serving() as s:
        for name, arguments, options, answer in calls:
            direct = Coordinators()
            for coordinators in (s.coordinators, direct):
                coordinators.usual = answer
            options = {**options, "timeout_ms": 5_678}
            got = await getattr(s.client, name)(*arguments, **options)
            wanted = await getattr(direct, name)(*arguments, **options)
            assert s.coordinators.calls == direct.calls
            s.coordinators.calls.clear()
            if isinstance(wanted, list):
                assert list(map(told, got)) == list(map(told, wanted))
            else:
                assert got == wanted
    assert {name for name, *_ in calls} == {
        name for name in vars(CoordinatorClient) if not name.startswith("_")
    }


def a_batch(number: int) -> BatchExtent:
    return BatchExtent(
        TopicIdPartition(A, 0), ByteOffset(number * 10), 10, 1, number, 5, 0, -1, -1, -1, 0
    )


@pytest.mark.parametrize("key", [93, 94, 95, 96, 97, 98, 100])
async def test_what_concerns_the_whole_call_is_in_every_entry_for_whoever_knows_the_kip(
    key: int,
) -> None:
    operation = next(s.operation for s in SAMPLES.values() if s.operation.key == key)
    async with serving() as s:
        s.coordinators.error = NotCoordinator("moved")
        for count in (0, 2):
            values = await ask_for(s, key, count)
            codes = list(codes_of(values))
            assert codes == [16] * count, operation.name


@pytest.mark.parametrize("key", [93, 94, 95, 96, 97, 98, 100])
async def test_who_may_not_act_on_the_cluster_is_told_so_in_every_entry(key: int) -> None:
    async with serving(DenyEverything()) as s:
        assert list(codes_of(await ask_for(s, key, 2))) == [31, 31]
        assert s.coordinators.calls == []


async def test_who_may_not_act_on_the_cluster_reaches_no_coordinator_by_any_operation() -> None:
    async with serving(DenyEverything()) as s:
        between_brokers = [api.name for api in s.apis if api.key >= FIRST_OWN_KEY]
        assert len(between_brokers) > 30
        for name in between_brokers:
            operation, requests, _ = SAMPLES[name]
            asked = find(
                requests,
                lambda asked, operation=operation: operation.count(asked) > 0,
                settings=settings(phases=[Phase.generate], database=None),
            )
            with pytest.raises(ClusterAuthorizationFailed):
                await s.client.call(operation, asked, timeout_ms=60_000)
            assert s.coordinators.calls == [], name


async def test_a_broker_that_may_not_act_on_the_cluster_hears_that() -> None:
    async with serving(DenyEverything()) as s:
        with pytest.raises(ClusterAuthorizationFailed, match="may not CLUSTER_ACTION"):
            await s.client.allocate_producer_ids()
        assert s.coordinators.calls == []


@given(st.data())
@examples(0.3)
def test_every_operation_is_refused_to_who_may_not_act_on_the_cluster(data: st.DataObject) -> None:
    coordinators: Any = Coordinators()
    apis = coordinator_apis(coordinators, Search(), RunningOperations(), DenyEverything())
    by_key = {api.key: api for api in apis}
    # What readers of a topic ask is for whoever may read that.
    asked_here = [one for one in SAMPLES.values() if one.operation.key in by_key]
    samples = data.draw(st.sampled_from(asked_here))
    api = by_key[samples.operation.key]
    asked = data.draw(samples.requests)
    steps: Any = api.handler(
        Request(
            version=0,
            client=ClientInfo(1, "c", "h"),
            body=samples.operation.encode_request(asked, 1_000),
            wake=EarlyEnd(),
            reserve=int,
            mute=lambda until: None,
        )
    )
    reply: Any = done_at_once(steps)
    _, error = samples.operation.decode_response(asked, b"".join(reply))
    assert isinstance(error, ClusterAuthorizationFailed)
    assert coordinators.calls == []


async def test_very_many_entries_are_served_some_at_a_time() -> None:
    counts: list[int] = []

    async def delete_topics(
        operation: object, topic_ids: Sequence[UUID], *, timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        counts.append(len(topic_ids))
        if len(counts) == 2:
            raise CommitFailed("the disk")
        return [None if topic_id != A else UnknownTopicId("gone") for topic_id in topic_ids]

    async with serving() as s:
        s.coordinators.call = delete_topics  # type: ignore[assignment,method-assign]
        others = [UUID(int=number) for number in range(1_000, 1_000 + 2 * PORTION_TOPICS)]
        answers = await s.client.delete_topics([*others, A])
    assert counts == [PORTION_TOPICS, PORTION_TOPICS, 1]
    kinds = [type(answer) for answer in answers]
    assert kinds == [
        *[type(None)] * PORTION_TOPICS,
        *[CommitFailed] * PORTION_TOPICS,
        UnknownTopicId,
    ]


async def test_very_many_look_ups_share_their_limits() -> None:
    asked: list[tuple[int, int, bool]] = []

    async def find_batches(
        operation: object, message: FindBatchesMessage, *, timeout_ms: int
    ) -> Sequence[ops.FoundBatches]:
        count = len(message.requests)
        asked.append((count, message.max_bytes, message.at_least_one))
        return [ops.FoundBatches(0, 10, [EXTENT]), *[ops.FoundBatches()] * (count - 1)]

    requests = [ops.FindBatches(TopicIdPartition(A, number), 5, 100) for number in range(1_500)]
    async with serving() as s:
        s.coordinators.call = find_batches  # type: ignore[assignment,method-assign]
        answers = await s.client.find_batches(requests, max_bytes=20)
    assert asked == [(1_000, 20, True), (500, 20 - EXTENT.length_bytes, False)]
    assert [at for at, answer in enumerate(answers) if answer.extents] == [0, 1_000]


async def ask_for(s: Serving, key: int, count: int) -> Mapping[str, Any]:
    partitions = [{"PartitionIndex": index, "Offset": 0} for index in range(count)]
    for partition in partitions:
        partition |= {"Timestamp": -1, "MaxPartitionFetchBytes": 9}
    requests: dict[int, dict[str, Any]] = {
        93: {"Topics": [{"TopicId": A, "Name": "t", "NumPartitions": 1}] * count},
        94: {"Topics": [{"TopicId": A}] * count},
        95: {
            "ObjectKey": "k",
            "ObjectFormat": 1,
            "FileSize": 100,
            "OwnerIds": [0],
            "Batches": [batch_fields()] * count,
        },
        98: {"FetchMaxBytes": 9, "MaxBatchesPerPartition": 9},
        100: {"Files": [{"ObjectKey": "k"}] * count},
    }
    topics = {"Topics": [{"TopicId": A, "Partitions": partitions}] if count else []}
    return await ask(s.address, key, {"TimeoutMs": 9_000, **topics, **requests.get(key, {})})


async def test_errors_belong_to_entries_and_keep_the_order_of_the_request() -> None:
    async with serving() as s:
        s.coordinators.answers["delete_records"] = [
            ops.DeletedRecords(4),
            ops.DeletedRecords(error=NotCoordinator("elsewhere")),
            ops.DeletedRecords(5),
            ops.DeletedRecords(error=UnknownPartition("none")),
        ]
        asked = [(A, 0), (B, 0), (A, 0), (A, 1)]
        answers = await s.client.delete_records(
            [ops.DeleteRecords(TopicIdPartition(*place), 1) for place in asked]
        )
        assert [(a.log_start_offset, type(a.error)) for a in answers] == [
            (4, type(None)),
            (-1, NotCoordinator),
            (5, type(None)),
            (-1, UnknownPartition),
        ]


# --- single operations ----------------------------------------------------------------------------


async def test_a_batch_that_cannot_be_is_refused_and_the_others_are_committed() -> None:
    async with serving() as s:
        s.coordinators.answers["commit_file"] = [ops.BatchCommit(5, 1, 0), ops.BatchCommit(6, 1, 0)]
        values = await ask(
            s.address,
            95,
            {
                "ObjectKey": "k",
                "ObjectFormat": 1,
                "FileSize": 300,
                "OwnerIds": [0],
                "Batches": [
                    batch_fields(),
                    batch_fields(Magic=1),
                    batch_fields(ByteOffset=100),
                    batch_fields(LastSequence=4),
                ],
                "TimeoutMs": 9_000,
            },
        )
        (_, message, _) = s.coordinators.calls[0]
        assert [batch.byte_offset for batch in message.file.batches] == [0, 100]
        rows = values["Batches"]
        assert [(row["ErrorCode"], row["AssignedBaseOffset"]) for row in rows] == [
            (0, 5),
            (87, -1),
            (0, 6),
            (87, -1),
        ]


async def test_offsets_for_timestamps_are_exact_to_the_record() -> None:
    async with serving() as s:
        s.coordinators.answers["list_offsets"] = [
            ops.ListedOffset(3),
            ops.ListedOffset(extent=EXTENT),
            ops.ListedOffset(),
            ops.ListedOffset(extent=EXTENT),
            ops.ListedOffset(error=UnknownPartition("none")),
        ]
        requests = [
            ops.ListOffsets(TopicIdPartition(A, index), timestamp)
            for index, timestamp in enumerate([-1, 40, 99, 666, -2])
        ]
        answers = await s.client.list_offsets(requests)
        assert [(a.offset, a.timestamp_ms, type(a.error).__name__) for a in answers] == [
            (3, -1, "NoneType"),
            (15, 41, "NoneType"),
            (-1, -1, "NoneType"),
            (-1, -1, "CorruptData"),
            (-1, -1, "UnknownPartition"),
        ]


async def test_an_answer_holds_so_many_batches_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskless_find_batches, "EXTENTS_MAX", 5)
    async with serving() as s:
        s.coordinators.answers["find_batches"] = [ops.FoundBatches(0, 99, [EXTENT] * 3)] * 3
        requests = [ops.FindBatches(TopicIdPartition(A, index), 5, 9) for index in range(3)]
        answers = await s.client.find_batches(requests, max_bytes=1_000)
        assert [len(answer.extents) for answer in answers] == [3, 2, 0]
        assert {answer.high_watermark for answer in answers} == {99}


async def test_bad_names_and_counts_refuse_their_topic_alone() -> None:
    async with serving() as s:
        s.coordinators.answers["create_partitions"] = [None]
        s.coordinators.answers["create_topics"] = [
            ops.TopicDescription(topic_id=A, name="good", partition_count=1)
        ]
        s.coordinators.answers["create_partitions_at"] = [None]
        named = [("no/name", 1), ("good", 1), ("good2", 0), ("", 1), ("__diskless_metadata", 1)]
        errors = [InvalidTopic, type(None), InvalidPartitions, InvalidTopic, TopicExists]
        grown = await s.client.create_partitions(
            [
                ops.CreatePartitions(topic_id=A, name=name, partition_count=count)
                for name, count in named
            ]
        )
        assert [type(error) for error in grown] == errors
        created = await s.client.create_topics(
            [ops.CreateTopic(name=name, partition_count=count) for name, count in named]
            + [ops.CreateTopic(name="x", partition_count=1, configs={"no.such": "1"})]
        )
        assert [type(answer) for answer in created] == [
            *(ops.TopicDescription if kind is type(None) else kind for kind in errors),
            InvalidConfig,
        ]
        shares = await s.client.call(
            CREATE_PARTITIONS_AT,
            Addressed(
                3,
                [
                    ops.CreatePartitionsAt(topic_id=A, name=name, partitions=indexes)
                    for name, indexes in [
                        ("no/name", [0]),
                        ("good", [0, 7]),
                        ("g", [-1]),
                        ("h", [10_000]),
                    ]
                ],
            ),
        )
        assert [type(error) for error in shares] == [
            InvalidTopic,
            type(None),
            InvalidPartitions,
            InvalidPartitions,
        ]
        for _, asked, _ in s.coordinators.calls:
            topics = asked.entries if isinstance(asked, Addressed) else asked
            assert [topic.name for topic in topics] == ["good"]


async def test_when_nothing_is_good_nobody_is_asked() -> None:
    async with serving() as s:
        (error,) = await s.client.create_partitions(
            [ops.CreatePartitions(topic_id=A, name="/", partition_count=1)]
        )
        assert type(error) is InvalidTopic
        assert await s.client.create_partitions([]) == []
        assert s.coordinators.calls == []


# --- who may know ---------------------------------------------------------------------------------


async def test_the_kips_operations_are_listed_and_ours_are_not() -> None:
    async with serving() as s:
        raw = await RawClient.connect(s.address)
        versions = await raw.call(18, 4, client_software_name="raw", client_software_version="1")
        await raw.close()
        listed = {
            item.api_key: (int(item.min_version), int(item.max_version))
            for item in versions.api_keys
            if item.api_key >= 93
        }
        assert listed == dict.fromkeys([93, 94, 95, 96, 97, 98, 100], (0, 0))


@pytest.mark.clients
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
async def test_stock_clients_pass_over_keys_that_they_do_not_know() -> None:
    import confluent_kafka.admin
    from aiokafka import AIOKafkaProducer
    from kafka import KafkaAdminClient

    def with_kafka_python(bootstrap: str) -> list[str]:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            return list(admin.list_topics())
        finally:
            admin.close()

    def with_librdkafka(bootstrap: str) -> int:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        return len(admin.list_topics(timeout=120).brokers)

    async with serving() as s:
        assert await asyncio.to_thread(with_kafka_python, s.bootstrap) == []
        assert await asyncio.to_thread(with_librdkafka, s.bootstrap) == 1
        producer = AIOKafkaProducer(bootstrap_servers=s.bootstrap)
        await producer.start()
        await producer.stop()
