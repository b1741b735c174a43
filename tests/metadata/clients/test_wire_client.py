"""The client over a socket: every operation, and every way in which a connection can go wrong."""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from metadata import operations as ops
from metadata.clients import wire_client
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.wire_client import WireClient, connect_tcp
from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILE
from tests.support.profiles import examples
from tests.support.samples.coordinator_samples import SAMPLES, Samples, draw_answers, told
from tests.support.wire.wire_calls import (
    FILE,
    PARTITION,
    READ,
    Script,
    a_door,
    at_once,
    connected,
    nothing,
    offset_of,
)
from tests.support.wire.wire_server import Received, WireServer
from wal.clock import ManualClock
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    InvalidRequest,
    NotCoordinator,
    ObjectExpired,
    Overloaded,
    Rejected,
)

# --- the operations -------------------------------------------------------------------------------


async def call(client: CoordinatorClient, operation: Operation[Any, Any], asked: Any) -> Any:
    """The method behind an operation, called with what the operation carries; else `call`."""
    timeout: Any = {"timeout_ms": 4_321}
    match operation.name:
        case "DisklessCreatePartitions":
            return await client.create_partitions(asked, **timeout)
        case "DisklessDeleteTopics":
            return await client.delete_topics(asked, **timeout)
        case "DisklessCommitFile":
            return await client.commit_file(asked.file, **timeout)
        case "DisklessDeleteRecords":
            return await client.delete_records(asked, **timeout)
        case "DisklessListOffsets":
            return await client.list_offsets(asked, **timeout)
        case "DisklessFindBatches":
            return await client.find_batches(
                asked.requests,
                max_bytes=asked.max_bytes,
                at_least_one=asked.at_least_one,
                isolation=asked.isolation,
                batches_per_partition_max=asked.batches_per_partition_max,
                **timeout,
            )
        case "DisklessDescribeFiles":
            return await client.describe_files(asked.keys, coordinator=asked.coordinator, **timeout)
        case "CoordinatorCreateTopics":
            return await client.create_topics(asked, **timeout)
        case "CoordinatorAllocateProducerIds":
            return [await client.allocate_producer_ids(**timeout)]
        case "CoordinatorTombstoneFiles":
            return await client.tombstone_files(*asked, **timeout)
        case "CoordinatorHandOverFiles":
            return await client.hand_over_files(*asked, **timeout)
        case "CoordinatorRegisterBroker":
            await client.register_broker(asked, **timeout)
            return [None]
        case "CoordinatorCommitSegmentsHere":
            return await client.commit_segments(asked, **timeout)
        case "CoordinatorAlterScramCredentials":
            return await client.alter_scram_credentials(asked, **timeout)
        case "CoordinatorAlterClientQuotas":
            return await client.alter_client_quotas(asked, **timeout)
        case "CoordinatorCreateAcls":
            return await client.create_acls(asked, **timeout)
        case "CoordinatorDeleteAcls":
            return await client.delete_acls(asked, **timeout)
        case _:
            return await client.call(operation, asked, **timeout)


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
@given(data=st.data())
@examples(0.06)
def test_every_operation_arrives_and_is_answered(samples: Samples, data: st.DataObject) -> None:
    request = data.draw(samples.requests)
    answers = draw_answers(data, samples, request)

    async def script(received: Received) -> None:
        received.writer.write(received.response(answers))

    async def run() -> None:
        async with connected(script) as (client, server):
            try:
                got = await call(client, samples.operation, request)
            except DisklessError as error:
                # Operations with one answer raise what is wrong with it.
                got = [error]
            (received,) = server.received
            assert received.operation is samples.operation
            assert (received.asked, received.timeout_ms) == (request, 4_321)
            assert received.client_id == "diskless-broker"
            if samples.operation.name == "DisklessFindBatches":
                got = [answer._replace(error=None) for answer in got]
                assert got == [answer._replace(error=None) for answer in answers]
            else:
                assert list(map(told, got)) == list(map(told, answers))

    asyncio.run(run())


@pytest.mark.parametrize(
    "error", [NotCoordinator("moved"), CommitFailed("disk"), ObjectExpired("old"), Rejected("no")]
)
async def test_what_concerns_the_whole_call_is_raised(error: DisklessError) -> None:
    async def script(received: Received) -> None:
        received.writer.write(received.failure(error))

    async with connected(script) as (client, _):
        broker = ops.RegisteredBroker(1, "h", 2, "r", UUID(int=3), "X://h:3")
        for asking in (
            client.commit_file(FILE),
            client.list_offsets(READ),
            client.register_broker(broker),
            client.allocate_producer_ids(),
            client.plan_segments(),
        ):
            with pytest.raises(type(error), match=str(error)) as raised:
                await asking
            assert type(raised.value) is type(error)


async def test_values_that_fit_no_request_are_refused_before_anything_is_sent() -> None:
    async with connected(at_once, request_bytes_max=500) as (client, server):
        with pytest.raises(InvalidRequest):
            await client.list_offsets([ops.ListOffsets(PARTITION, 2**63)])
        with pytest.raises(InvalidRequest, match="takes 500"):
            await client.list_offsets(READ * 100)
        assert server.connections == 0


# --- order ----------------------------------------------------------------------------------------


async def test_requests_are_written_in_the_order_of_the_calls_whoever_connects() -> None:
    connecting, slowly = a_door()
    async with connected(at_once, connect=slowly) as (client, server):
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(offset_of(client, number)) for number in range(20)]
            await asyncio.sleep(0)
            connecting.set()
        assert [task.result() for task in tasks] == list(range(20))
        assert [received.asked[0].timestamp for received in server.received] == list(range(20))
        assert server.connections == 1


async def test_a_call_that_gives_up_while_connecting_does_not_hinder_the_next() -> None:
    connecting, slowly = a_door()
    async with connected(at_once, connect=slowly) as (client, _):
        first = asyncio.create_task(offset_of(client, 1))
        second = asyncio.create_task(offset_of(client, 2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        connecting.set()
        assert await second == 2


# --- no connection --------------------------------------------------------------------------------


async def test_a_refused_connection_means_that_nothing_happened_and_is_not_tried_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    attempts = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await connect_tcp(*arguments)

    clock = ManualClock()
    client = WireClient("127.0.0.1", port, clock=clock, rng=random.Random(1), connect=counted)
    async with client:
        with pytest.raises(CommitFailed, match="no connection"):
            await client.commit_file(FILE)
        with pytest.raises(CommitFailed, match="next attempt"):
            await client.commit_file(FILE)
        assert attempts == 1
        pauses = []
        for _ in range(9):
            before = clock.monotonic()
            while attempts == len(pauses) + 1:
                clock.advance(0.01)
                with pytest.raises(CommitFailed):
                    await client.list_offsets(READ)
            pauses.append(clock.monotonic() - before)
        assert pauses[0] <= wire_client.RETRY_FIRST_S + 0.02
        assert max(pauses) <= wire_client.RETRY_MAX_S + 0.02
        assert pauses[-1] >= wire_client.RETRY_MAX_S / 2
        # Somebody is there at last.
        async with WireServer(at_once, port=port):
            clock.advance(wire_client.RETRY_MAX_S)
            assert await offset_of(client) == 7


async def test_time_that_is_up_before_there_is_a_connection_means_that_nothing_happened() -> None:
    async def never(*arguments: Any) -> Any:
        await asyncio.Event().wait()

    async with connected(at_once, connect=never) as (client, _):
        with pytest.raises(CommitFailed, match="did not answer"):
            await client.commit_file(FILE, timeout_ms=1)


async def test_a_peer_that_hangs_up_on_everything_is_left_alone_for_a_while() -> None:
    async def hang_up(received: Received) -> None:
        received.hang_up()

    clock = ManualClock()
    async with connected(hang_up, clock) as (client, server):
        with pytest.raises(CommitOutcomeUnknown):
            await client.commit_file(FILE)
        with pytest.raises(CommitFailed, match="next attempt"):
            await client.commit_file(FILE)
        assert server.connections == 1
        clock.advance(wire_client.RETRY_FIRST_S)
        with pytest.raises(CommitFailed, match="lost"):
            await client.list_offsets(READ)
        assert server.connections == 2


async def test_a_peer_that_hung_up_after_it_answered_is_reached_at_once() -> None:
    async with connected(at_once) as (client, server):
        for number in range(3):
            assert await offset_of(client, number) == number
            server.received[-1].writer.close()
            await client._connection.ended  # type: ignore[union-attr]
        assert server.connections == 3


# --- a connection that is lost, or no good --------------------------------------------------------


async def _half(received: Received) -> None:
    frame = received.response(_answers(received))
    received.writer.write(frame[: len(frame) // 2])
    await received.writer.drain()
    received.hang_up()


def _answers(received: Received) -> Sequence[Any]:
    return [ops.ListedOffset(1)] if received.operation is not COMMIT_FILE else []


async def _other_number(received: Received) -> None:
    body = received.operation.encode_response(received.asked, _answers(received))
    received.writer.write(received.frame(body, correlation_id=received.correlation_id + 1))


async def _garbage(received: Received) -> None:
    received.writer.write(received.frame(b"\xff" * 30))


async def _bad_header(received: Received) -> None:
    received.writer.write(
        (9).to_bytes(4, "big") + received.correlation_id.to_bytes(4, "big") + b"\xff" * 5
    )


async def _too_many_answers(received: Received) -> None:
    body = received.operation.encode_response(received.asked, _answers(received))
    received.writer.write(received.frame(body + b"\x00"))


async def _oversized(received: Received) -> None:
    received.writer.write((wire_client.RESPONSE_BYTES_MAX + 1).to_bytes(4, "big"))


async def _negative(received: Received) -> None:
    received.writer.write(b"\xff\xff\xff\xff")


async def _close(received: Received) -> None:
    received.writer.close()


@pytest.mark.parametrize(
    "script",
    [_half, _other_number, _garbage, _bad_header, _too_many_answers, _oversized, _negative, _close],
    ids=lambda script: script.__name__.strip("_"),
)
async def test_an_answer_that_cannot_be_believed_leaves_the_outcome_open(script: Script) -> None:
    is_bad = True

    async def first_bad(received: Received) -> None:
        await (script if is_bad else at_once)(received)

    clock = ManualClock()
    async with connected(first_bad, clock) as (client, server):
        with pytest.raises(CommitOutcomeUnknown):
            await client.commit_file(FILE)
        clock.advance(wire_client.RETRY_MAX_S)
        with pytest.raises(CommitFailed):
            await client.list_offsets(READ)
        clock.advance(wire_client.RETRY_MAX_S)
        is_bad = False
        assert await offset_of(client) == 7
        assert server.connections == 3


async def test_all_who_wait_are_told_when_the_connection_is_lost() -> None:
    async with connected(nothing) as (client, server):
        commits = [asyncio.create_task(client.commit_file(FILE)) for _ in range(2)]
        read = asyncio.create_task(client.list_offsets(READ))
        await server.until_received(3)
        server.hang_up()
        for commit in commits:
            with pytest.raises(CommitOutcomeUnknown, match="lost"):
                await commit
        with pytest.raises(CommitFailed, match="lost"):
            await read


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def twice(received: Received) -> None:
        frame = received.response([ops.ListedOffset(7)])
        received.writer.write(frame + frame)

    async with connected(twice) as (client, server):
        assert await offset_of(client) == 7
        await client._connection.ended  # type: ignore[union-attr]
        assert await offset_of(client) == 7
        assert server.connections == 2


async def test_an_answer_may_come_in_pieces_and_several_in_one() -> None:
    frames = []

    async def at_the_fifth(received: Received) -> None:
        frames.append(received.response([ops.ListedOffset(received.asked[0].timestamp)]))
        if len(frames) < 5:
            return
        data = b"".join(frames)
        for start in range(0, len(data), 7):
            received.writer.write(data[start : start + 7])
            await received.writer.drain()
            await asyncio.sleep(0)

    async with connected(at_the_fifth) as (client, _):
        offsets = await asyncio.gather(*[offset_of(client, number) for number in range(5)])
        assert offsets == list(range(5))


# --- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@given(seed=st.integers(0, 2**32))
@examples(0.25)
def test_whatever_happens_an_answer_is_the_answer_to_its_question(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], seed: int
) -> None:
    """Calls come and are given up; the peer is slow, answers in pieces, and is lost at times."""
    rng = random.Random(seed)
    clock = ManualClock()

    async def moody(received: Received) -> None:
        mood = rng.random()
        if mood < 0.05:
            received.hang_up()
            return
        offsets = [ops.ListedOffset(request.timestamp) for request in received.asked]
        frame = received.response(offsets)
        cut = rng.randrange(len(frame))
        if mood < 0.1:
            received.writer.write(frame[:cut])
            await received.writer.drain()
            received.hang_up()
        elif mood < 0.5:
            received.writer.write(frame[:cut])
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            received.writer.write(frame[cut:])
        else:
            received.writer.write(frame)

    async def ask(client: WireClient, number: int) -> str:
        try:
            assert await offset_of(client, number) == number
        except (CommitFailed, Overloaded):
            clock.advance(wire_client.RETRY_MAX_S)
            return "failed"
        return "answered"

    async def run() -> None:
        async with connected(moody, clock, in_flight_max=30) as (client, server):
            tasks = []
            for number in range(120):
                tasks.append(asyncio.create_task(ask(client, number)))
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
                if rng.random() < 0.1:
                    rng.choice(tasks).cancel()
                if rng.random() < 0.2:
                    await asyncio.wait([rng.choice(tasks)])
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in outcomes:
                assert outcome in ("answered", "failed") or isinstance(
                    outcome, asyncio.CancelledError
                ), outcome
            # What arrived did so in the order of the calls.
            numbers = [received.asked[0].timestamp for received in server.received]
            assert len(set(numbers)) == len(numbers)
            clock.advance(wire_client.RETRY_MAX_S)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
