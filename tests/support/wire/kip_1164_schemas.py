"""KIP-1164's request and response schemas, and a codec that knows nothing but a schema.

The text below is the KIP's JSON with everything left out but names, types and nesting. The codec is
written from Kafka's protocol guide (flexible versions) and shares no code with ours, so that a
message which reads back here is one that any other implementation reads.

    a field   Name type [nullable], or Name [] with the fields of an element indented below
    a tag     `tag 10000` in front of the field; its default is that it is left out
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

KIP_1164: Final = """\
93 DisklessCreatePartitions request
  Topics []
    TopicId uuid
    Name string
    NumPartitions int32
  TimeoutMs int32

93 DisklessCreatePartitions response
  ThrottleTimeMs int32
  Topics []
    TopicId uuid
    ErrorCode int16
    ErrorMessage string nullable

94 DisklessDeleteTopics request
  Topics []
    TopicId uuid
  TimeoutMs int32

94 DisklessDeleteTopics response
  ThrottleTimeMs int32
  Responses []
    TopicId uuid
    ErrorCode int16
    ErrorMessage string nullable

95 DisklessCommitFile request
  ObjectKey string
  ObjectFormat int8
  FileSize int64
  OwnerIds []int32
  Batches []
    Magic int8
    RequestId int32
    TopicId uuid
    PartitionIndex int32
    ByteOffset int32
    Size int32
    BaseOffset int64
    LastOffset int64
    BatchMaxTimestamp int64
    TimestampType int8
    ProducerId int64
    ProducerEpoch int16
    BaseSequence int32
    LastSequence int32
  TimeoutMs int32

95 DisklessCommitFile response
  ThrottleTimeMs int32
  Batches []
    ErrorCode int16
    ErrorMessage string nullable
    AssignedBaseOffset int64
    LogAppendTime int64
    LogStartOffset int64
    IsDuplicate bool

96 DisklessDeleteRecords request
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      Offset int64
  TimeoutMs int32

96 DisklessDeleteRecords response
  ThrottleTimeMs int32
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      LowWatermark int64
      ErrorCode int16
      ErrorMessage string nullable

97 DisklessListOffsets request
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      Timestamp int64
  TimeoutMs int32

97 DisklessListOffsets response
  ThrottleTimeMs int32
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      ErrorCode int16
      ErrorMessage string nullable
      Timestamp int64
      Offset int64

98 DisklessFindBatches request
  FetchMaxBytes int32
  MaxBatchesPerPartition int32
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      Offset int64
      MaxPartitionFetchBytes int32
  TimeoutMs int32

98 DisklessFindBatches response
  ThrottleTimeMs int32
  Topics []
    TopicId uuid
    Partitions []
      PartitionIndex int32
      ErrorCode int16
      LogStartOffset int64
      HighWatermark int64
      Batches []
        BatchId int64
        ObjectKey string
        Magic int8
        ByteOffset int64
        ByteSize int64
        BaseOffset int64
        LastOffset int64
        LogAppendTimestamp int64
        BatchMaxTimestamp int64
        TimestampType int8

100 DisklessDescribeFiles request
  Files []
    ObjectKey string
  TimeoutMs int32

100 DisklessDescribeFiles response
  ThrottleTimeMs int32
  Files []
    ObjectKey string
    ErrorCode int16
    ErrorMessage string nullable
    HasLiveBatches bool
"""


class Field(NamedTuple):
    name: str
    type: str
    """`[]` for an array of structures, whose fields are `children`."""
    is_nullable: bool
    tag: int | None
    children: "Sequence[Field]"


Schemas = Mapping[str, Sequence[Field]]


def parse_schemas(text: str) -> Schemas:
    """By title, such as `93 DisklessCreatePartitions request`."""
    schemas = {}
    for block in text.strip("\n").split("\n\n"):
        title, *lines = block.split("\n")
        schemas[title] = _parse_fields(lines, 2)
    return schemas


def _parse_fields(lines: Sequence[str], indent: int) -> Sequence[Field]:
    fields = []
    number = 0
    while number < len(lines):
        words = lines[number].split()
        assert lines[number].startswith(" " * indent + words[0]), lines[number]
        tag = None
        if words[0] == "tag":
            tag, words = int(words[1]), words[2:]
        end = number + 1
        while end < len(lines) and lines[end].startswith(" " * (indent + 2)):
            end += 1
        children = _parse_fields(lines[number + 1 : end], indent + 2)
        fields.append(Field(words[0], words[1], words[2:] == ["nullable"], tag, children))
        number = end
    return fields


SCHEMAS: Final = parse_schemas(KIP_1164)

_FORMATS: Final = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint32": ">I", "bool": ">?",
    "float64": ">d",
}  # fmt: skip


def encode(fields: Sequence[Field], values: Mapping[str, Any], *, strange: bytes = b"") -> bytes:
    """A structure; with `strange`, every tag section gets a field with that content."""
    parts = [_encode_value(f, values[f.name], strange) for f in fields if f.tag is None]
    tagged = [
        (f.tag, _encode_value(f, values[f.name], strange))
        for f in fields
        if f.tag is not None and f.name in values
    ]
    if strange:
        tagged += [(7, strange), (20_000, strange)]
    parts.append(_varint(len(tagged)))
    for tag, content in sorted(tagged):
        parts += [_varint(tag), _varint(len(content)), content]
    return b"".join(parts)


def _encode_value(field: Field, value: Any, strange: bytes) -> bytes:
    if field.type == "[]":
        elements = [encode(field.children, element, strange=strange) for element in value]
        return _varint(len(elements) + 1) + b"".join(elements)
    if field.type.startswith("[]"):
        scalar = field._replace(type=field.type.removeprefix("[]"))
        return _varint(len(value) + 1) + b"".join(_encode_value(scalar, x, strange) for x in value)
    if field.type == "uuid":
        return bytes(value.bytes)
    if field.type == "string":
        if value is None:
            assert field.is_nullable
            return b"\x00"
        return _varint(len(value.encode()) + 1) + value.encode()
    if field.type == "bytes":
        return _varint(len(value) + 1) + bytes(value)
    return struct.pack(_FORMATS[field.type], value)


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value % 128 + 128])
        value //= 128
    return encoded + bytes([value])


def decode(fields: Sequence[Field], data: bytes, *, skips_tags: bool = False) -> dict[str, Any]:
    """The values of exactly one structure; an unknown tag is a KeyError, or skipped."""
    values, rest = _decode_structure(fields, data, skips_tags)
    assert rest == b"", f"{len(rest)} bytes too many"
    return values


def _decode_structure(
    fields: Sequence[Field], data: bytes, skips_tags: bool
) -> tuple[dict[str, Any], bytes]:
    values = {}
    for field in fields:
        if field.tag is None:
            values[field.name], data = _decode_value(field, data, skips_tags)
    by_tag = {field.tag: field for field in fields if field.tag is not None}
    count, data = _decode_varint(data)
    for _ in range(count):
        tag, data = _decode_varint(data)
        size, data = _decode_varint(data)
        content, data = data[:size], data[size:]
        assert len(content) == size
        if skips_tags and tag not in by_tag:
            continue
        values[by_tag[tag].name], rest = _decode_value(by_tag[tag], content, skips_tags)
        assert rest == b""
    return values, data


def _decode_value(field: Field, data: bytes, skips_tags: bool) -> tuple[Any, bytes]:
    if field.type.startswith("[]"):
        count, data = _decode_varint(data)
        elements = []
        for _ in range(count - 1):
            if field.type == "[]":
                element, data = _decode_structure(field.children, data, skips_tags)
            else:
                scalar = field._replace(type=field.type.removeprefix("[]"))
                element, data = _decode_value(scalar, data, skips_tags)
            elements.append(element)
        return elements, data
    if field.type == "uuid":
        return UUID(bytes=data[:16]), data[16:]
    if field.type == "string":
        length, data = _decode_varint(data)
        if length == 0:
            assert field.is_nullable
            return None, data
        return data[: length - 1].decode(), data[length - 1 :]
    if field.type == "bytes":
        length, data = _decode_varint(data)
        return data[: length - 1], data[length - 1 :]
    size = struct.calcsize(_FORMATS[field.type])
    return struct.unpack(_FORMATS[field.type], data[:size])[0], data[size:]


def _decode_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for number, byte in enumerate(data):
        value += byte % 128 * 128**number
        if byte < 128:
            return value, data[number + 1 :]
    raise ValueError("a varint without an end")


def entries_of(values: Mapping[str, Any], *path: str) -> Iterator[Mapping[str, Any]]:
    """The structures below nested arrays, each with the fields of those around it."""
    if not path:
        yield values
        return
    for element in values[path[0]]:
        yield from entries_of({**values, **element}, *path[1:])
