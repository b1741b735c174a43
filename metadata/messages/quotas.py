"""The operation between brokers that changes quotas of clients, as bytes: API key 10012.

Laid out like the others (metadata/messages/codec.py); docs/coordinator-api.md has the fields.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from metadata.messages.codec import (
    ERRORS,
    MessageReader,
    Operation,
    Steps,
    read_answers,
    write_answers,
)
from metadata.operations import AlterClientQuotas
from metadata.records.control import decode_quota_entity, encode_quota_entity
from wal.errors import DisklessError
from wal.wire.fields import FLOAT64, INT8, NO_TAGS, compact_string, uvarint

ALTER_CLIENT_QUOTAS_KEY: Final = 10_012


def _write_alterations(
    requests: Sequence[AlterClientQuotas], parts: list[bytes]
) -> Mapping[int, bytes]:
    parts.append(uvarint(len(requests) + 1))
    for request in requests:
        parts += (encode_quota_entity(request.entity), uvarint(len(request.changes) + 1))
        for key, value in sorted(request.changes.items()):
            parts += (compact_string(key), INT8.pack(value is None), FLOAT64.pack(value or 0.0))
            parts.append(NO_TAGS)
        parts.append(NO_TAGS)
    return {}


def _read_alterations(reader: MessageReader) -> Steps[tuple[Sequence[AlterClientQuotas], int]]:
    requests = []
    for _ in reader.entries(3):
        entity = decode_quota_entity(reader)
        changes: dict[str, float | None] = {}
        for _ in reader.entries(11):
            key, is_removed, value = reader.compact_string(), reader.boolean(), reader.float64()
            if key in changes:
                raise reader.corrupt(f"the quota {key!r} is there twice")
            changes[key] = None if is_removed else value
            reader.skip_tags()
        reader.skip_tags()
        requests.append(AlterClientQuotas(entity=entity, changes=changes))
        yield
    timeout_ms, _ = reader.request_end()
    return requests, timeout_ms


def _failed(error: DisklessError) -> DisklessError | None:
    return error


ALTER_CLIENT_QUOTAS: Final[Operation[Sequence[AlterClientQuotas], DisklessError | None]] = (
    Operation(
        key=ALTER_CLIENT_QUOTAS_KEY,
        name="CoordinatorAlterClientQuotas",
        changes_state=True,
        write_request=_write_alterations,
        read_request=_read_alterations,
        write_answers=lambda asked, errors, parts: write_answers(ERRORS, errors, parts),
        read_answers=lambda reader, asked: read_answers(ERRORS, reader),
        failed=_failed,
        count=len,
    )
)
