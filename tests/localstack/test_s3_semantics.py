"""The S3 behaviour that localstack/README.md claims and the broker's store relies on."""

import base64
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
from botocore.exceptions import ClientError

from tests.support.s3_servers import S3Server, on_every_server

pytestmark = on_every_server


def error_code(operation: Callable[[], object]) -> str:
    """The S3 error code that `operation` raises."""
    with pytest.raises(ClientError) as caught:
        operation()
    return str(caught.value.response["Error"]["Code"])


def crc32c(body: bytes) -> str:
    """As S3 writes it: base64 of the four bytes, big-endian."""
    return base64.b64encode(struct.pack(">I", google_crc32c.value(body))).decode()


def test_a_conditional_put_of_an_existing_key_is_refused_and_changes_nothing(
    s3_server: S3Server,
) -> None:
    put = {"Bucket": s3_server.bucket, "Key": "wal/00/A", "IfNoneMatch": "*"}
    s3_server.s3.put_object(**put, Body=b"first")
    refused = error_code(lambda: s3_server.s3.put_object(**put, Body=b"second"))
    assert refused == "PreconditionFailed"
    stored = s3_server.s3.get_object(Bucket=s3_server.bucket, Key="wal/00/A")["Body"].read()
    assert stored == b"first"


def test_of_concurrent_conditional_puts_exactly_one_wins(s3_server: S3Server) -> None:
    bodies = [bytes([number]) * 200_000 for number in range(8)]

    def put(body: bytes) -> tuple[str, bytes]:
        try:
            s3_server.s3.put_object(
                Bucket=s3_server.bucket, Key="wal/00/A", Body=body, IfNoneMatch="*"
            )
        except ClientError as error:
            return str(error.response["Error"]["Code"]), body
        return "stored", body

    with ThreadPoolExecutor(len(bodies)) as threads:
        outcomes = list(threads.map(put, bodies))
    stored = s3_server.s3.get_object(Bucket=s3_server.bucket, Key="wal/00/A")["Body"].read()
    assert [body for outcome, body in outcomes if outcome == "stored"] == [stored]
    assert {outcome for outcome, _ in outcomes} == {"stored", "PreconditionFailed"}


def test_a_body_that_differs_from_its_checksum_is_not_stored(s3_server: S3Server) -> None:
    put = {"Bucket": s3_server.bucket, "Key": "wal/00/A"}
    refused = error_code(
        lambda: s3_server.s3.put_object(**put, Body=b"abd", ChecksumCRC32C=crc32c(b"abc"))
    )
    assert refused in ("BadDigest", "XAmzContentChecksumMismatch")
    assert error_code(lambda: s3_server.s3.head_object(**put)) == "404"


def test_head_returns_the_stored_checksum_length_and_user_metadata(s3_server: S3Server) -> None:
    put = {"Bucket": s3_server.bucket, "Key": "wal/00/A"}
    s3_server.s3.put_object(
        **put, Body=b"abc", ChecksumCRC32C=crc32c(b"abc"), Metadata={"put-id": "01J"}
    )
    head = s3_server.s3.head_object(**put, ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32C"], head["ContentLength"]) == (crc32c(b"abc"), 3)
    assert head["Metadata"] == {"put-id": "01J"}


def test_ranges_inside_across_and_past_the_end(s3_server: S3Server) -> None:
    put = {"Bucket": s3_server.bucket, "Key": "wal/00/A"}
    s3_server.s3.put_object(**put, Body=b"0123456789")

    def read(byte_range: str) -> object:
        return s3_server.s3.get_object(**put, Range=f"bytes={byte_range}")["Body"].read()

    assert read("2-4") == b"234"
    assert read("8-20") == b"89"
    assert error_code(lambda: read("10-12")) == "InvalidRange"


def test_listing_is_in_key_order_after_a_key_and_paged(s3_server: S3Server) -> None:
    for number in (3, 1, 4, 0, 2):
        s3_server.s3.put_object(Bucket=s3_server.bucket, Key=f"meta/{number}", Body=b"")
    s3_server.s3.put_object(Bucket=s3_server.bucket, Key="wal/0", Body=b"")
    pages = s3_server.s3.get_paginator("list_objects_v2").paginate(
        Bucket=s3_server.bucket,
        Prefix="meta/",
        StartAfter="meta/0",
        PaginationConfig={"PageSize": 2},
    )
    keys = [[entry["Key"] for entry in page["Contents"]] for page in pages]
    assert keys == [["meta/1", "meta/2"], ["meta/3", "meta/4"]]


def test_deleting_many_confirms_keys_that_were_absent(s3_server: S3Server) -> None:
    s3_server.s3.put_object(Bucket=s3_server.bucket, Key="wal/0", Body=b"")
    answer = s3_server.s3.delete_objects(
        Bucket=s3_server.bucket, Delete={"Objects": [{"Key": "wal/0"}, {"Key": "wal/1"}]}
    )
    assert sorted(entry["Key"] for entry in answer["Deleted"]) == ["wal/0", "wal/1"]
    assert "Errors" not in answer
