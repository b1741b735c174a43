"""Fetch sessions (KIP-227): a consumer names its partitions once, and then only what changed.

A consumer with a session sends the partitions whose offset (or limit) is another one than in its
request before, and is sent those of which there is something new: records, another high watermark
or log start offset, an error. The broker keeps the rest, so an idle poll of 1,000 partitions names
none in either direction. The last stable offset needs no attention of its own: only a commit, a
marker or a deletion moves it, and each of them moves one of the other two.

How it goes. A full request with session epoch 0 asks for a session; its answer names all partitions
and the session's id. The requests of a session are numbered from 1, wrapping to 1 again: its epoch.
An answer that was lost shows as a number that comes twice, and both sides begin anew. A request of
epoch 0 or -1 that names a session closes it, -1 without asking for another.

    full, epoch -1    no session; all partitions asked for are in the answer
    full, epoch 0     the same, and a session if there is room for one; id 0 says there is none
    epoch n           what was named is added to the session or changed, what is forgotten leaves it

Partitions are read in the order in which they came, except that those which gave records go to the
end: what one answer has no room for comes first in the next.

Sessions live in this process's memory, are bound to no connection, and are bounded in number and
size. When there is no room, one that was not used for EVICTION_S goes, the one unused for longest
first; or the smallest of those that lived that long if it is smaller than the new one, because a
session saves the more the larger it is. If there is none of either kind, the newcomer gets no
session and sends full requests, which are served as well, and so is everyone whose session went.

Source: KIP-227; the rules of who makes room for whom are Kafka's.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows, FetchTopic, SessionTopics
from wal.clock import Clock
from wal.columns import Int64s
from wal.errors import Rejected

_Value = TypeVar("_Value")

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Of a full request that asks for a session."""
FINAL_EPOCH: Final = -1
"""Of a full request that wants none."""
EPOCH_MAX: Final = 2**31 - 1

EVICTION_S: Final = 120.0
"""How long a session is left alone before it may have to make room."""

ROWS_MAX: Final = 1_000_000
"""Partitions in all sessions together; each takes some 100 bytes."""

_PARTITIONS_PER_TOPIC: Final = 2**32
_LOWEST_PARTITION: Final = -(2**31)
"""Of what can be asked for; that it does not exist is for others to say."""


class FetchSessionUnknown(Rejected):
    """There is no such session (any more): begin anew."""


class InvalidFetchSessionEpoch(Rejected):
    """Not the session's next request: one of them, or its answer, was lost. Begin anew."""


class FetchSessionTopicIds(Rejected):
    """The session names topics by name and the request by id, or the other way round."""


class SentPartitions(NamedTuple):
    """What an answer says; `topics` says how the rows of the columns group."""

    session_id: int
    topics: Sequence[tuple[FetchTopic, int]]
    partitions: Int64s
    answer: FetchAnswer


class SessionRequest(NamedTuple):
    """The partitions that a Fetch names, and what it says of its session."""

    session_id: int
    epoch: int
    uses_topic_ids: bool
    topics: Sequence[tuple[FetchTopic, int]]
    """How each is named, and how many of the rows are its."""
    rows: FetchRows
    forgotten: Sequence[tuple[FetchTopic, Sequence[int] | Int64s]]
    """Partitions that leave the session."""


class FetchContext(Protocol):
    """One request within its session, or without any."""

    @property
    def rows(self) -> FetchRows:
        """The rows to read, in this order."""
        ...

    def sent(self, answer: FetchAnswer) -> SentPartitions:
        """Returns what the answer to `rows` says; called once, when it is certain to be sent."""
        ...


class FetchSessions:
    """The sessions of a broker. Everything runs on the event loop's thread."""

    def __init__(
        self, *, slots: int, clock: Clock, rng: random.Random, rows_max: int = ROWS_MAX
    ) -> None:
        """`slots`: how many sessions there may be; 0: none."""
        self._slots = slots
        self._clock = clock
        self._rng = rng
        self._rows_max = rows_max
        self.row_count = 0
        """Partitions in all sessions."""
        self._sessions: dict[int, _Session] = {}
        """By id, the one that was not used for longest first."""
        self.evicted_count = 0
        """Sessions that had to make room since the start."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: SessionRequest) -> FetchContext:
        """Returns what `request` asks for, in the light of its session.

        Raises: FetchSessionUnknown, InvalidFetchSessionEpoch, FetchSessionTopicIds.
        """
        if request.epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._drop(self._sessions.get(request.session_id))
            is_wanted = request.epoch == INITIAL_EPOCH and len(request.rows) > 0
            return _Full(request, self if is_wanted else None)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionUnknown(f"no fetch session {request.session_id}")
        if session.epoch != request.epoch:
            raise InvalidFetchSessionEpoch(
                f"request {request.epoch} of fetch session {session.id}, not {session.epoch}"
            )
        if session.uses_topic_ids != request.uses_topic_ids:
            raise FetchSessionTopicIds(f"fetch session {session.id} names topics otherwise")
        self._update(session, request)
        if not session.order.size:
            # Nothing is left of it; the next request will be a full one.
            self._drop(session)
            return _Full(request._replace(topics=(), rows=session.ordered()), None)
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        session.last_used = self._clock.monotonic()
        self._sessions[session.id] = self._sessions.pop(session.id)
        return _Incremental(session)

    def create(self, request: SessionRequest, answer: FetchAnswer) -> int:
        """A session whose partitions have been told `answer`; its id, or NO_SESSION."""
        count = len(request.rows)
        now = self._clock.monotonic()
        while len(self._sessions) >= self._slots or self.row_count + count > self._rows_max:
            if not self._evict_one(count, now):
                return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randint(1, 2**31 - 1)
        session = _Session(session_id, request.uses_topic_ids, now)
        session.put(request.rows, *_offsets_told(answer))
        self._sessions[session_id] = session
        self.row_count += session.size
        return session_id

    def _update(self, session: "_Session", request: SessionRequest) -> None:
        before = session.size
        if len(request.rows):
            session.put(request.rows)
        if request.forgotten:
            session.remove(request.forgotten)
        self.row_count += session.size - before
        if self.row_count > self._rows_max and session.size > before:
            self._drop(session)
            raise FetchSessionUnknown(f"no room for what fetch session {session.id} adds")

    def _evict_one(self, newcomer_rows: int, now: float) -> bool:
        """Make room for a session of that number of partitions; whether that was possible."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used <= EVICTION_S:
            settled = [s for s in self._sessions.values() if now - s.created > EVICTION_S]
            oldest = min(settled, key=lambda session: session.size, default=None)
            if oldest is None or oldest.size >= newcomer_rows:
                return False
        self.evicted_count += 1
        self._drop(oldest)
        return True

    def _drop(self, session: "_Session | None") -> None:
        if session is not None:
            del self._sessions[session.id]
            self.row_count -= session.size


class _Full:
    """A request that names all its partitions; the answer names them all, as they were asked."""

    def __init__(self, request: SessionRequest, sessions: FetchSessions | None) -> None:
        """`sessions`: where a session is to be made, if one is."""
        self._request = request
        self._sessions = sessions

    @property
    def rows(self) -> FetchRows:
        return self._request.rows

    def sent(self, answer: FetchAnswer) -> SentPartitions:
        request = self._request
        session_id = NO_SESSION
        if self._sessions is not None:
            session_id = self._sessions.create(request, answer)
        return SentPartitions(session_id, request.topics, request.rows.partitions, answer)


class _Incremental:
    """A request of a session; the answer names the partitions of which there is something new."""

    def __init__(self, session: "_Session") -> None:
        self._session = session
        self._layout = session.layout
        self._order = session.order
        self._rows = session.ordered()

    @property
    def rows(self) -> FetchRows:
        return self._rows

    def sent(self, answer: FetchAnswer) -> SentPartitions:
        session, order, rows = self._session, self._order, self._rows
        high_watermarks, log_start_offsets = _offsets_told(answer)
        gave = np.zeros(len(rows), bool)
        gave[[*answer.records]] = True
        is_new = gave.copy()
        is_new[answer.errors.rows] = True
        is_new[[*answer.readers]] = True
        if session.layout == self._layout:
            is_new |= high_watermarks != session.high_watermarks[order]
            is_new |= log_start_offsets != session.log_start_offsets[order]
            session.high_watermarks[order] = high_watermarks
            session.log_start_offsets[order] = log_start_offsets
            if answer.records and not gave.all():
                session.order = np.concatenate((order[~gave], order[gave]))
        else:
            # Another request of this session came before this one was answered, as no client does
            # that still reads this answer.
            is_new[:] = True
        told = np.flatnonzero(is_new)
        return SentPartitions(
            session.id,
            _runs(rows.topics, rows.topic_of[told]),
            rows.partitions[told],
            _part(answer, told),
        )


class _Session:
    """The partitions of one session, in columns ordered by topic and partition.

    `order` is how they are read: positions in the columns. `layout` counts how often partitions
    came or went, which moves them.
    """

    def __init__(self, session_id: int, uses_topic_ids: bool, now: float) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.created = now
        self.last_used = now
        self.epoch = 1
        """Of the request that comes next."""
        self.layout = 0
        self._topics: dict[FetchTopic, int] = {}
        self._session_topics: SessionTopics | None = None
        self._keys: Int64s = _NOTHING
        self._offsets: Int64s = _NOTHING
        self._max_bytes: Int64s = _NOTHING
        self._leader_epochs: Int64s = _NOTHING
        self.high_watermarks: Int64s = _NOTHING
        """As the client was told last; -1 after an error."""
        self.log_start_offsets: Int64s = _NOTHING
        self.order: Int64s = _NOTHING

    @property
    def size(self) -> int:
        return len(self._keys)

    def _named(self) -> SessionTopics:
        """The topics in their order."""
        named = self._session_topics
        if named is None or len(named) != len(self._topics):
            named = self._session_topics = SessionTopics(self._topics)
        return named

    def ordered(self) -> FetchRows:
        """All partitions as a request that names them in their order."""
        order = self.order
        topic_of, partitions = np.divmod(self._keys[order], _PARTITIONS_PER_TOPIC)
        return FetchRows(
            self._named(),
            topic_of,
            partitions + _LOWEST_PARTITION,
            self._offsets[order],
            self._max_bytes[order],
            self._leader_epochs[order],
        )

    def put(
        self,
        rows: FetchRows,
        high_watermarks: Int64s | None = None,
        log_start_offsets: Int64s | None = None,
    ) -> None:
        """Add partitions, or change what is asked of them.

        New ones come last, and have been told these offsets, or none.
        """
        places = np.zeros(len(rows.topics), np.int64)
        for named in np.unique(rows.topic_of).tolist():
            places[named] = self._topics.setdefault(rows.topics[named], len(self._topics))
        keys = _keys(places[rows.topic_of], rows.partitions)
        at, is_known = self._find(keys)
        if not is_known.all():
            # Of a partition that is named twice, the first row says where it comes.
            _, first = np.unique(keys[~is_known], return_index=True)
            new = np.flatnonzero(~is_known)[np.sort(first)]
            nothing = np.full(len(rows), -1, np.int64)
            self._add(
                keys[new],
                (nothing if high_watermarks is None else high_watermarks)[new],
                (nothing if log_start_offsets is None else log_start_offsets)[new],
            )
            at, _ = self._find(keys)
        # And the last row says what is asked of it.
        self._offsets[at] = rows.offsets
        self._max_bytes[at] = rows.max_bytes
        self._leader_epochs[at] = rows.leader_epochs

    def _add(self, keys: Int64s, high_watermarks: Int64s, log_start_offsets: Int64s) -> None:
        blank = np.zeros(len(keys), np.int64)
        self.order = np.concatenate((self.order, np.arange(self.size, self.size + len(keys))))
        self._keys = np.concatenate((self._keys, keys))
        self._offsets = np.concatenate((self._offsets, blank))
        self._max_bytes = np.concatenate((self._max_bytes, blank))
        self._leader_epochs = np.concatenate((self._leader_epochs, blank))
        self.high_watermarks = np.concatenate((self.high_watermarks, high_watermarks))
        self.log_start_offsets = np.concatenate((self.log_start_offsets, log_start_offsets))
        self._rearrange(np.argsort(self._keys))

    def remove(self, forgotten: Sequence[tuple[FetchTopic, Sequence[int] | Int64s]]) -> None:
        """Drop partitions; those that are not here do not matter."""
        keys = [
            _keys(self._topics[topic], np.array(partitions, np.int64))
            for topic, partitions in forgotten
            if topic in self._topics
        ]
        at, is_known = self._find(np.concatenate((_NOTHING, *keys)))
        if not is_known.any():
            return
        is_kept = np.ones(self.size, bool)
        is_kept[at[is_known]] = False
        self.order = self.order[is_kept[self.order]]
        self._rearrange(np.flatnonzero(is_kept))
        self._drop_unused_topics()

    def _find(self, keys: Int64s) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """(position of each key in the columns, whether it is there)"""
        at = np.searchsorted(self._keys, keys)
        if not self.size:
            return at, np.zeros(len(keys), bool)
        return at, self._keys[np.minimum(at, self.size - 1)] == keys

    def _rearrange(self, chosen: npt.NDArray[np.intp]) -> None:
        """Keep these positions of the columns, in this order."""
        moved_to = np.zeros(self.size, np.int64)
        moved_to[chosen] = np.arange(len(chosen))
        self.order = moved_to[self.order]
        self._keys = self._keys[chosen]
        self._offsets = self._offsets[chosen]
        self._max_bytes = self._max_bytes[chosen]
        self._leader_epochs = self._leader_epochs[chosen]
        self.high_watermarks = self.high_watermarks[chosen]
        self.log_start_offsets = self.log_start_offsets[chosen]
        self.layout += 1

    def _drop_unused_topics(self) -> None:
        """Number the topics anew where some have no partition left; the order stays the same."""
        topic_of, partitions = np.divmod(self._keys, _PARTITIONS_PER_TOPIC)
        used, places = np.unique(topic_of, return_inverse=True)
        if len(used) == len(self._topics):
            return
        names = [*self._topics]
        self._topics = {names[place]: number for number, place in enumerate(used.tolist())}
        self._session_topics = None
        self._keys = _keys(places, partitions + _LOWEST_PARTITION)


_NOTHING: Final = np.zeros(0, np.int64)


def _keys(places: Int64s | int, partitions: Int64s) -> Int64s:
    """What sorts by topic, then partition."""
    return places * _PARTITIONS_PER_TOPIC + (partitions - _LOWEST_PARTITION)


def _offsets_told(answer: FetchAnswer) -> tuple[Int64s, Int64s]:
    """High watermarks and log start offsets as a client sees them: -1 beside an error."""
    if not answer.errors:
        return answer.high_watermarks, answer.log_start_offsets
    high_watermarks = answer.high_watermarks.copy()
    log_start_offsets = answer.log_start_offsets.copy()
    high_watermarks[answer.errors.rows] = -1
    log_start_offsets[answer.errors.rows] = -1
    return high_watermarks, log_start_offsets


def _part(answer: FetchAnswer, rows: npt.NDArray[np.intp]) -> FetchAnswer:
    """These rows of an answer; they hold all of which there is more than offsets."""
    if len(rows) == len(answer):
        return answer
    return FetchAnswer(
        answer.high_watermarks[rows],
        answer.log_start_offsets[rows],
        _moved(answer.records, rows),
        answer.errors.at(np.searchsorted(rows, answer.errors.rows)),
        _moved(answer.readers, rows),
        last_stable_offsets=answer.last_stable_offsets[rows],
        aborted=_moved(answer.aborted, rows),
    )


def _moved(by_row: Mapping[int, _Value], rows: npt.NDArray[np.intp]) -> Mapping[int, _Value]:
    """By the places of the rows in `rows`."""
    places = np.searchsorted(rows, [*by_row]).tolist()
    return dict(zip(places, by_row.values(), strict=True))


def _runs(topics: Sequence[FetchTopic], topic_of: Int64s) -> Sequence[tuple[FetchTopic, int]]:
    """Topics, and how many rows in a row are theirs."""
    if not len(topic_of):
        return ()
    starts = np.flatnonzero(np.diff(topic_of, prepend=topic_of[0] - 1))
    counts = np.diff(starts, append=len(topic_of))
    return [
        (topics[place], count)
        for place, count in zip(topic_of[starts].tolist(), counts.tolist(), strict=True)
    ]
