"""Fetch sessions, held to KIP-227 said once more in dictionaries, and the limits of their cache."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows, FetchTopic
from diskless.fetch.fetch_sessions import (
    EPOCH_MAX,
    EVICTION_S,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchSessions,
    FetchSessionTopicIds,
    FetchSessionUnknown,
    InvalidFetchSessionEpoch,
    SentPartitions,
    SessionRequest,
)
from diskless.ports import FetchPartition, FetchResult
from tests.support.profiles import examples
from wal.clock import ManualClock
from wal.errors import UnknownPartition

IDS = [UUID(int=number) for number in (5, 3, 9)]


def asked(topic: int, partition: int, offset: int = 0, max_bytes: int = 100) -> FetchPartition:
    return FetchPartition(IDS[topic], "", partition, offset, max_bytes, 0)


def request(
    rows: Sequence[FetchPartition] = (),
    *,
    session_id: int = NO_SESSION,
    epoch: int = INITIAL_EPOCH,
    forgotten: Sequence[tuple[int, Sequence[int]]] = (),
    by_id: bool = True,
) -> SessionRequest:
    """Rows of one topic that follow each other are one entry, as in a request."""
    topics: list[tuple[FetchTopic, int]] = []
    for row in rows:
        topic = FetchTopic(row.topic_id, "")
        if topics and topics[-1][0] == topic:
            topics[-1] = (topic, topics[-1][1] + 1)
        else:
            topics.append((topic, 1))
    gone = [(FetchTopic(IDS[topic], ""), partitions) for topic, partitions in forgotten]
    return SessionRequest(session_id, epoch, by_id, topics, FetchRows.of(rows), gone)


def names(sent: SentPartitions) -> list[tuple[UUID | None, int]]:
    """What an answer names, in its order."""
    of = [topic.topic_id for topic, count in sent.topics for _ in range(count)]
    return list(zip(of, sent.partitions.tolist(), strict=True))


def idle(context: FetchContext, high_watermark: int = 0) -> FetchAnswer:
    return FetchAnswer.of([FetchResult(None, high_watermark, 0)] * len(context.rows))


def some_sessions(
    clock: ManualClock | None = None, *, slots: int = 3, rows_max: int = 1_000
) -> FetchSessions:
    return FetchSessions(
        slots=slots, clock=clock or ManualClock(), rng=random.Random(1), rows_max=rows_max
    )


def opened(sessions: FetchSessions, count: int = 1, topic: int = 0) -> int:
    """A session of so many idle partitions, if it gets one; its id."""
    context = sessions.begin(request([asked(topic, number) for number in range(count)]))
    return context.sent(idle(context)).session_id


def polled(sessions: FetchSessions, session_id: int, epoch: int) -> SentPartitions:
    context = sessions.begin(request(session_id=session_id, epoch=epoch))
    return context.sent(idle(context))


def test_an_idle_poll_names_no_partition_in_either_direction():
    sessions = some_sessions()
    session_id = opened(sessions, 5)
    assert session_id > 0
    for epoch in (1, 2, 3):
        context = sessions.begin(request(session_id=session_id, epoch=epoch))
        assert [row.partition for row in context.rows] == [0, 1, 2, 3, 4]
        sent = context.sent(idle(context))
        assert (sent.session_id, names(sent), len(sent.answer)) == (session_id, [], 0)
    context = sessions.begin(request(session_id=session_id, epoch=4))
    results = [FetchResult(None, 0, 0)] * 5
    results[3] = FetchResult(None, 8, 0, (b"records",))
    sent = context.sent(FetchAnswer.of(results))
    assert names(sent) == [(IDS[0], 3)]
    assert list(sent.answer) == [results[3]]


def test_what_gave_records_is_read_last_next_time():
    sessions = some_sessions()
    session_id = opened(sessions, 4)
    context = sessions.begin(request(session_id=session_id, epoch=1))
    some = FetchResult(None, 1, 0, (b"records",))
    none = FetchResult(None, 0, 0)
    context.sent(FetchAnswer.of([none, some, none, some]))
    context = sessions.begin(request([asked(0, 1, offset=1)], session_id=session_id, epoch=2))
    assert [(row.partition, row.offset) for row in context.rows] == [(0, 0), (2, 0), (1, 1), (3, 0)]


def test_offsets_that_moved_are_told_without_records():
    sessions = some_sessions()
    session_id = opened(sessions, 3)
    context = sessions.begin(request(session_id=session_id, epoch=1))
    moved = [FetchResult(None, 0, 0), FetchResult(None, 4, 0), FetchResult(None, 0, 2)]
    assert names(context.sent(FetchAnswer.of(moved))) == [(IDS[0], 1), (IDS[0], 2)]
    context = sessions.begin(request(session_id=session_id, epoch=2))
    assert names(context.sent(FetchAnswer.of(moved))) == []


def test_an_error_is_told_each_time_and_its_end_as_well():
    sessions = some_sessions()
    session_id = opened(sessions, 2)
    failed = [FetchResult(None, 0, 0), FetchResult(UnknownPartition("gone"))]
    for epoch in (1, 2):
        context = sessions.begin(request(session_id=session_id, epoch=epoch))
        sent = context.sent(FetchAnswer.of(failed))
        assert names(sent) == [(IDS[0], 1)]
        assert isinstance(sent.answer[0].error, UnknownPartition)
    assert names(polled(sessions, session_id, 3)) == [(IDS[0], 1)]
    assert names(polled(sessions, session_id, 4)) == []


def test_only_the_next_request_of_a_session_is_served():
    sessions = some_sessions()
    session_id = opened(sessions)
    for epoch in (2, 7, -5):
        with pytest.raises(InvalidFetchSessionEpoch):
            polled(sessions, session_id, epoch)
    polled(sessions, session_id, 1)
    with pytest.raises(InvalidFetchSessionEpoch):
        polled(sessions, session_id, 1)
    polled(sessions, session_id, 2)
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, session_id + 1, 3)
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, NO_SESSION, 1)


def test_the_epoch_of_a_session_goes_on_at_1_after_the_last():
    sessions = some_sessions()
    session_id = opened(sessions)
    sessions._sessions[session_id].epoch = EPOCH_MAX
    polled(sessions, session_id, EPOCH_MAX)
    polled(sessions, session_id, 1)


def test_ids_and_names_do_not_mix_in_a_session():
    sessions = some_sessions()
    session_id = opened(sessions)
    with pytest.raises(FetchSessionTopicIds):
        sessions.begin(request(session_id=session_id, epoch=1, by_id=False))
    polled(sessions, session_id, 1)


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_request_closes_the_session_that_it_names(epoch):
    sessions = some_sessions()
    session_id = opened(sessions, 3)
    context = sessions.begin(request([asked(1, 0)], session_id=session_id, epoch=epoch))
    sent = context.sent(idle(context))
    assert names(sent) == [(IDS[1], 0)]
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, session_id, 1)
    if epoch == FINAL_EPOCH:
        assert (sent.session_id, len(sessions), sessions.row_count) == (NO_SESSION, 0, 0)
    else:
        assert sent.session_id not in (NO_SESSION, session_id)
        assert (len(sessions), sessions.row_count) == (1, 1)


def test_a_session_of_which_nothing_is_left_ends():
    sessions = some_sessions()
    session_id = opened(sessions, 2)
    context = sessions.begin(request(session_id=session_id, epoch=1, forgotten=[(0, [0, 1])]))
    assert len(context.rows) == 0
    assert context.sent(idle(context)).session_id == NO_SESSION
    assert (len(sessions), sessions.row_count) == (0, 0)
    # And of nothing none is made.
    context = sessions.begin(request())
    assert context.sent(idle(context)).session_id == NO_SESSION
    assert len(sessions) == 0


def test_a_request_that_overtakes_another_of_its_session_spoils_nothing():
    sessions = some_sessions()
    session_id = opened(sessions, 3)
    slow = sessions.begin(request(session_id=session_id, epoch=1))
    fast = sessions.begin(request([asked(1, 0)], session_id=session_id, epoch=2))
    assert names(fast.sent(idle(fast))) == [(IDS[1], 0)]
    assert len(names(slow.sent(idle(slow)))) == 3, "all of it, since who knows what was told"
    assert names(polled(sessions, session_id, 3)) == []


def test_topics_that_only_come_and_go_leave_nothing_behind():
    sessions = some_sessions()
    session_id = opened(sessions)
    for epoch in range(1, 50):
        gone = FetchTopic(UUID(int=epoch + 100), "")
        sessions.begin(
            request(
                [asked(0, 0)._replace(topic_id=UUID(int=epoch + 101))],
                session_id=session_id,
                epoch=epoch,
            )._replace(forgotten=[(gone, [0])])
        )
    session = sessions._sessions[session_id]
    assert (session.size, len(session._topics)) == (2, 2)
    # Nor does one that is named without partitions.
    topics = [(FetchTopic(UUID(int=7), ""), 0)]
    rows = FetchRows([topics[0][0]], *[FetchRows.of([]).offsets] * 5)
    sessions.begin(SessionRequest(session_id, 50, True, topics, rows, ()))
    assert len(session._topics) == 2


# -- room -----------------------------------------------------------------------------------------


def test_when_there_is_no_room_a_newcomer_gets_no_session_and_is_served():
    sessions = some_sessions()
    first = [opened(sessions) for _ in range(3)]
    assert len(set(first)) == 3
    context = sessions.begin(request([asked(0, 0)]))
    sent = context.sent(idle(context))
    assert (sent.session_id, names(sent)) == (NO_SESSION, [(IDS[0], 0)])
    assert opened(some_sessions(slots=0)) == NO_SESSION


def test_the_session_unused_for_longest_makes_room():
    clock = ManualClock()
    sessions = some_sessions(clock)
    oldest, kept, newest = (opened(sessions, 9) for _ in range(3))
    clock.advance(EVICTION_S)
    polled(sessions, oldest, 1)
    assert opened(sessions, 2) == NO_SESSION, "nobody was idle for that long yet"
    clock.advance(1)
    assert opened(sessions, 2) != NO_SESSION
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, kept, 1)
    polled(sessions, oldest, 2)
    polled(sessions, newest, 1)
    assert sessions.evicted_count == 1


def test_a_smaller_session_that_had_its_time_makes_room_for_a_larger_one():
    clock = ManualClock()
    sessions = some_sessions(clock)
    large, small, middle = opened(sessions, 9), opened(sessions, 2), opened(sessions, 5)
    clock.advance(EVICTION_S + 1)
    for session_id in (large, small, middle):
        polled(sessions, session_id, 1)
    assert opened(sessions, 2) == NO_SESSION
    assert opened(sessions, 3) != NO_SESSION
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, small, 2)
    # The newcomer has only begun: the next to go is another one.
    assert opened(sessions, 4) == NO_SESSION
    assert opened(sessions, 6) != NO_SESSION
    with pytest.raises(FetchSessionUnknown):
        polled(sessions, middle, 2)
    polled(sessions, large, 2)


def test_sessions_are_bounded_in_their_partitions_as_well():
    sessions = some_sessions(rows_max=10)
    session_id = opened(sessions, 6)
    assert opened(sessions, 5) == NO_SESSION
    other = opened(sessions, 4)
    assert sessions.row_count == 10
    # What it has may change; what it adds finds no room, and it begins anew without a session.
    polled(sessions, other, 1)
    with pytest.raises(FetchSessionUnknown):
        sessions.begin(request([asked(1, 0)], session_id=other, epoch=2))
    assert (len(sessions), sessions.row_count) == (1, 6)
    polled(sessions, session_id, 1)
    assert opened(some_sessions(rows_max=10), 11) == NO_SESSION


# -- against the KIP in dictionaries ------------------------------------------------------------


class Known(NamedTuple):
    offset: int
    max_bytes: int
    told: tuple[int, int]


class SessionMachine(RuleBasedStateMachine):
    """One client that adds, changes and forgets, and a broker on which anything may happen."""

    @initialize(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 4)), min_size=1))
    def open(self, rows: list[tuple[int, int]]) -> None:
        self.sessions = some_sessions()
        self.log: dict[tuple[int, int], tuple[int, int]] = {}
        self.model: dict[tuple[int, int], Known] = {}
        self.epoch = 0
        self.session_id = NO_SESSION
        self.fetch([(topic, partition, 0) for topic, partition in rows], [], {}, set(), set())

    @rule(
        rows=st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 4), st.integers(0, 9))),
        forgotten=st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 4))),
        moves=st.dictionaries(
            st.tuples(st.integers(0, 2), st.integers(-2, 4)),
            st.tuples(st.integers(0, 9), st.integers(0, 3)),
        ),
        giving=st.sets(st.tuples(st.integers(0, 2), st.integers(-2, 4))),
        failing=st.sets(st.tuples(st.integers(0, 2), st.integers(-2, 4)), max_size=3),
    )
    def fetch(
        self,
        rows: list[tuple[int, int, int]],
        forgotten: list[tuple[int, int]],
        moves: Mapping[tuple[int, int], tuple[int, int]],
        giving: set[tuple[int, int]],
        failing: set[tuple[int, int]],
    ) -> None:
        self.log |= moves
        is_full = self.session_id == NO_SESSION
        if is_full:
            self.epoch, self.model, forgotten = 0, {}, []
        if is_full and not rows:
            return
        context = self.sessions.begin(
            request(
                [asked(*row) for row in rows],
                session_id=self.session_id,
                epoch=self.epoch,
                forgotten=[(topic, [partition]) for topic, partition in forgotten],
            )
        )
        for topic, partition, offset in rows:
            before = self.model.get((topic, partition), Known(0, 0, (-1, -1)))
            self.model[topic, partition] = Known(offset, 100, before.told)
        for key in forgotten:
            self.model.pop(key, None)
        read = [(IDS.index(row.topic_id or IDS[0]), row.partition) for row in context.rows]
        if is_full:
            assert read == [(topic, partition) for topic, partition, _ in rows]
        else:
            assert read == list(self.model)
            assert [row.offset for row in context.rows] == [k.offset for k in self.model.values()]

        results = {}
        for key in read:
            if key in failing:
                results[key] = FetchResult(UnknownPartition("gone"))
            else:
                records = (b"some",) if key in giving else ()
                results[key] = FetchResult(None, *self.log.get(key, (0, 0)), records)
        sent = context.sent(FetchAnswer.of([results[key] for key in read]))
        told = [(IDS.index(topic or IDS[0]), partition) for topic, partition in names(sent)]
        assert list(sent.answer) == [results[key] for key in told]
        expected = [
            key
            for key in read
            if is_full
            or results[key].error is not None
            or results[key].records
            or results[key][1:3] != self.model[key].told
        ]
        assert told == expected
        for key in dict.fromkeys(read):
            self.model[key] = self.model[key]._replace(told=results[key][1:3])
            if results[key].records and not is_full:
                self.model[key] = self.model.pop(key)
        self.session_id = sent.session_id
        assert (self.session_id == NO_SESSION) == (not self.model)
        self.epoch += 1

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "sessions"):
            assert self.sessions.row_count == len(self.model)
            assert len(self.sessions) == bool(self.model)


SessionMachine.TestCase.settings = examples(0.4, steps=8)
TestSessionsAgainstAModel = SessionMachine.TestCase


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(IDS), st.integers(-(2**31), 2**31 - 1)), max_size=8, unique=True
    )
)
@examples(0.4)
def test_any_partition_number_keeps_its_topic(rows):
    sessions = some_sessions()
    context = sessions.begin(
        request([FetchPartition(topic, "", partition, 1, 2, 3) for topic, partition in rows])
    )
    session_id = context.sent(idle(context)).session_id
    if not rows:
        assert session_id == NO_SESSION
        return
    context = sessions.begin(request(session_id=session_id, epoch=1))
    assert [(row.topic_id, row.partition) for row in context.rows] == rows
    assert {row[3:] for row in context.rows} == {(1, 2, 3)}
