"""What a head tells its workers, as bytes; and the line on which it comes."""

import asyncio
import socket
from uuid import UUID

import pytest

from diskless.workers.birth_facts import BirthFacts
from diskless.workers.connections.balance import Load
from diskless.workers.doors import CALLS, CLIENT, NOTE_BYTES_MAX, BadNote, DoorKeeper, Doors, Note
from diskless.workers.head_line import HEAD_LOST, HEAD_SILENT, HeadLine, end_with
from diskless.workers.line import ENDS, LOGS, SYNC, SYNCED, TOPICS, Frames, Line, frame
from diskless.workers.news import (
    GONE,
    ClusterNews,
    LogNews,
    PartitionEnd,
    TopicNews,
    decode_ends,
    decode_logs,
    decode_quotas,
    encode_ends,
    encode_logs,
    encode_quotas,
)
from diskless.workers.relay import RelayedApi
from metadata.operations import Leader, RegisteredBroker, TopicDescription
from tests.support.loops.until import until
from wal.coordinates import TopicIdPartition

ANN = (("client-id", "ann"),)
FLIGHTS = UUID(int=1)
GATES = UUID(int=2)


def test_topics_ends_quotas_cluster_and_logs_come_back_as_they_were() -> None:
    topic = TopicDescription(
        topic_id=FLIGHTS,
        name="flights",
        partition_count=3,
        configs={"retention.ms": "7"},
        assignments={1: 1},
    )
    news = TopicNews([topic], [GATES])
    assert TopicNews.decode(news.encode()) == news
    ends = [
        (TopicIdPartition(FLIGHTS, 0), PartitionEnd(7, 3)),
        (TopicIdPartition(FLIGHTS, 2), GONE),
        (TopicIdPartition(GATES, 1), PartitionEnd(2**40, 0)),
    ]
    assert decode_ends(memoryview(encode_ends(ends))) == dict(ends)
    assert decode_ends(memoryview(b"")) == {}
    quotas = {ANN: {"producer_byte_rate": 1.5}}
    assert decode_quotas(encode_quotas(quotas)) == quotas
    broker = RegisteredBroker(4, "h", 9, "rack", UUID(int=5), "PLAINTEXT://h:9")
    cluster = ClusterNews(2, [None, Leader(3, 4, "h", 9, UUID(int=5))], {4: broker})
    assert ClusterNews.decode(cluster.encode()) == cluster
    logs = [LogNews(1, 2, 3), LogNews()]
    assert decode_logs(memoryview(encode_logs(logs))) == logs


def test_birth_facts_and_notes_come_back_as_they_were() -> None:
    api = RelayedApi(3, "Metadata", 0, 12, 9, 0, True)
    facts = BirthFacts(
        number=1,
        life=3,
        count=2,
        node_id=0,
        cluster_id="c",
        data="/d",
        addresses=[("127.0.0.1", 9092), ("::1", 9093)],
        apis=[api],
    )
    assert BirthFacts.decode(facts.encode()) == facts
    load = Load(0.75, is_short=True)
    assert Load.decode(memoryview(load.encode())) == load
    note = Note(CLIENT, "::1", "ann", "INSIDE", 7 << 32)
    assert Note.decode(note.encode()) == note
    for bad in (b"[]", b'{"purpose": 1}', b'{"other": "x"}', b"\xff", b'{"purpose": "x"}'):
        with pytest.raises(BadNote):
            Note.decode(bad)


def test_messages_are_cut_out_of_whatever_pieces_arrive() -> None:
    sent = frame(ENDS, b"abc") + frame(LOGS) + frame(TOPICS, bytes(1_000))
    for size in (1, 3, 7, len(sent)):
        frames = Frames()
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        found = [(kind, bytes(body)) for piece in pieces for kind, body in frames.add(piece)]
        assert found == [(ENDS, b"abc"), (LOGS, b""), (TOPICS, bytes(1_000))]


async def test_who_takes_what_has_come_hears_of_it_before_the_loop_gets_there() -> None:
    ours, theirs = socket.socketpair()
    ended: list[int] = []

    async def page() -> bytes:
        return b""

    worker = HeadLine(theirs, metadata_partitions=1, page=page, ended=ended.append)
    heard: list[object] = []
    worker.known.subscribe(heard.append)
    place = TopicIdPartition(FLIGHTS, 0)
    ours.send(frame(ENDS, encode_ends([(place, PartitionEnd(5, 0))])))
    worker.take()
    assert [list(one) for one in heard] == [[place]]
    assert worker.known.partition_state(place) == PartitionEnd(5, 0)
    quota = {ANN: {"producer_byte_rate": 10.0}}
    ours.send(frame(3, encode_quotas(quota)))
    worker.take()
    assert worker.known.client_quotas() == quota
    ours.close()
    worker.take()
    assert ended == [HEAD_LOST]


async def test_a_line_sends_what_the_socket_does_not_take_when_it_does() -> None:
    ours, theirs = socket.socketpair()
    received: list[int] = []
    lost: list[int] = []
    head = Line(ours, lambda kind, content: None, lambda: lost.append(1))
    worker = Line(theirs, lambda kind, content: received.append(len(content)), lambda: None)
    for _ in range(20):
        head.send(frame(SYNC, bytes(1 << 20)))
    await until(lambda: len(received) == 20)
    worker.close()
    await until(lambda: bool(lost))
    assert received == [1 << 20] * 20


async def test_a_client_whose_name_is_too_long_to_be_told_is_not_served() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    came: list[Note] = []
    keeper = DoorKeeper(ours, lambda note, end: (came.append(note), end.close()))
    doors = Doors(theirs)
    longest = Note(CLIENT, "::1", "n" * (NOTE_BYTES_MAX - 200), "INSIDE", 1)
    (await doors.open(longest)).close()
    with pytest.raises(OSError, match="too long"):
        await doors.open(Note(CLIENT, "::1", "n" * NOTE_BYTES_MAX, "INSIDE", 1))
    # What is longer all the same is nobody.
    socket.send_fds(theirs, [Note(CALLS, "h" * NOTE_BYTES_MAX).encode()], [])
    (await doors.open(Note(CALLS))).close()
    await until(lambda: len(came) == 2)
    assert came == [longest, Note(CALLS)]
    keeper.close()
    theirs.close()


async def test_a_worker_ends_when_its_head_lives_and_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    ended: list[int] = []
    asked: list[bytes] = []

    async def page() -> bytes:
        return b""

    def answer(kind: int, content: memoryview) -> None:
        asked.append(bytes(content))
        if len(asked) < 5:
            head.send(frame(SYNCED, asked[-1]))

    head = Line(ours, answer, lambda: None)
    worker = HeadLine(theirs, metadata_partitions=1, page=page, ended=ended.append)
    watching = asyncio.create_task(worker.end_in_silence(0.01))
    await until(lambda: len(asked) == 4)
    assert ended == []
    await until(lambda: bool(ended))
    assert ended == [HEAD_SILENT]
    assert len(asked) == 5
    await watching
    head.close()
    theirs.close()


async def test_a_process_ends_with_its_head_whatever_its_loop_does() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    end_with(theirs, lambda status: loop.call_soon_threadsafe(ended.set_result, status))
    ours.send(b"what a head may say")
    assert not ended.done()
    ours.close()
    assert await ended == HEAD_LOST
    theirs.close()
