"""The partitions of one Fetch as columns, from the request to the answer.

A consumer of 1,000 partitions asks for all of them in every request, and nearly always nothing has
happened in nearly all of them. Values per partition would cost a few microseconds each, several
times over, in every poll. So a request is kept in NumPy columns, with a row for each partition, and
what is looked at one by one are the few rows in which something is going on.

`FetchRows` and `FetchAnswer` are sequences of the values that they stand for (`FetchPartition`,
`FetchResult`), and can be made of such: callers with few of them need not care. `RowErrors` is a
mapping in the same way. None of them is ever modified.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Self, overload
from uuid import UUID

import numpy as np

from diskless.ports import Buffer, FetchPartition, FetchResult
from metadata.operations import AbortedTransaction
from wal.columns import Int64s
from wal.errors import DisklessError

NOBODY: Final[Mapping[int, int]] = MappingProxyType({})

Aborted = Mapping[int, Sequence[AbortedTransaction]]
"""By row; nothing of rows without."""

NOTHING_ABORTED: Final[Aborted] = MappingProxyType({})


class FetchTopic(NamedTuple):
    """How a request names a topic: by id, or by name."""

    topic_id: UUID | None
    name: str


class SessionTopics(list[FetchTopic]):
    """The topics of a session: the same object in each of its requests, until they are others."""

    __slots__ = ("granted",)

    def __init__(self, topics: Iterable[FetchTopic]) -> None:
        super().__init__(topics)
        self.granted: object = None
        """To whom, and by which rules, all of them were granted last; for who checks that."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchRows(Sequence[FetchPartition]):
    """What is asked of which partitions, in the order of the request; see `FetchPartition`."""

    topics: Sequence[FetchTopic]
    topic_of: Int64s
    """The position of each row's topic in `topics`; the other columns are as long."""
    partitions: Int64s
    offsets: Int64s
    max_bytes: Int64s
    leader_epochs: Int64s

    @classmethod
    def of(cls, requests: Sequence[FetchPartition]) -> "FetchRows":
        """The same as columns."""
        if isinstance(requests, FetchRows):
            return requests
        places: dict[FetchTopic, int] = {}
        topic_of = [
            places.setdefault(FetchTopic(request.topic_id, request.topic_name), len(places))
            for request in requests
        ]
        columns = np.array(
            [
                (topic, request.partition, *request[3:])
                for topic, request in zip(topic_of, requests, strict=True)
            ],
            np.int64,
        ).reshape(-1, 5)
        return cls([*places], *np.ascontiguousarray(columns.T))

    def without(self, refused: Mapping[int, DisklessError]) -> "FetchRows":
        """All rows but these, and their topics."""
        if not refused:
            return self
        is_left = np.ones(len(self), bool)
        is_left[RowErrors.of(refused).rows] = False
        used, topic_of = np.unique(self.topic_of[is_left], return_inverse=True)
        return FetchRows(
            [self.topics[place] for place in used.tolist()],
            topic_of,
            self.partitions[is_left],
            self.offsets[is_left],
            self.max_bytes[is_left],
            self.leader_epochs[is_left],
        )

    def __len__(self) -> int:
        return len(self.partitions)

    @overload
    def __getitem__(self, index: int) -> FetchPartition: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FetchPartition]: ...
    def __getitem__(self, index: int | slice) -> FetchPartition | Sequence[FetchPartition]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        topic = self.topics[self.topic_of[index]]
        return FetchPartition(
            topic.topic_id,
            topic.name,
            int(self.partitions[index]),
            int(self.offsets[index]),
            int(self.max_bytes[index]),
            int(self.leader_epochs[index]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowErrors(Mapping[int, DisklessError]):
    """What is wrong with which rows.

    `rows` ascend; the error of `rows[i]` is `kinds[which[i]]`, so that what is wrong with a hundred
    thousand rows is one error.
    """

    rows: Int64s
    which: Int64s
    kinds: Sequence[DisklessError]

    @classmethod
    def of(cls, errors: Mapping[int, DisklessError]) -> "RowErrors":
        """The same as columns."""
        if isinstance(errors, RowErrors):
            return errors
        if not errors:
            return NO_ERRORS
        rows = sorted(errors)
        kinds = {id(error): error for error in errors.values()}
        places = dict(zip(kinds, range(len(kinds)), strict=True))
        which = [places[id(errors[row])] for row in rows]
        return cls(np.array(rows, np.int64), np.array(which, np.int64), [*kinds.values()])

    def at(self, rows: Int64s) -> "RowErrors":
        """The same errors of other rows, as many and as ordered."""
        return RowErrors(rows, self.which, self.kinds)

    def joined(self, others: "RowErrors") -> "RowErrors":
        """These and `others`, which are of other rows."""
        if not self or not others:
            return self or others
        rows = np.concatenate((self.rows, others.rows))
        which = np.concatenate((self.which, others.which + len(self.kinds)))
        order = np.argsort(rows, kind="stable")
        return RowErrors(rows[order], which[order], [*self.kinds, *others.kinds])

    def __getitem__(self, row: int) -> DisklessError:
        at = int(np.searchsorted(self.rows, row))
        if at == len(self.rows) or self.rows[at] != row:
            raise KeyError(row)
        return self.kinds[int(self.which[at])]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)


NO_ERRORS: Final = RowErrors(np.zeros(0, np.int64), np.zeros(0, np.int64), ())


class FetchAnswer(Sequence[FetchResult]):
    """What the rows of a request gave, by position.

    `errors` and `records` are there for the rows that have any, in ascending order, and so are
    `readers`: other brokers for the client to ask instead. `aborted` is there for some of the rows
    that have records.
    """

    __slots__ = (
        "aborted",
        "errors",
        "high_watermarks",
        "last_stable_offsets",
        "log_start_offsets",
        "readers",
        "records",
    )

    def __init__(
        self,
        high_watermarks: Int64s,
        log_start_offsets: Int64s,
        records: Mapping[int, Sequence[Buffer]],
        errors: Mapping[int, DisklessError],
        readers: Mapping[int, int] = NOBODY,
        *,
        last_stable_offsets: Int64s,
        aborted: Aborted = NOTHING_ABORTED,
    ) -> None:
        self.high_watermarks = high_watermarks
        self.last_stable_offsets = last_stable_offsets
        self.log_start_offsets = log_start_offsets
        self.records = records
        self.errors = RowErrors.of(errors)
        self.readers = readers
        self.aborted = aborted

    @classmethod
    def of(cls, results: Sequence[FetchResult]) -> Self:
        """The same as columns."""
        if isinstance(results, cls):
            return results
        return cls(
            np.array([result.high_watermark for result in results], np.int64),
            np.array([result.log_start_offset for result in results], np.int64),
            {row: result.records for row, result in enumerate(results) if result.records},
            {row: result.error for row, result in enumerate(results) if result.error is not None},
            last_stable_offsets=np.array(
                [result.last_stable_offset for result in results], np.int64
            ),
            aborted={row: result.aborted for row, result in enumerate(results) if result.aborted},
        )

    @classmethod
    def refused(cls, count: int, error: DisklessError) -> Self:
        """The same error for all of `count` rows."""
        nothing = np.full(count, -1, np.int64)
        errors = RowErrors(np.arange(count), np.zeros(count, np.int64), [error])
        return cls(nothing, nothing, {}, errors, last_stable_offsets=nothing)

    def at(self, readers: Mapping[int, int]) -> "FetchAnswer":
        """The same, and whom to ask instead of this broker; nobody where there is an error."""
        if not readers:
            return self
        return FetchAnswer(
            self.high_watermarks,
            self.log_start_offsets,
            self.records,
            self.errors,
            {row: reader for row, reader in readers.items() if row not in self.errors},
            last_stable_offsets=self.last_stable_offsets,
            aborted=self.aborted,
        )

    def among(self, refused: Mapping[int, DisklessError]) -> "FetchAnswer":
        """The answer to all rows, where this one is to those `without` the `refused`."""
        if not refused:
            return self
        refused = RowErrors.of(refused)
        count = len(self) + len(refused)
        is_left = np.ones(count, bool)
        is_left[refused.rows] = False
        rows = np.flatnonzero(is_left)

        def spread(column: Int64s) -> Int64s:
            of_all = np.full(count, -1, np.int64)
            of_all[rows] = column
            return of_all

        return FetchAnswer(
            spread(self.high_watermarks),
            spread(self.log_start_offsets),
            {int(rows[row]): records for row, records in self.records.items()},
            refused.joined(self.errors.at(rows[self.errors.rows])),
            {int(rows[row]): reader for row, reader in self.readers.items()},
            last_stable_offsets=spread(self.last_stable_offsets),
            aborted={int(rows[row]): aborted for row, aborted in self.aborted.items()},
        )

    def __len__(self) -> int:
        return len(self.high_watermarks)

    @overload
    def __getitem__(self, index: int) -> FetchResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FetchResult]: ...
    def __getitem__(self, index: int | slice) -> FetchResult | Sequence[FetchResult]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        return FetchResult(
            self.errors.get(row),
            int(self.high_watermarks[row]),
            int(self.log_start_offsets[row]),
            self.records.get(row, ()),
            int(self.last_stable_offsets[row]),
            self.aborted.get(row, ()),
        )
