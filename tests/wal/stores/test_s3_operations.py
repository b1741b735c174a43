"""The S3 operations without S3: every sequence of outcomes, on a clock that stands still."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.object_store import BytesBody
from wal.stores.s3_operations import (
    Answer,
    BodyWork,
    Failed,
    Operation,
    Request,
    S3Operations,
    Wait,
)
from wal.stores.s3_protocol import Failure, S3Location, body_checksum
from wal.stores.s3_settings import S3Settings

KEY = ObjectKey("wal/3f/01HZZZZZZZZZZZZZZZZZZZZZZZ")
BODY = BytesBody(b"content")
SETTINGS = S3Settings(attempts_max=5, attempt_timeout_ms=2000, deadline_ms=10_000)

STORED = Answer({"ChecksumCRC32C": body_checksum(KEY, BODY)}, b"")
GONE = Failed(Failure.NOT_FOUND, TimeoutError("gone"))
PUT_OUTCOMES = [
    STORED,
    *(
        Failed(failure, TimeoutError(failure.value), sent_again)
        for failure in (
            Failure.NOT_APPLIED,
            Failure.MAYBE_APPLIED,
            Failure.REFUSED,
            Failure.EXISTS,
        )
        for sent_again in (False, True)
    ),
]


class Bucket:
    """Answers PUTs with `outcomes` in turn, each after `seconds`; knows no object otherwise."""

    def __init__(self, outcomes: Sequence[Answer | Failed], seconds: float) -> None:
        self.clock = ManualClock()
        self.operations = S3Operations(
            S3Location.of("bucket", "prefix", None, None, S3Settings()),
            clock=self.clock,
            rng=random.Random(1),
            settings=SETTINGS,
        )
        self.requests: list[Request] = []
        self.put_outcomes: list[Answer | Failed] = []
        self._outcomes: Iterator[Answer | Failed] = iter(outcomes)
        self._seconds = seconds

    def run(self, operation: Operation[Any]) -> object:
        outcome: object = None
        while True:
            try:
                step = operation.send(outcome)
            except StopIteration as end:
                return end.value
            match step:
                case Request():
                    outcome = self._answer(step)
                case BodyWork():
                    outcome = step.work()
                case Wait():
                    self.clock.advance(step.seconds)
                    outcome = None

    def _answer(self, request: Request) -> Answer | Failed:
        assert request.arguments["Key"] == f"prefix/{KEY}"
        assert request.timeout_s <= SETTINGS.attempt_timeout_ms / 1000
        assert self.clock.monotonic() + request.timeout_s <= SETTINGS.deadline_ms / 1000
        self.requests.append(request)
        self.clock.advance(min(self._seconds, request.timeout_s))
        if request.method != "put_object":
            return GONE
        assert request.arguments["IfNoneMatch"] == "*"
        assert request.body is BODY
        self.put_outcomes.append(next(self._outcomes))
        return self.put_outcomes[-1]


@given(
    outcomes=st.lists(
        st.sampled_from(PUT_OUTCOMES),
        min_size=SETTINGS.attempts_max,
        max_size=SETTINGS.attempts_max,
    ),
    seconds=st.sampled_from([0.0, 1.0, 2.0]),
)
def test_a_put_says_that_nothing_happened_only_when_no_attempt_can_have_stored_it(
    outcomes: list[Answer | Failed], seconds: float
) -> None:
    bucket = Bucket(outcomes, seconds)
    error: type[BaseException] | None = None
    try:
        bucket.run(bucket.operations.put(KEY, BODY))
    except (ObjectStoreUnavailable, UploadOutcomeUnknown) as caught:
        error = type(caught)
    *earlier, last = bucket.put_outcomes
    failures = [outcome for outcome in bucket.put_outcomes if isinstance(outcome, Failed)]
    maybe_stored = any(f.sent_again or f.failure is Failure.MAYBE_APPLIED for f in failures)
    if isinstance(last, Answer):
        assert error is None
    else:
        refused = last.failure is Failure.REFUSED
        known = ObjectStoreRefused if refused else ObjectStoreUnavailable
        assert error is (UploadOutcomeUnknown if maybe_stored else known)
    # Nothing is sent after an answer or a refusal, and no delay leads past the deadline.
    for outcome in earlier:
        assert isinstance(outcome, Failed)
        assert outcome.failure is not Failure.REFUSED
    assert bucket.clock.monotonic() <= SETTINGS.deadline_ms / 1000
    # It does not give up early either; an object that was in the way and is gone is no reason to.
    if isinstance(last, Failed) and last.failure is not Failure.REFUSED and seconds == 0:
        assert len(bucket.put_outcomes) == SETTINGS.attempts_max


def test_every_attempt_of_a_put_carries_the_same_put_id_and_checksum() -> None:
    busy = Failed(Failure.NOT_APPLIED, TimeoutError("busy"))
    bucket = Bucket([busy] * SETTINGS.attempts_max, 0)
    with pytest.raises(ObjectStoreUnavailable, match=r"busy.*attempt 5"):
        bucket.run(bucket.operations.put(KEY, BODY))
    first, *others = [request.arguments for request in bucket.requests]
    assert others == [first] * (SETTINGS.attempts_max - 1)
    assert first["ChecksumCRC32C"] == body_checksum(KEY, BODY)
    assert first["Metadata"].keys() == {"diskless-put-id"}


def test_wrong_bytes_are_asked_for_twice_however_many_attempts_are_left() -> None:
    operation = Bucket([], 0).operations.get_range(KEY, 0, 4)
    short = Answer({"ContentRange": "bytes 0-3/9"}, b"abc")
    assert isinstance(next(operation), Request)
    assert isinstance(operation.send(short), Wait)
    assert isinstance(operation.send(None), Request)
    with pytest.raises(CorruptObject, match="got 3"):
        operation.send(short)


def test_an_empty_page_that_is_not_the_last_is_followed_by_its_token() -> None:
    operation = Bucket([], 0).operations.list_page("wal/", "wal/3f")
    request = next(operation)
    assert isinstance(request, Request)
    assert request.arguments["StartAfter"] == "prefix/wal/3f"
    for token in ("one", "two"):
        request = operation.send(Answer({"IsTruncated": True, "NextContinuationToken": token}, b""))
        assert isinstance(request, Request)
        assert request.arguments["ContinuationToken"] == token
        assert "StartAfter" not in request.arguments
    entry = {"Key": f"prefix/{KEY}", "Size": 7, "LastModified": datetime.now(UTC)}
    with pytest.raises(StopIteration) as end:
        operation.send(Answer({"IsTruncated": True, "Contents": [entry]}, b""))
    page = end.value.value
    assert [stat.key for stat in page.stats] == [KEY]
    assert not page.is_last


def test_a_listing_that_stops_without_an_end_is_an_error_and_not_a_short_listing() -> None:
    operation = Bucket([], 0).operations.list_page("wal/", "")
    next(operation)
    with pytest.raises(ObjectStoreUnavailable, match="is empty, not the last"):
        operation.send(Answer({"IsTruncated": True}, b""))
