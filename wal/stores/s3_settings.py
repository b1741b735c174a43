"""The settings of the S3 client, apart from its code: reading a configuration needs no botocore."""

from dataclasses import dataclass
from typing import Final

from wal.settings import setting
from wal.stores.retry import RetryLimits

KMS: Final = "aws:kms"
ENCRYPTIONS: Final = ("", "AES256", KMS, "aws:kms:dsse")
"""What a PUT can ask the store to encrypt with; empty: as the bucket says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Limits of one S3 client, and what it asks the store for."""

    connect_timeout_ms: int = setting(
        "s3.connect.timeout.ms",
        3_000,
        minimum=10,
        maximum=60_000,
        why="shorter: fails over a slow network; longer: a dead endpoint is noticed later",
    )
    read_timeout_ms: int = setting(
        "s3.read.timeout.ms",
        10_000,
        minimum=10,
        maximum=300_000,
        why="the server's longest silence; shorter: gives up busy ones; longer: hangs on dead ones",
    )
    attempt_timeout_ms: int = setting(
        "s3.attempt.timeout.ms",
        15_000,
        minimum=10,
        maximum=600_000,
        why="one request with its body; shorter: large objects never arrive; longer: a trickling"
        " answer holds up its reader",
    )
    deadline_ms: int = setting(
        "s3.deadline.ms",
        30_000,
        minimum=10,
        maximum=3_600_000,
        why="one operation with its retries; shorter: errors in every hiccup; longer: late errors",
    )
    attempts_max: int = setting(
        "s3.attempts.max",
        8,
        minimum=1,
        maximum=1000,
        why="fewer: errors in every hiccup; more: more load on a store that is in trouble",
    )
    retry_first_delay_ms: int = setting(
        "s3.retry.first.delay.ms",
        100,
        minimum=1,
        maximum=60_000,
        why="shorter: retries meet the same hiccup; longer: each hiccup costs more latency",
    )
    retry_delay_max_ms: int = setting(
        "s3.retry.delay.max.ms",
        5_000,
        minimum=1,
        maximum=60_000,
        why="shorter: more load on a store in trouble; longer: goes on later after an outage",
    )
    connections_max: int = setting(
        "s3.connections.max",
        64,
        minimum=1,
        maximum=4096,
        why="fewer: requests wait for a connection; more: more sockets and memory",
    )
    body_threads: int = setting(
        "s3.body.threads",
        8,
        minimum=1,
        maximum=64,
        why="bodies read from disk at a time; fewer: uploads wait for each other's reads",
    )
    payload_signed: bool = setting(
        "s3.payload.signed",
        True,
        why="whether the signature covers bodies sent without TLS; false: two thirds less processor"
        " time for a PUT, and who can change what is on the wire can change bodies, as they can"
        " change answers anyway; the signature still covers the body's CRC32C",
    )
    encryption: str = setting(
        "s3.server.side.encryption",
        "",
        choices=ENCRYPTIONS,
        why="what each PUT asks the store to encrypt with, also those of jobs; empty: as the bucket"
        " says; aws:kms: with keys of the bucket, so few requests go to the key service",
    )
    kms_key_id: str = setting(
        "s3.sse.kms.key.id",
        "",
        why="the key of aws:kms and aws:kms:dsse, by ARN or id; empty: the account's own for S3",
    )
    list_page: int = setting(
        "s3.list.page",
        1000,
        minimum=1,
        maximum=1000,
        why="keys per LIST request; fewer: more requests; S3 gives at most 1000",
    )

    def retry_limits(self) -> RetryLimits:
        return RetryLimits(
            attempts_max=self.attempts_max,
            first_delay_ms=self.retry_first_delay_ms,
            delay_max_ms=self.retry_delay_max_ms,
            deadline_ms=self.deadline_ms,
        )
