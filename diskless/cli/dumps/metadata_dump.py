"""`diskless metadata dump`: the records of a metadata log, one per line, for people or as JSON.

    0:12  2024-01-01 00:00:00.000  FileCommitted  object_key=wal/3f/01J… batch_count=3 …

is record 12 of metadata partition 0. Fields have the names of the values in
metadata/records/records.py; a value that is not a plain word is written as JSON. A FileCommitted
can hold thousands of batches, so it is summed up; with `verbose` its batches follow, in lines of
their own or in the JSON.

Reading is left to diskless/cli/metadata_sources.py. Here nothing fails for a record that this
release cannot decode, because those are what one looks into a log for: it is shown as hexadecimal
digits with what is wrong with it, and counted.

Source of what is in a record: docs/formats.md.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.cli.metadata_sources import LoggedRecord
from metadata.access_tokens import AccessToken
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord
from metadata.records.groups import CommittedOffset
from metadata.records.records import RECORD_TYPES, MetadataRecord, decode_record
from metadata.records.users import SECRET_RECORDS
from metadata.scram.credentials import ScramCredential
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog, InvalidSettings
from wal.wire.fields import FieldReader

_TYPE_WIDTH: Final = 20
_PLACE_WIDTH: Final = 10
_HIDDEN: Final = "***"
_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, after which `datetime` knows no time."""


class Inspected(NamedTuple):
    """A record and what could be made out of it; `record` is None when it cannot be decoded."""

    logged: LoggedRecord
    api_key: int | None
    version: int | None
    record: MetadataRecord | None
    problem: str | None

    @property
    def type_name(self) -> str:
        known = None if self.api_key is None else RECORD_TYPES.get(self.api_key)
        return "Unknown" if known is None else type_name(known)


def type_name(kind: type) -> str:
    """`FileCommittedRecord` as it is called in KIP-1164 and in our documents."""
    return kind.__name__.removesuffix("Record")


def inspect(logged: LoggedRecord) -> Inspected:
    """Decode a record as far as possible."""
    api_key = version = None
    try:
        frame = FieldReader(logged.value, "metadata record")
        frame.uvarint()
        api_key, version = frame.uvarint(), frame.uvarint()
        return Inspected(logged, api_key, version, decode_record(logged.value), None)
    except CorruptLog as error:
        return Inspected(logged, api_key, version, None, str(error))


@dataclass(slots=True)
class Dump:
    """Chooses records and writes them as lines, and counts those that could not be decoded."""

    types: Sequence[str] = ()
    """Names in any case, or api keys; empty: all."""
    limit: int | None = None
    as_json: bool = False
    verbose: bool = False
    undecoded: int = 0

    def lines(self, records: Iterable[LoggedRecord]) -> Iterator[str]:
        """The lines of the chosen ones of `records`. Raises: InvalidSettings (no such type)."""
        wanted = _wanted_types(self.types)
        left = self.limit
        if left == 0:
            return
        for logged in records:
            inspected = inspect(logged)
            if wanted is not None and inspected.api_key not in wanted:
                continue
            self.undecoded += inspected.record is None
            yield from self._lines_of(inspected)
            if left is not None:
                left -= 1
                if not left:
                    return

    def _lines_of(self, inspected: Inspected) -> Iterator[str]:
        if self.as_json:
            yield json.dumps(_as_object(inspected, verbose=self.verbose), separators=(",", ":"))
            return
        logged = inspected.logged
        place = f"{logged.partition}:{logged.offset}"
        values = _fields_of(inspected, verbose=False)
        yield (
            f"{place:<{_PLACE_WIDTH}}  {time_text(logged.timestamp_ms)}"
            f"  {inspected.type_name:<{_TYPE_WIDTH}}  {_as_words(values)}"
        ).rstrip()
        if self.verbose and isinstance(inspected.record, FileCommittedRecord):
            yield from _batch_lines(inspected.record)


def _wanted_types(types: Sequence[str]) -> frozenset[int] | None:
    if not types:
        return None
    by_name = {type_name(kind).lower(): api_key for api_key, kind in RECORD_TYPES.items()}
    wanted = set()
    for name in types:
        if name.isdecimal():
            wanted.add(int(name))
        elif name.lower() in by_name:
            wanted.add(by_name[name.lower()])
        else:
            known = ", ".join(type_name(RECORD_TYPES[key]) for key in sorted(RECORD_TYPES))
            raise InvalidSettings(f"--type {name}: must be an api key or one of {known}")
    return frozenset(wanted)


# --- one record ----------------------------------------------------------------------------------


def _as_object(inspected: Inspected, *, verbose: bool) -> Mapping[str, Any]:
    logged = inspected.logged
    return {
        "partition": logged.partition,
        "offset": logged.offset,
        "timestamp_ms": logged.timestamp_ms,
        "api_key": inspected.api_key,
        "version": inspected.version,
        "type": inspected.type_name,
        "bytes": len(logged.value),
        "fields": _fields_of(inspected, verbose=verbose),
    }


def _fields_of(inspected: Inspected, *, verbose: bool) -> Mapping[str, Any]:
    record = inspected.record
    if record is None:
        return {
            "api_key": inspected.api_key,
            "version": inspected.version,
            "problem": inspected.problem,
            "raw": _raw(inspected),
        }
    values: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, TopicIdPartition):
            values |= _partition(value)
        elif isinstance(record, FileCommittedRecord) and field.name in ("batches", "refused"):
            continue
        else:
            values[field.name] = _plain(value)
    if isinstance(record, FileCommittedRecord):
        values |= _summary(record)
        if verbose:
            values["batches"] = [
                {**_partition(batch.partition), **_numbers(batch)} for batch in record.batches
            ]
            values["refused"] = [refused._asdict() for refused in record.refused]
    return values


def _raw(inspected: Inspected) -> str:
    """The bytes of a record that cannot be decoded, unless it is one with secrets."""
    return _HIDDEN if inspected.api_key in SECRET_RECORDS else inspected.logged.value.hex()


def _credential(credential: ScramCredential) -> Mapping[str, Any]:
    """Nobody is shown what is stored of a password."""
    hidden = dict.fromkeys(("salt", "stored_key", "server_key"), _HIDDEN)
    return {"iterations": credential.iterations, **hidden}


def _summary(record: FileCommittedRecord) -> Mapping[str, int]:
    batches = [*record.batches]
    return {
        "partition_count": len({batch.partition for batch in batches}),
        "batch_count": len(batches),
        "record_count": sum(batch.last_offset - batch.base_offset + 1 for batch in batches),
        "batch_bytes": sum(batch.byte_size for batch in batches),
        "refused_count": len(record.refused),
    }


def _batch_lines(record: FileCommittedRecord) -> Iterator[str]:
    for partition, grouped in groupby(record.batches, lambda batch: batch.partition):
        batches = [*grouped]
        summary = {
            **_partition(partition),
            "batch_count": len(batches),
            "base_offset": batches[0].base_offset,
            "last_offset": batches[-1].last_offset,
        }
        yield f"    {_as_words(summary)}"
        for batch in batches:
            yield f"        {_as_words(_numbers(batch))}"
    for refused in record.refused:
        yield f"    refused {_as_words(refused._asdict())}"


def _numbers(placed: CommittedBatch | CommittedOffset) -> Mapping[str, Any]:
    return {name: value for name, value in placed._asdict().items() if name != "partition"}


def _partition(partition: TopicIdPartition) -> Mapping[str, Any]:
    return {"topic_id": str(partition.topic_id), "partition": partition.partition}


def _plain(value: Any) -> Any:
    """`value` in what JSON has."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, TopicIdPartition):
        return _partition(value)
    if isinstance(value, CommittedOffset):
        return {**_partition(value.partition), **_numbers(value)}
    if isinstance(value, ScramCredential):
        return _credential(value)
    if isinstance(value, AccessToken):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _as_words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in values.items())


def _word(value: Any) -> str:
    """A plain word as it is, everything else as JSON: a name with a line end stays in its line."""
    if isinstance(value, str) and value.isprintable() and not set(value) & set(" \"'=[]{}"):
        return value or '""'
    return json.dumps(value, separators=(",", ":"))


def time_text(timestamp_ms: int) -> str:
    """In UTC; a time that no calendar has, as the number it is."""
    if not 0 <= timestamp_ms <= _MS_MAX:
        return f"{timestamp_ms} ms"
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"
