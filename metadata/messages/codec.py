"""Encodes and decodes what the coordinator's requests and responses have in common.

Every operation of KIP-1164, and each of ours above API key 10001, is laid out the same way, in the
encoding of wal/wire/fields.py under request header v2 and response header v1:

    request    fields of the operation, TimeoutMs int32, tag section
    response   ThrottleTimeMs int32, fields of the operation, tag section

An `Operation` is one of them, and the one place that describes it: its bytes, whom it is addressed
to, what a coordinator does with it, how it fails. From this row follow the client over a socket,
the routing, the served API (metadata/clients, diskless/api/coordinator). Answers are flat lists in
the order of the request, an error inside the entry it belongs to. The shapes that requests and
answers have in common are in metadata/messages/shapes.py.

- Entries are grouped by topic on the wire. A group is a run of entries of one topic, so the order
  of the list is that of the bytes, a topic may have several groups and a partition several entries.
  An answer may come in any order: each of its entries goes to the first entry that was asked about
  the same place and has no answer yet.
- The schemas have no place for an error of the whole call. It is written into every entry, and
  once more, marked as what it is, into a tagged field of the response (CALL_ERROR_TAG), from which
  a client of ours raises it.
- ThrottleTimeMs is written as 0 and not looked at.

Invariants: decoding raises nothing but InvalidRequest; a count is compared with the bytes that are
left, and with ENTRIES_MAX, before anything is made of it; unknown tagged fields are skipped at
every level.
"""

import struct
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from metadata.messages.errors import coordinator_code, coordinator_error, message_of
from metadata.operations import CATALOGUE
from wal.coordinates import TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    CorruptLog,
    DisklessError,
    InvalidRequest,
    NotCoordinator,
    StorageFailed,
)
from wal.wire.fields import INT16, INT32, NO_TAGS, FieldReader, tag_section, uvarint

CALL_ERROR_TAG: Final = 10_000
"""In every response: ErrorCode int16, ErrorMessage string; the call failed as a whole."""

ENTRIES_MAX: Final = 100_000
"""Entries of one message, its nested ones included, but for the batches of a file: an entry may
take a few bytes on the wire and some hundred as values."""

_TOPIC_BYTES_MIN: Final = 18
_INDEX_BYTES: Final = 4

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Entry = TypeVar("Entry")
Result = TypeVar("Result")

Steps = Generator[Any, None, Result]
"""Work on many entries, which yields wherever it may be interrupted; its result at the end."""

PIECES_JOINED: Final = 1_000

Tags = Mapping[int, FieldReader]
"""The tagged fields of a message, by tag."""


class MessageReader(FieldReader):
    """A FieldReader for messages; its errors depend on what was asked."""

    __slots__ = ("changes_state", "entries_left")

    def __init__(self, data: bytes, what: str, *, changes_state: bool = True) -> None:
        super().__init__(data, what)
        self.changes_state = changes_state
        self.entries_left = ENTRIES_MAX

    def entries(self, bytes_min: int) -> range:
        entries = super().entries(bytes_min)
        self.entries_left -= len(entries)
        if self.entries_left < 0:
            raise self.corrupt(f"more than {ENTRIES_MAX} entries")
        return entries

    def int32s(self) -> tuple[int, ...]:
        """A compact array of int32."""
        count = self.array_count(4)
        return struct.unpack_from(f">{count}i", self.data, self.skip(4 * count))

    def boolean(self) -> bool:
        return self.int8() != 0

    def error_code(self) -> DisklessError | None:
        """An ErrorCode without a message beside it."""
        return coordinator_error(self.int16(), None, changes_state=self.changes_state)

    def error(self) -> DisklessError | None:
        """An ErrorCode and its ErrorMessage."""
        code = self.int16()
        return coordinator_error(code, self.nullable_string(), changes_state=self.changes_state)

    def by_topic(
        self,
        entry_bytes_min: int,
        read: Callable[[TopicIdPartition], Entry],
        *,
        reads_tags: bool = False,
    ) -> list[Entry]:
        """Topics[] of TopicId, Partitions[] of PartitionIndex and what `read` reads, in order.

        `entry_bytes_min` counts what `read` consumes at least, without the tag section behind it.
        That is skipped here, unless `read` reads it.
        """
        return at_once(self.by_topic_in_steps(entry_bytes_min, read, reads_tags=reads_tags))

    def by_topic_in_steps(
        self,
        entry_bytes_min: int,
        read: Callable[[TopicIdPartition], Entry],
        *,
        reads_tags: bool = False,
    ) -> Steps[list[Entry]]:
        """The same, for a request, which somebody else may have written."""
        entries = []
        for _ in self.entries(_TOPIC_BYTES_MIN):
            topic_id = self.uuid()
            for _ in self.entries(_INDEX_BYTES + entry_bytes_min + len(NO_TAGS)):
                entries.append(read(TopicIdPartition(topic_id, self.int32())))
                if not reads_tags:
                    self.skip_tags()
                yield
            self.skip_tags()
            yield
        return entries

    def request_end(self) -> tuple[int, Tags]:
        """TimeoutMs and the tagged fields, of which each is left to be read."""
        timeout_ms = self.int32()
        return timeout_ms, dict(self.tags())


@contextmanager
def reading(reader: FieldReader) -> Iterator[None]:
    """Turns what the reader complains of into InvalidRequest; it must have come to the end."""
    try:
        yield
        reader.finish()
    except CorruptLog as error:
        raise InvalidRequest(str(error)) from error


class Address(Enum):
    """Which coordinators an operation is for."""

    CATALOGUE = "the catalogue, which sees to the others"
    NAMED = "the one that `request.coordinator` names, or for None as LED"
    BY_PARTITION = "for each entry the one that its partition was assigned to"
    LED = "all that are led where the request arrives"


class RequestShape(NamedTuple, Generic[Request]):
    """How requests are written and read, and what entries they are made of."""

    write: Callable[[Request, list[bytes]], Mapping[int, bytes]]
    """Appends the fields; gives the tagged ones."""
    read: Callable[[MessageReader], tuple[Request, int] | Steps[tuple[Request, int]]]
    """The request, and for how many milliseconds its sender waits; in steps if it may be long."""
    entries: Callable[[Request], Sequence[Any]]
    """What each answer is about."""
    share: Callable[[Request, Sequence[Any]], Request]
    """The same request about some of its entries."""


class AnswerShape(NamedTuple, Generic[Request, Answer]):
    """How answers are written and read; they match the entries of the request by position."""

    write: Callable[[Request, Sequence[Answer], list[bytes]], Steps[None] | None]
    read: Callable[[MessageReader, Request], Sequence[Answer]]


def error_of(answer: Any) -> DisklessError | None:
    """The error in an answer to an entry, or that it is."""
    error: DisklessError | None = getattr(answer, "error", None)
    return answer if isinstance(answer, DisklessError) else error


def the_error(error: DisklessError) -> Any:
    """The answer to an entry that failed, where answers are values or errors."""
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Request, Answer]):
    """One API of the coordinators: all that is different from one to the other."""

    key: int
    name: str
    address: Address
    request: RequestShape[Request]
    answers: AnswerShape[Request, Answer]
    at: Callable[[Any, Request], Awaitable[Sequence[Answer]]] | None = None
    """How a PartitionCoordinator (metadata/coordinator), which stands above this module, does it.
    None: it takes several of them, or none; LocalClient has how."""
    merged: Callable[[Request, Sequence[Sequence[Answer]]], Sequence[Answer]] | None = None
    """The answers of several coordinators, or brokers, to the same request as one; for LED."""
    failed: Callable[[DisklessError], Answer] = the_error
    """The answer to one entry when the whole call went wrong."""
    changes_state: bool = True
    """Whether it may have changed something when no answer came."""
    is_repeated: bool = True
    """Whether a sender looks for another leader when the first one does not answer. Not where the
    next round of some worker does the same again."""
    contained: tuple[type[DisklessError], ...] = (
        NotCoordinator,
        CommitFailed,
        CommitOutcomeUnknown,
        StorageFailed,
    )
    """What one coordinator raises of these concerns its own entries alone; the rest is raised."""

    def coordinator_of(self, request: Any) -> int | None:
        """The one coordinator that a request is for, if there is one."""
        if self.address is Address.CATALOGUE:
            return CATALOGUE
        named: int | None = request.coordinator if self.address is Address.NAMED else None
        return named

    def count(self, request: Request) -> int:
        """The number of answers."""
        return len(self.request.entries(request))

    def unanswered(self, text: str) -> DisklessError:
        """The error of a call that was sent, or begun, and not answered."""
        return CommitOutcomeUnknown(text) if self.changes_state else CommitFailed(text)

    def encode_request(self, request: Request, timeout_ms: int) -> bytes:
        """Raises InvalidRequest when a value has no place in its field."""
        parts: list[bytes] = []
        try:
            tags = self.request.write(request, parts)
            parts += (INT32.pack(timeout_ms), tag_section(tags))
        except (struct.error, ValueError) as error:
            raise InvalidRequest(f"{self.name}: {error}") from error
        return b"".join(parts)

    def decode_request(self, body: bytes) -> tuple[Request, int]:
        """The request, and for how many milliseconds its sender waits. Raises InvalidRequest."""
        return at_once(self.decode_in_steps(body))

    def decode_in_steps(self, body: bytes) -> Steps[tuple[Request, int]]:
        """The same."""
        reader = MessageReader(body, f"{self.name} request", changes_state=self.changes_state)
        with reading(reader):
            read = self.request.read(reader)
            return (yield from read) if isinstance(read, Generator) else read

    def encode_response(self, request: Request, answers: Sequence[Answer]) -> bytes:
        """`answers` match the entries of `request` by position."""
        return b"".join(at_once(self.encode_in_steps(request, answers)))

    def encode_in_steps(self, request: Request, answers: Sequence[Answer]) -> Steps[list[bytes]]:
        """The same, in pieces."""
        return self._response(request, answers, {})

    def encode_failure(self, request: Request, error: DisklessError) -> bytes:
        """The response when the whole call went wrong: the error in every entry."""
        return b"".join(at_once(self.encode_failure_in_steps(request, error)))

    def encode_failure_in_steps(self, request: Request, error: DisklessError) -> Steps[list[bytes]]:
        """The same, in pieces."""
        content = b"".join((INT16.pack(coordinator_code(error)), string(message_of(error))))
        answers = [self.failed(error)] * self.count(request)
        return self._response(request, answers, {CALL_ERROR_TAG: content})

    def _response(
        self, request: Request, answers: Sequence[Answer], tags: Mapping[int, bytes]
    ) -> Steps[list[bytes]]:
        parts = [INT32.pack(0)]
        # Small pieces are joined on the way, so that little is left for the end.
        joined: list[bytes] = []
        for _ in self.answers.write(request, answers, parts) or ():
            if len(parts) >= PIECES_JOINED:
                joined.append(b"".join(parts))
                parts.clear()
            yield
        parts.append(tag_section(tags))
        if len(parts) < PIECES_JOINED:
            parts = [b"".join(parts)]
        return [*joined, *parts]

    def decode_response(
        self, request: Request, body: bytes
    ) -> tuple[Sequence[Answer], DisklessError | None]:
        """The answers to the entries of `request`, by position, and the error of the whole call.

        Raises InvalidRequest when `body` is no response to it.
        """
        reader = MessageReader(body, f"{self.name} response", changes_state=self.changes_state)
        call_error = None
        with reading(reader):
            reader.int32()
            answers = self.answers.read(reader, request)
            for tag, content in reader.tags():
                if tag == CALL_ERROR_TAG:
                    code, message = content.int16(), content.compact_string()
                    call_error = coordinator_error(code, message, changes_state=self.changes_state)
            if len(answers) != self.count(request):
                raise reader.corrupt(f"{len(answers)} answers to {self.count(request)} questions")
        return answers, call_error


def string(text: str) -> bytes:
    """A compact string of text that need not be good Unicode, such as an error's."""
    encoded = text.encode(errors="replace")
    return uvarint(len(encoded) + 1) + encoded


def error_fields(error: DisklessError | None) -> bytes:
    """ErrorCode and ErrorMessage."""
    if error is None:
        return _NO_ERROR
    return INT16.pack(coordinator_code(error)) + string(message_of(error))


_NO_ERROR: Final = INT16.pack(0) + b"\x00"


def at_once(steps: Steps[Result]) -> Result:
    """The result of steps."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
