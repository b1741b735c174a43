"""The shapes that requests and answers have in common, for the rows of `Operation`.

    request    listed         entries, one behind the other
               addressed      a coordinator's id, then entries
               partitioned    entries by topic and partition
               single         fields that are one entry
    answers    in_order       entries in the order of the request, without repeating any of it
               keyed          entries that begin with what they are about
               by_partition   entries by topic and partition
               alone          fields that are one answer

Layouts of entries are compiled (wal/wire/layouts.py). What a client may make long is read and
written in steps.
"""

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from metadata.messages.codec import (
    PIECES_JOINED,
    AnswerShape,
    Entry,
    MessageReader,
    Request,
    RequestShape,
    Steps,
    at_once,
    error_fields,
)
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.wire.fields import INT32, NO_TAGS, UUID_BYTES, FieldReader, compact_string, uvarint
from wal.wire.layouts import Field, Layout, closed

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", bound=tuple[Any, ...])

ERROR: Final = Field(error_fields, lambda reader: reader.error(), 3)
"""An error, or none, as ErrorCode and ErrorMessage; read by a MessageReader."""
ERRORS: Final = closed(ERROR)
"""An answer that is nothing else."""
TOPIC_ID: Final = Field(lambda topic_id: topic_id.bytes, FieldReader.uuid, UUID_BYTES)
OBJECT_KEY: Final = Field(compact_string, FieldReader.compact_string)


def or_error(of: Field | Layout[Any], nothing: bytes) -> Field:
    """An error, then a value; where there is an error, its bytes are `nothing`."""

    def write(answer: Any) -> bytes:
        if isinstance(answer, DisklessError):
            return error_fields(answer) + nothing
        return error_fields(None) + of.write(answer)

    def read(reader: MessageReader) -> Any:
        error, value = reader.error(), of.read(reader)
        return value if error is None else error

    return Field(write, read, ERROR.bytes_min + of.bytes_min)


def write_by_topic(
    parts: list[bytes], partitions: Iterable[TopicIdPartition], entries: Iterable[bytes]
) -> Steps[None]:
    """Topics[] of TopicId, Partitions[] of PartitionIndex and an entry, which is a closed struct.

    Entry and partition match by position; runs of one topic become its groups. In steps.
    """
    groups: list[bytes] = []
    topic_count = 0
    for topic_id, run in groupby(zip(partitions, entries, strict=True), _topic_of):
        topic_count += 1
        pieces: list[bytes] = []
        joined: list[bytes] = []
        count = 0
        for partition, entry in run:
            pieces.append(INT32.pack(partition[1]) + entry)
            count += 1
            if len(pieces) >= PIECES_JOINED:
                joined.append(b"".join(pieces))
                pieces.clear()
            yield
        groups += (topic_id.bytes, uvarint(count + 1), *joined, b"".join(pieces), NO_TAGS)
    parts += (uvarint(topic_count + 1), *groups)


# -- requests --------------------------------------------------------------------------------------


class Addressed(NamedTuple, Generic[Entry]):
    """What one coordinator, which is a metadata partition, is asked about."""

    coordinator: int
    entries: Sequence[Entry]


def listed(of: Layout[Entry]) -> RequestShape[Sequence[Entry]]:
    return RequestShape(partial(write_entries, of), partial(_read_listed, of), _itself, _the_share)


def addressed(of: Layout[Entry]) -> RequestShape[Addressed[Entry]]:
    def write(asked: Addressed[Entry], parts: list[bytes]) -> Mapping[int, bytes]:
        parts.append(INT32.pack(asked.coordinator))
        return write_entries(of, asked.entries, parts)

    def read(reader: MessageReader) -> Steps[tuple[Addressed[Entry], int]]:
        coordinator = reader.int32()
        entries, timeout_ms = yield from _read_listed(of, reader)
        return Addressed(coordinator, entries), timeout_ms

    return RequestShape(
        write,
        read,
        lambda asked: asked.entries,
        lambda asked, entries: asked._replace(entries=entries),
    )


def partitioned(make: Callable[..., Row], row: struct.Struct) -> RequestShape[Sequence[Row]]:
    """`make(partition, *fields)` for each partition, whose fields are `row`."""

    def write(rows: Sequence[Row], parts: list[bytes]) -> Mapping[int, bytes]:
        pack = row.pack
        partitions = (entry[0] for entry in rows)
        at_once(write_by_topic(parts, partitions, (pack(*entry[1:]) + NO_TAGS for entry in rows)))
        return {}

    def read(reader: MessageReader) -> Steps[tuple[Sequence[Row], int]]:
        rows = yield from reader.by_topic_in_steps(
            row.size, lambda partition: make(partition, *reader.unpack(row))
        )
        timeout_ms, _ = reader.request_end()
        return rows, timeout_ms

    return RequestShape(write, read, _itself, _the_share)


def single(of: Field) -> RequestShape[Any]:
    def write(request: Any, parts: list[bytes]) -> Mapping[int, bytes]:
        parts.append(of.write(request))
        return {}

    def read(reader: MessageReader) -> tuple[Any, int]:
        request = of.read(reader)
        timeout_ms, _ = reader.request_end()
        return request, timeout_ms

    return RequestShape(write, read, lambda request: (request,), lambda request, _: request)


def _itself(entries: Sequence[Entry]) -> Sequence[Entry]:
    return entries


def _the_share(request: Sequence[Entry], entries: Sequence[Entry]) -> Sequence[Entry]:
    return entries


def write_entries(
    of: Layout[Any], entries: Iterable[Any], parts: list[bytes]
) -> Mapping[int, bytes]:
    """A compact array of what a request is about."""
    pieces = [*map(of.write, entries)]
    parts += (uvarint(len(pieces) + 1), *pieces)
    return {}


def read_entries(of: Layout[Entry], reader: MessageReader) -> Steps[list[Entry]]:
    """The same, in steps."""
    entries = []
    for _ in reader.entries(of.bytes_min):
        entries.append(of.read(reader))
        yield
    return entries


def _read_listed(of: Layout[Entry], reader: MessageReader) -> Steps[tuple[list[Entry], int]]:
    entries = yield from read_entries(of, reader)
    timeout_ms, _ = reader.request_end()
    return entries, timeout_ms


# -- answers ---------------------------------------------------------------------------------------


def in_order(of: Field | Layout[Any]) -> AnswerShape[Any, Any]:
    def write(request: Any, answers: Sequence[Any], parts: list[bytes]) -> Steps[None]:
        parts.append(uvarint(len(answers) + 1))
        for answer in answers:
            parts.append(of.write(answer))
            yield

    def read(reader: MessageReader, request: Any) -> Sequence[Any]:
        return [of.read(reader) for _ in reader.entries(of.bytes_min)]

    return AnswerShape(write, read)


def keyed(
    keys: Callable[[Request], Sequence[Any]], key: Field, answer: Field
) -> AnswerShape[Request, Any]:
    """`keys` of the entries of a request."""

    def write(request: Request, answers: Sequence[Any], parts: list[bytes]) -> Steps[None]:
        parts.append(uvarint(len(answers) + 1))
        for name, value in zip(keys(request), answers, strict=True):
            parts += (key.write(name), answer.write(value), NO_TAGS)
            yield

    def read(reader: MessageReader, request: Request) -> Sequence[Any]:
        answered = []
        for _ in reader.entries(key.bytes_min + answer.bytes_min + len(NO_TAGS)):
            answered.append((key.read(reader), answer.read(reader)))
            reader.skip_tags()
        return _in_the_order_of(keys(request), answered, reader)

    return AnswerShape(write, read)


class TagSection(NamedTuple):
    """What stands in the tag section of an answer, and what becomes of the answer with it."""

    write: Callable[[Any], bytes]
    read: Callable[[Any, MessageReader], Any]


def by_partition(of: Field, tags: TagSection | None = None) -> AnswerShape[Any, Any]:
    """The entries of a request begin with their partitions."""
    write_tags: Callable[[Any], bytes] = _no_tags if tags is None else tags.write

    def write(request: Any, answers: Sequence[Any], parts: list[bytes]) -> Steps[None]:
        yield from write_by_topic(
            parts,
            (entry[0] for entry in request),
            (of.write(answer) + write_tags(answer) for answer in answers),
        )

    def read(reader: MessageReader, request: Any) -> Sequence[Any]:
        if tags is None:
            return read_answers_by_topic(reader, request, of.bytes_min, partial(of.read, reader))
        return read_answers_by_topic(
            reader,
            request,
            of.bytes_min,
            lambda: tags.read(of.read(reader), reader),
            reads_tags=True,
        )

    return AnswerShape(write, read)


def _no_tags(_: Any) -> bytes:
    return NO_TAGS


def alone(of: Field) -> AnswerShape[Any, Any]:
    def write(request: Any, answers: Sequence[Any], parts: list[bytes]) -> None:
        (answer,) = answers
        parts.append(of.write(answer))

    return AnswerShape(write, lambda reader, request: (of.read(reader),))


def read_answers_by_topic(
    reader: MessageReader,
    asked: Sequence[tuple[Any, ...]],
    bytes_min: int,
    read: Callable[[], Entry],
    *,
    reads_tags: bool = False,
) -> Sequence[Entry]:
    """Reads an answer for each partition, in the order of `asked`, which begin with theirs.

    `reads_tags`: whether `read` reads the tag section too.
    """
    answered = reader.by_topic(
        bytes_min, lambda partition: (partition, read()), reads_tags=reads_tags
    )
    return _in_the_order_of([entry[0] for entry in asked], answered, reader)


def _topic_of(item: tuple[TopicIdPartition, bytes]) -> UUID:
    return item[0][0]


def _in_the_order_of(
    asked: Sequence[Key], answered: Sequence[tuple[Key, Entry]], reader: FieldReader
) -> list[Entry]:
    """The answers in the order of `asked`, whatever the order they came in.

    Raises CorruptLog when they are not the answers to just that.
    """
    if len(asked) == len(answered) and all(
        key == answer[0] for key, answer in zip(asked, answered, strict=True)
    ):
        return [answer for _, answer in answered]
    found: defaultdict[Key, deque[Entry]] = defaultdict(deque)
    for key, answer in answered:
        found[key].append(answer)
    ordered = []
    for key in asked:
        if not found[key]:
            raise reader.corrupt(f"no answer for {key}")
        ordered.append(found[key].popleft())
    if len(ordered) != len(answered):
        raise reader.corrupt(f"{len(answered)} answers to {len(asked)} questions")
    return ordered
