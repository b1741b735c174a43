"""Batches of the metadata log as readers are shown them: without the secrets of users.

Whoever may read the topic of the log, or dumps it, sees that a user's credential was set and of
which kind, and zeros for its secrets. All else is the log, byte for byte, and a batch stays as long
as it is; its CRC is that of what is shown.

Failure case: a batch with a record of that type that cannot be read is CorruptLog, never shown.
"""

from typing import Final

from metadata.log.log_batch import decode_batch, encode_batch
from metadata.records.records import FRAME_VERSION, decode_record, encode_record
from metadata.records.users import SECRET_RECORDS, ScramCredentialSetRecord, blanked
from wal.wire.fields import uvarint

_SECRET_FRAMES: Final = tuple(
    uvarint(FRAME_VERSION) + uvarint(api_key) for api_key in sorted(SECRET_RECORDS)
)
"""How a record with secrets begins."""


def shown_batch(batch: bytes) -> bytes:
    """Returns `batch`, or one without secrets in its place. Raises CorruptLog."""
    if not any(frame in batch for frame in _SECRET_FRAMES):
        return batch
    decoded = decode_batch(batch)
    records = [shown_record(record) for record in decoded.records]
    if records == [*decoded.records]:
        return batch
    return encode_batch(decoded.base_offset, decoded.timestamp_ms, records)


def shown_record(data: bytes) -> bytes:
    """Returns the bytes of a record, or of one without secrets in its place. Raises CorruptLog."""
    if not data.startswith(_SECRET_FRAMES):
        return data
    record = decode_record(data)
    assert isinstance(record, ScramCredentialSetRecord)
    return bytes(encode_record(blanked(record)))
