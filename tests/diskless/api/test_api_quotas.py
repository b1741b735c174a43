"""Quotas over a real socket: set and described in all versions, and what they do to connections.

Time is the tests', but for the timer of a mute connection, which really runs; so waits are short.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from diskless.quotas.quota_settings import QuotaSettings
from metadata.operations import AlterClientQuotas
from tests.support.brokers import kafka_fakes
from tests.support.brokers.kafka_fakes import Broker
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import (
    RawClient,
    a_batch,
    fetch_frame,
    frame,
    produce_frame,
)
from wal.clock import ManualClock
from wal.errors import CommitFailed

connected = partial(kafka_fakes.connected, partitions=1)

DESCRIBE, ALTER = 48, 49
INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35
EXACT, DEFAULT, ANY = 0, 1, 2
ONE_SECOND = QuotaSettings(window_count=2, window_s=1)
"""A burst of one second's worth."""


def named(**parts: str | None) -> list[dict[str, str | None]]:
    return [
        {"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in parts.items()
    ]


def entry(entity: Sequence[Mapping[str, str | None]], **values: float | None) -> dict[str, Any]:
    """None: removed."""
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in values.items()
    ]
    return {"entity": entity, "ops": ops}


async def alter(
    client: RawClient, *entries: Mapping[str, Any], version: int = 1, validate_only: bool = False
) -> Sequence[Any]:
    answer = await client.ask(ALTER, version, entries=entries, validate_only=validate_only)
    return answer.entries  # type: ignore[no-any-return]


async def describe(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    return await client.ask(
        DESCRIBE,
        1,
        components=[
            {"entity_type": kind, "match_type": match_type, "match": name}
            for kind, match_type, name in components
        ],
        strict=strict,
    )


def shown(answer: Any) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    assert answer.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in found.entity},
            {value.key: value.value for value in found.values},
        )
        for found in answer.entries
    ]


# --- setting and describing


@pytest.mark.parametrize("version", [0, 1])
async def test_what_is_set_is_described_in_every_version(version: int) -> None:
    async with connected() as (broker, client):
        answers = await alter(
            client,
            entry(named(user="u", client_id=None), producer_byte_rate=1_000.0),
            entry(named(client_id="c"), consumer_byte_rate=2_000.0, producer_byte_rate=3.0),
            version=version,
        )
        assert [(a.error_code, a.error_message) for a in answers] == [(0, None)] * 2
        assert [(p.entity_type, p.entity_name) for p in answers[0].entity] == [
            ("user", "u"),
            ("client-id", None),
        ]
        assert broker.quotas.known == {
            (("client-id", None), ("user", "u")): {"producer_byte_rate": 1_000.0},
            (("client-id", "c"),): {"consumer_byte_rate": 2_000.0, "producer_byte_rate": 3.0},
        }
        answer = await client.ask(DESCRIBE, version, components=[], strict=False)
        assert answer.throttle_time.total_seconds() == 0
        assert shown(answer) == [
            ({"client-id": None, "user": "u"}, {"producer_byte_rate": 1_000.0}),
            ({"client-id": "c"}, {"consumer_byte_rate": 2_000.0, "producer_byte_rate": 3.0}),
        ]


async def test_quotas_are_set_and_removed_one_by_one() -> None:
    async with connected() as (_, client):
        both = entry(named(user="u"), producer_byte_rate=1.0, consumer_byte_rate=2.0)
        await alter(client, both)
        await alter(client, entry(named(user="u"), producer_byte_rate=None))
        assert shown(await describe(client)) == [({"user": "u"}, {"consumer_byte_rate": 2.0})]
        # What is not there can be removed all the same, and whatever its name is.
        (answer,) = await alter(client, entry(named(user="u"), consumer_byte_rate=None, odd=None))
        assert answer.error_code == 0
        assert shown(await describe(client)) == []


async def test_a_validation_sets_nothing_and_finds_what_is_wrong() -> None:
    async with connected() as (broker, client):
        answers = await alter(
            client,
            entry(named(user="u"), producer_byte_rate=1.0),
            entry(named(user="v"), producer_byte_rate=-1.0),
            validate_only=True,
        )
        assert [answer.error_code for answer in answers] == [0, INVALID_REQUEST]
        assert broker.quotas.altered == []


BAD_ENTRIES: Mapping[str, tuple[dict[str, Any], str]] = {
    "no entity": (entry([], producer_byte_rate=1.0), "names a user"),
    "unknown type": (entry(named(group="g"), producer_byte_rate=1.0), "entity type 'group'"),
    "empty name": (entry(named(user=""), producer_byte_rate=1.0), "an empty user"),
    "type twice": (
        entry(named(user="a") + named(user="b"), producer_byte_rate=1.0),
        "more than once",
    ),
    "ip and user": (
        entry(named(ip="10.0.0.1", user="u"), connection_creation_rate=1.0),
        "together with no user",
    ),
    "unknown key": (entry(named(user="u"), producer_rate=1.0), "no quota 'producer_rate'"),
    "key of others": (entry(named(ip="10.0.0.1"), producer_byte_rate=1.0), "of ip=10.0.0.1"),
    "rate of addresses": (
        entry(named(user="u"), connection_creation_rate=5.0),
        "no quota 'connection_creation_rate' of user=u",
    ),
    "no address": (entry(named(ip="a.example"), connection_creation_rate=5.0), "is no address"),
    "another form": (entry(named(ip="::ffff:10.0.0.1"), connection_creation_rate=5.0), "no addr"),
    "half a connection": (entry(named(ip=None), connection_creation_rate=0.5), "a whole number"),
    "no share": (entry(named(user="u"), request_percentage=0.0), "greater than 0"),
    "zero": (entry(named(user="u"), producer_byte_rate=0.0), "greater than 0"),
    "negative": (entry(named(user="u"), consumer_byte_rate=-5.0), "greater than 0"),
    "infinite": (entry(named(user="u"), producer_byte_rate=float("inf")), "greater than 0"),
    "not a number": (entry(named(user="u"), producer_byte_rate=float("nan")), "greater than 0"),
    "fraction": (entry(named(user="u"), producer_byte_rate=1.5), "a whole number"),
    "less than one": (entry(named(user="u"), producer_byte_rate=1e-9), "a whole number"),
    "too large": (entry(named(user="u"), producer_byte_rate=1e19), "too large"),
    "name too long": (entry(named(user="u" * 32_768), producer_byte_rate=1.0), "more than 32767"),
}


@pytest.mark.parametrize(("bad", "why"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
async def test_a_bad_entry_is_refused_and_the_others_are_not(bad: dict[str, Any], why: str) -> None:
    good = entry(named(user="good"), producer_byte_rate=1.0)
    async with connected() as (broker, client):
        refused, accepted = await alter(client, bad, good)
        assert refused.error_code == INVALID_REQUEST
        assert why in refused.error_message
        assert accepted.error_code == 0
        assert list(broker.quotas.known) == [(("user", "good"),)]


async def test_what_is_named_twice_is_refused_both_times() -> None:
    async with connected() as (broker, client):
        twice = entry(named(user="u", client_id="c"), producer_byte_rate=1.0)
        again = entry(named(client_id="c", user="u"), producer_byte_rate=2.0)
        ops = entry(named(user="v"), producer_byte_rate=1.0)
        ops["ops"] = ops["ops"] * 2
        answers = await alter(client, twice, again, ops)
        assert [answer.error_code for answer in answers] == [INVALID_REQUEST] * 3
        assert "client-id=c, user=u occurs" in answers[0].error_message
        assert "more than once" in answers[2].error_message
        assert broker.quotas.altered == []


async def test_a_coordinator_that_fails_is_an_error_of_every_entry_that_was_sound() -> None:
    async with connected() as (broker, client):
        broker.quotas.error = CommitFailed("away")
        good = entry(named(user="good"), producer_byte_rate=1.0)
        bad = entry(named(user=""), producer_byte_rate=1.0)
        answers = await alter(client, bad, good)
        assert [answer.error_code for answer in answers] == [INVALID_REQUEST, 56]


async def test_a_value_that_is_whole_but_for_rounding_is_whole() -> None:
    async with connected() as (broker, client):
        await alter(client, entry(named(user="u"), producer_byte_rate=1024 * 1.1 * 10 / 1.1))
        (request,) = broker.quotas.altered
        assert request == AlterClientQuotas(
            entity=(("user", "u"),), changes={"producer_byte_rate": 10_240.0}
        )


KNOWN = [
    {"user": "u"},
    {"user": None},
    {"user": "u", "client-id": "c"},
    {"user": "v", "client-id": None},
    {"client-id": "c"},
    {"client-id": None},
]
FILTERS = {
    "all": ((), False, [0, 1, 2, 3, 4, 5]),
    "nothing": ((), True, []),
    "one user": ([("user", EXACT, "u")], False, [0, 2]),
    "one user alone": ([("user", EXACT, "u")], True, [0]),
    "default user": ([("user", DEFAULT, None)], False, [1]),
    "any user": ([("user", ANY, None)], False, [0, 1, 2, 3]),
    "any user alone": ([("user", ANY, None)], True, [0, 1]),
    "any pair": ([("user", ANY, None), ("client-id", ANY, None)], True, [2, 3]),
    "a pair": ([("client-id", EXACT, "c"), ("user", EXACT, "u")], False, [2]),
    "default client": ([("client-id", DEFAULT, None)], False, [3, 5]),
    "unknown": ([("client-id", EXACT, "nobody")], False, []),
    "ip": ([("ip", ANY, None)], False, []),
}


@pytest.mark.parametrize(("components", "strict", "expected"), FILTERS.values(), ids=FILTERS)
async def test_a_filter_finds_the_entities_that_match(
    components: Sequence[tuple[str, int, str | None]], strict: bool, expected: Sequence[int]
) -> None:
    async with connected() as (broker, client):
        for number, parts in enumerate(KNOWN):
            broker.quotas.set(tuple(sorted(parts.items())), producer_byte_rate=float(number + 1))
        answer = shown(await describe(client, *components, strict=strict))
        found = sorted(int(quotas["producer_byte_rate"]) - 1 for _, quotas in answer)
        assert found == expected
        assert all(entity == KNOWN[int(q["producer_byte_rate"]) - 1] for entity, q in answer)


BAD_FILTERS = {
    "empty type": ([("", EXACT, "u")], INVALID_REQUEST),
    "unknown type": ([("group", EXACT, "u")], UNSUPPORTED_VERSION),
    "twice": ([("user", EXACT, "u"), ("user", ANY, None)], INVALID_REQUEST),
    "exact without a name": ([("user", EXACT, None)], INVALID_REQUEST),
    "default with a name": ([("user", DEFAULT, "u")], INVALID_REQUEST),
    "any with a name": ([("user", ANY, "u")], INVALID_REQUEST),
    "unknown match": ([("user", 3, None)], INVALID_REQUEST),
    "ip and user": ([("ip", ANY, None), ("user", ANY, None)], INVALID_REQUEST),
}


@pytest.mark.parametrize(("components", "code"), BAD_FILTERS.values(), ids=BAD_FILTERS)
async def test_a_bad_filter_is_an_error_of_the_request(
    components: Sequence[tuple[str, int, str | None]], code: int
) -> None:
    async with connected() as (broker, client):
        broker.quotas.set((("user", "u"),), producer_byte_rate=1.0)
        answer = await describe(client, *components)
        assert (answer.error_code, answer.entries) == (code, None)
        assert answer.error_message


# --- produce


API_VERSIONS_0 = frame(18, 0, 9, b"")


def produced(rest: bytes, version: int = 9) -> int:
    """The throttle time of a Produce response without errors, in milliseconds."""
    schema = load_response_schema(0, version)
    response, _ = entity_reader(schema)(rest, 1 if schema.__header_schema__.__flexible__ else 0)
    assert response.responses[0].partition_responses[0].error_code == 0
    return round(response.throttle_time.total_seconds() * 1000)


def fetched(rest: bytes, version: int = 11) -> tuple[int, int]:
    """Throttle time of a Fetch response without errors, and the bytes of its records."""
    schema = load_response_schema(1, version)
    response, _ = entity_reader(schema)(rest, 1 if schema.__header_schema__.__flexible__ else 0)
    assert response.error_code == 0
    size = sum(
        len(partition.records or b"")
        for topic in response.responses
        for partition in topic.partitions
    )
    return round(response.throttle_time.total_seconds() * 1000), size


def pending(client: RawClient) -> bytes:
    """What arrived and was not asked for yet."""
    buffered: bytearray = client.reader._buffer  # type: ignore[attr-defined]
    return bytes(buffered)


async def nothing_comes(broker: Broker, client: RawClient) -> None:
    """Whatever had been sent to the server before was looked at, and not answered."""
    other = await RawClient.connect(broker.server.address)
    for _ in range(5):
        await other.send(API_VERSIONS_0)
        await other.receive()
    await other.close()
    assert pending(client) == b""


@pytest.mark.parametrize("version", [3, 7, 8, 9, 11, 12])
async def test_a_producer_over_its_quota_is_told_at_once_and_then_not_read(version: int) -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=10_000.0)
        first = produce_frame(1, [a_batch(5_000)], version=version)
        second = produce_frame(2, [a_batch(8_000)], version=version)
        await client.send(first)
        assert produced((await client.receive())[1], version) == 0
        await client.send(second, API_VERSIONS_0)
        told_ms = produced((await client.receive())[1], version)
        # As much as the excess takes at 10 bytes a millisecond.
        assert told_ms == -(-(len(first) + len(second) - 10_000) // 10)
        await nothing_comes(broker, client)
        assert broker.metrics.received["Produce"] == 2
        clock.advance(told_ms / 1000)
        assert (await client.receive())[0] == 9


async def test_requests_in_flight_all_count_and_the_last_one_tells_how_long() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("user", "ANONYMOUS"),), producer_byte_rate=100_000.0)
        broker.manager.hold = True
        requests = [produce_frame(number, [a_batch(40_000)]) for number in range(1, 5)]
        await client.send(*requests)
        # The third exceeds the quota: the fourth was received with it, or stays in the socket.
        await until(lambda: len(broker.manager.held) == 3)
        await nothing_comes(broker, client)
        clock.advance(0.05)
        for _ in range(3):
            broker.manager.release_held(0)
        told = [produced((await client.receive())[1]) for _ in range(3)]
        # While they waited for their commit, some of the wait went by.
        assert told == [0, 0, -(-(sum(map(len, requests[:3])) - 105_000) // 100)]
        clock.advance(1)
        await until(lambda: len(broker.manager.held) == 1)
        broker.manager.release_held(0)
        assert produced((await client.receive())[1]) > 0


async def test_acks_0_is_muted_without_a_word() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", None),), producer_byte_rate=10_000.0)
        await client.send(produce_frame(1, [a_batch(15_000)], acks=0), API_VERSIONS_0)
        await until(lambda: broker.metrics.received["Produce"] == 1)
        await nothing_comes(broker, client)
        clock.advance(5)
        assert (await client.receive())[0] == 9


async def test_a_refused_request_counts_too() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", None),), producer_byte_rate=10_000.0)
        await client.send(produce_frame(1, [a_batch(15_000)], acks=7))
        _, rest = await client.receive()
        response, _ = entity_reader(load_response_schema(0, 9))(rest, 1)
        assert response.responses[0].partition_responses[0].error_code == 21
        assert response.throttle_time.total_seconds() > 0.4


async def test_other_clients_and_other_apis_do_not_wait() -> None:
    async with connected(clock=ManualClock(), quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=100_000.0)
        await client.send(produce_frame(1, [a_batch(120_000)]))
        assert produced((await client.receive())[1]) > 200
        other = await RawClient.connect(broker.server.address)
        # Same client id, other connection: told at its first Produce, and not before.
        await other.send(API_VERSIONS_0, fetch_frame(2), produce_frame(3, [a_batch(100)]))
        assert (await other.receive())[0] == 9
        assert fetched((await other.receive())[1])[0] == 0
        assert produced((await other.receive())[1]) > 200
        await other.close()


async def test_a_mute_connection_is_not_idle() -> None:
    clock = ManualClock()
    settings = {"clock": clock, "quota_settings": ONE_SECOND, "idle_max_ms": 150}
    async with connected(**settings) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=100_000.0)
        await client.send(produce_frame(1, [a_batch(140_000)]))
        assert produced((await client.receive())[1]) > 400
        clock.advance(0.3)
        broker.server.sweep()
        assert broker.open_connections == 1
        # It has its idle time again when it may speak.
        clock.advance(0.2)
        await client.send(API_VERSIONS_0)
        assert (await client.receive())[0] == 9
        clock.advance(0.2)
        broker.server.sweep()
        assert await client.is_closed_by_server()


async def test_a_mute_connection_does_not_hold_up_a_stop() -> None:
    async with asyncio.timeout(120):
        async with connected(quota_settings=ONE_SECOND, stop_timeout_ms=600_000) as (
            broker,
            client,
        ):
            broker.quotas.set((("client-id", "raw"),), producer_byte_rate=1_000.0)
            await client.send(produce_frame(1, [a_batch(100_000)]), API_VERSIONS_0)
            assert produced((await client.receive())[1]) > 90_000
            await nothing_comes(broker, client)


async def test_a_client_that_goes_while_it_is_mute_leaves_nothing_behind() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, _):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=100_000.0)
        leaving = await RawClient.connect(broker.server.address)
        await leaving.send(produce_frame(1, [a_batch(120_000)]), API_VERSIONS_0)
        await leaving.receive()
        await leaving.close()
        clock.advance(1)
        await until(lambda: broker.open_connections == 1)
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


async def test_who_is_mute_again_and_again_holds_no_memory_meanwhile() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=1_000_000.0)
        # A part of the second is read with the end of the first.
        sizes = [1_100_000, 600_000, 100_000, 30_000, 250_000, 50_000, 64_000, 200_000, 150_000]
        frames = [produce_frame(at, [a_batch(size)]) for at, size in enumerate(sizes, 1)]
        sending = asyncio.create_task(client.send(*frames))
        waits = 0
        for number in range(len(sizes)):
            told_ms = produced((await client.receive())[1])
            if not told_ms:
                continue
            waits += 1
            await nothing_comes(broker, client)
            if number:
                # The next request is in the socket, and nothing of it here.
                await until(lambda: broker.server.statistics().request_bytes_held == 0)
            clock.advance(told_ms / 1000)
        await sending
        assert waits >= 5


async def test_a_quota_that_is_lifted_ends_no_wait_that_was_told() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), producer_byte_rate=100_000.0)
        await client.send(produce_frame(1, [a_batch(120_000)]), produce_frame(2, [a_batch(90_000)]))
        assert produced((await client.receive())[1]) > 0
        broker.quotas.set((("client-id", "raw"),))
        await nothing_comes(broker, client)
        clock.advance(1)
        assert produced((await client.receive())[1]) == 0


# --- fetch


async def test_a_consumer_gets_its_quota_and_waits_for_more() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), consumer_byte_rate=100_000.0)
        broker.manager.fetch_records = [a_batch(40_000)]
        for expected in (False, False, True):
            await client.send(fetch_frame(1))
            throttle_ms, size = fetched((await client.receive())[1])
            assert size == 40_000, "data that was read is given"
            assert (throttle_ms > 200) == expected
        await client.send(fetch_frame(1))
        await nothing_comes(broker, client)
        clock.advance(2)
        assert fetched((await client.receive())[1])[1] == 40_000


async def test_a_fetch_reads_no_more_than_the_quota_allows() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), consumer_byte_rate=100_000.0)
        broker.manager.fetch_records = [a_batch(1_000)] * 500
        await client.send(fetch_frame(1))
        await client.receive()
        assert broker.manager.fetches_granted == [(500_000, 100_000)]


async def test_a_quota_below_a_batch_does_not_starve_its_consumer() -> None:
    async with connected(clock=ManualClock(), quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), consumer_byte_rate=10.0)
        await client.send(produce_frame(1, [a_batch(5_000)]))
        assert produced((await client.receive())[1]) == 0
        await client.send(fetch_frame(1))
        throttle_ms, size = fetched((await client.receive())[1])
        assert size == 5_000
        assert throttle_ms > 400_000


@pytest.mark.parametrize("version", [4, 6, 7, 11, 12, 13, 15, 16])
async def test_who_is_over_its_quota_gets_an_empty_answer_at_once(version: int) -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set((("client-id", "raw"),), consumer_byte_rate=100_000.0)
        broker.manager.fetch_records = [a_batch(130_000)]
        await client.send(fetch_frame(1))
        assert fetched((await client.receive())[1])[1] == 130_000
        # Another connection of the same client.
        other = await RawClient.connect(broker.server.address)
        asked = {"session_epoch": -1} if version >= 7 else {}
        answer = await other.call(1, version, 1, **asked)
        assert answer.responses == ()
        assert 0.3 < answer.throttle_time.total_seconds() < 0.4
        assert getattr(answer, "session_id", 0) == 0
        waiting = asyncio.create_task(other.call(1, version, 1, **asked))
        await nothing_comes(broker, other)
        clock.advance(2)
        assert (await waiting).responses
        await other.close()
