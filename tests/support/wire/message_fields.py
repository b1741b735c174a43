"""Fields of messages as the schemas of KIP-1164 have them, and a commit that is made of them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILE, CommitFileMessage
from tests.support.wire.kip_1164_schemas import SCHEMAS, Field, encode

A, B = UUID(int=0xA), UUID(int=0xB)


def schema(operation: Operation[Any, Any], kind: str) -> Sequence[Field]:
    return SCHEMAS[f"{operation.key} {operation.name} {kind}"]


def tagged(tag: int, name: str, kind: str) -> Field:
    return Field(name, kind, False, tag, ())


def commit_values(*batches: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "Magic": 2, "RequestId": 1, "TopicId": A, "PartitionIndex": 0, "ByteOffset": 0, "Size": 70,
        "BaseOffset": 0, "LastOffset": 0, "BatchMaxTimestamp": 5, "TimestampType": 0,
        "ProducerId": -1, "ProducerEpoch": -1, "BaseSequence": -1, "LastSequence": -1,
    }  # fmt: skip
    return {
        "ObjectKey": "k",
        "ObjectFormat": 1,
        "FileSize": 900,
        "OwnerIds": [0],
        "Batches": [{**usual, **batch} for batch in batches],
        "TimeoutMs": 5,
    }


def received(*batches: dict[str, Any]) -> CommitFileMessage:
    body = encode(schema(COMMIT_FILE, "request"), commit_values(*batches))
    return COMMIT_FILE.decode_request(body)[0]
