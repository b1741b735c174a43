"""Frames as they are received, and how long a client has for one."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diskless.server.receiving import FrameReceiver
from diskless.server.registry import Api, ApiRegistry
from diskless.server.request_budget import RequestBudget
from diskless.server.server_settings import ServerSettings
from tests.support.questions.kafka_raw_client import frame
from wal.chunks.buffer import SIZE_MAX, BufferPool
from wal.clock import ManualClock

FRAME = frame(18, 0, 1, b"")
TIMEOUT_S = ServerSettings().request_receive_timeout_ms / 1000
LIMIT = 64 << 20


def _nothing(_: Any) -> None:
    raise AssertionError("nothing is served here")


@dataclass
class Rig(asyncio.ReadTransport):
    """A receiver whose transport notes whether it is read from."""

    settings: ServerSettings = field(default_factory=ServerSettings)
    clock: ManualClock = field(default_factory=ManualClock)
    is_paused: bool = False
    largest_read: int = 0

    def __post_init__(self) -> None:
        pool = BufferPool(LIMIT)
        self.account = RequestBudget(LIMIT, pool, lambda _: None).open("a", lambda: None)
        api = Api(
            key=18, name="Any", versions=range(1), flexible_from=None, handler=_nothing,
            reads_frame=True,
        )  # fmt: skip
        self.receiver = FrameReceiver(
            self,
            pool,
            self.account,
            apis=ApiRegistry([api]),
            settings=self.settings,
            clock=self.clock,
        )

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def receive(self, data: bytes) -> None:
        while data:
            buffer = self.receiver.buffer(little=False, no_more_than_the_frame=False)
            self.largest_read = max(self.largest_read, len(buffer))
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            self.receiver.commit(count)
            data = data[count:]

    def frames(self) -> list[bytes]:
        found = []
        while self.receiver.has_frame():
            received = self.receiver.take_frame()
            found.append(received[1].copy_bytes(0, len(received[1])))
            received[1].release()
        return found


@given(st.lists(st.integers(0, 40_000), max_size=5), st.randoms(use_true_random=False))
def test_frames_are_what_was_sent_however_it_is_cut(sizes, rng):
    rig = Rig()
    sent = [frame(18, 0, number, bytes(size)) for number, size in enumerate(sizes)]
    stream = b"".join(sent)
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(10))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        rig.receive(stream[start:end])
        found += rig.frames()
    assert found == sent
    rig.receiver.release()
    assert rig.account.held_bytes == 0


def test_who_fills_what_it_is_given_gets_more_and_who_waits_in_a_frame_is_known_to():
    rig = Rig()
    rig.receive(frame(18, 0, 1, bytes(8 << 20))[: 4 << 20])
    assert not rig.receiver.is_within_frame(), "nobody has looked at it"
    assert rig.frames() == []
    assert rig.receiver.is_within_frame()
    assert rig.largest_read == SIZE_MAX
    rig.receiver.release()
    assert not rig.receiver.is_within_frame()


def test_reads_stay_small_beside_the_memory_of_all_requests():
    rig = Rig(ServerSettings(queued_max_request_bytes=2 << 20))
    rig.receive(frame(18, 0, 1, bytes(8 << 20))[: 1 << 20])
    assert 64 << 10 < rig.largest_read <= 150 << 10
    rig.receiver.release()


def test_more_than_so_many_frames_are_counted_by_their_lengths():
    rig = Rig()
    rig.receive(FRAME * 3 + FRAME[:-1])
    assert rig.receiver.has_more_than(2)
    assert not rig.receiver.has_more_than(3)
    rig.receive(FRAME[-1:])
    assert rig.receiver.has_more_than(3)


def test_a_steady_stream_of_requests_never_meets_the_deadline_of_one():
    rig = Rig()
    half = len(FRAME) // 2
    rig.receive(FRAME[:half])
    for _ in range(60):
        rig.receiver.resume(rig.clock.monotonic())
        rig.clock.advance(TIMEOUT_S / 2)
        assert rig.receiver.overdue_s(rig.clock.monotonic()) is None
        # Every write ends in the middle of the next request.
        rig.receive(FRAME[half:] + FRAME[:half])
        assert rig.frames() == [FRAME]


def test_a_frame_has_its_time_for_each_mebibyte_and_not_while_it_is_not_read():
    rig = Rig()
    rig.receive(frame(18, 0, 1, bytes(3 << 20))[:1000])
    assert rig.frames() == []
    rig.clock.advance(5)
    rig.receiver.resume(0.0)
    rig.receiver.stop()
    rig.clock.advance(4 * TIMEOUT_S)
    assert rig.receiver.overdue_s(rig.clock.monotonic()) == 4 * TIMEOUT_S, "it owes what it owed"
    rig.receiver.pause()
    assert rig.is_paused
    assert rig.receiver.overdue_s(rig.clock.monotonic()) is None
    rig.receiver.resume(0.0)
    assert not rig.is_paused
    rig.clock.advance(4 * TIMEOUT_S)
    assert rig.receiver.overdue_s(rig.clock.monotonic()) is None, "its time began anew"
    rig.clock.advance(0.1)
    assert rig.receiver.overdue_s(rig.clock.monotonic()) == 4 * TIMEOUT_S


def test_a_produce_counts_as_begun_from_its_first_bytes_until_it_is_taken() -> None:
    rig = Rig()
    rig.receive(FRAME[:8])
    assert rig.frames() == []
    assert rig.receiver.has_begun_produce
    rig.receive(FRAME[8:])
    assert rig.receiver.has_begun_produce
    assert rig.frames() == [FRAME]
    assert not rig.receiver.has_begun_produce
