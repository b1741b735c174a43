"""The S3 stores against moto behind a proxy that loses, delays and damages what passes.

What holds for the broker's store and for a task's is tested with both: the fixtures `store` and
`open_s3`. Only the broker's lists, deletes, counts and is cancelled.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.awsrequest import AWSRequest, AWSRequestPreparer
from botocore.endpoint_provider import RuleSet
from botocore.loaders import JSONFileLoader
from botocore.useragent import UserAgentString

from tests.support.s3_servers import S3Server, on_every_server
from tests.support.stores.faulty_s3 import Fault, FaultyS3
from tests.support.stores.opened_s3 import CONTENT, FAST, KEY, LOADED_S, s3_store, task_s3_store
from wal.clock import ManualClock, SystemClock
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import (
    CorruptChunk,
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.blocking_s3_store import BlockingS3Store
from wal.stores.object_store import Buffer, BytesBody, ObjectStore
from wal.stores.s3_protocol import (
    PIECE_BYTES,
)
from wal.stores.s3_settings import S3Settings
from wal.stores.s3_store import S3Store

OpenS3 = Callable[[str, str], AbstractAsyncContextManager[ObjectStore]]


@pytest.fixture(params=[s3_store, task_s3_store], ids=["broker", "task"])
def open_s3(request: pytest.FixtureRequest) -> OpenS3:
    """Opens one or the other store by bucket and endpoint, with the settings FAST."""
    opener: OpenS3 = request.param
    return opener


@pytest.fixture
async def store(
    open_s3: OpenS3, faulty_s3: FaultyS3, moto_bucket: str
) -> AsyncIterator[ObjectStore]:
    async with open_s3(moto_bucket, faulty_s3.url) as opened:
        yield opened


@pytest.fixture
async def broker(faulty_s3: FaultyS3, moto_bucket: str) -> AsyncIterator[S3Store]:
    async with s3_store(moto_bucket, faulty_s3.url) as opened:
        yield opened


async def test_the_endpoint_is_looked_up_once_for_all_keys(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    evaluate = RuleSet.evaluate

    def counted(rules: RuleSet, parameters: dict[str, object]) -> object:
        looked_up.append(parameters)
        return evaluate(rules, parameters)

    monkeypatch.setattr(RuleSet, "evaluate", counted)
    for number in range(4):
        await store.put(ObjectKey(f"wal/{number}"), BytesBody(b"content"))
        assert await store.get(ObjectKey(f"wal/{number}")) == b"content"
    assert len(looked_up) == 1


async def test_the_user_agent_is_put_together_once_and_names_botocore(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, sent = [], []
    build, prepare = UserAgentString.to_string, AWSRequestPreparer.prepare

    def counted(agent: UserAgentString) -> object:
        built.append(agent)
        return build(agent)

    def seen(preparer: AWSRequestPreparer, request: AWSRequest) -> object:
        sent.append(request.headers["User-Agent"])
        return prepare(preparer, request)

    monkeypatch.setattr(UserAgentString, "to_string", counted)
    monkeypatch.setattr(AWSRequestPreparer, "prepare", seen)
    await store.put(ObjectKey("wal/1"), BytesBody(b"content"))
    assert await store.get(ObjectKey("wal/1")) == b"content"
    assert not built
    assert sent
    assert all("otocore/" in str(agent) for agent in sent)


async def test_what_describes_s3_is_parsed_once_in_a_process(
    open_s3: OpenS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    load_file = JSONFileLoader.load_file

    def counted(loader: JSONFileLoader, file_path: str) -> object:
        parsed.append(file_path)
        return load_file(loader, file_path)

    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    monkeypatch.setattr(JSONFileLoader, "load_file", counted)
    counts = []
    for _ in range(3):
        async with open_s3("bucket", "http://127.0.0.1:9"):
            counts.append(len(parsed))
    assert counts[0] > 0
    assert counts[1:] == counts[:1] * 2


class DiskBody:
    """A body that is made anew for each attempt and counts who reads it."""

    def __init__(self, content: bytes, fail_in_pass: int = 0) -> None:
        self.length_bytes = len(content)
        self.passes = 0
        self.reading = 0
        self._content = content
        self._fail_in_pass = fail_in_pass

    def fragments(self) -> Iterable[Buffer]:
        return self._read()

    def _read(self) -> Iterator[Buffer]:
        self.passes += 1
        fail = self.passes == self._fail_in_pass
        for start in range(0, len(self._content), 10_000):
            if fail and start > 100_000:
                raise CorruptChunk("chunk-000001.data: bad batch")
            yield memoryview(self._content)[start : start + 10_000]


async def test_a_put_whose_answer_was_lost_is_recognised_by_its_put_id(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("lose_response", method="PUT"))
    await store.put(KEY, BytesBody(CONTENT))
    assert [method for method, _ in faulty_s3.requests] == ["PUT", "PUT", "HEAD"]
    assert await store.get(KEY) == CONTENT


async def test_every_attempt_is_counted(broker: S3Store, faulty_s3: FaultyS3) -> None:
    faulty_s3.add(Fault("lose_response", method="PUT"))
    faulty_s3.add(Fault("status", method="GET"))
    await broker.put(KEY, BytesBody(CONTENT))
    assert await broker.get(KEY) == CONTENT
    counted = broker.statistics()
    assert (counted.puts, counted.heads, counted.gets) == (2, 1, 2)
    assert (counted.retries, counted.errors) == (2, 0)


async def test_a_lost_answer_does_not_make_somebody_elses_object_ours(
    store: ObjectStore, faulty_s3: FaultyS3, moto_bucket: str, moto_endpoint: str
) -> None:
    async with s3_store(moto_bucket, moto_endpoint) as other:
        await other.put(KEY, BytesBody(CONTENT[::-1]))
    faulty_s3.add(Fault("lose_response", method="PUT"))
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(CONTENT))
    assert await store.get(KEY) == CONTENT[::-1]


async def test_a_body_is_read_from_its_start_for_every_attempt(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("drop", method="PUT", count=2))
    body = DiskBody(CONTENT)
    await store.put(KEY, body)
    assert [method for method, _ in faulty_s3.requests] == ["PUT"] * 3
    assert await store.get(KEY) == CONTENT


async def test_a_body_that_is_damaged_when_it_is_sent_is_not_stored(store: ObjectStore) -> None:
    # The first pass computes the checksum and the second the signature; the third is sent.
    body = DiskBody(CONTENT, fail_in_pass=3)
    with pytest.raises(CorruptChunk):
        await store.put(KEY, body)
    assert body.passes == 3
    with pytest.raises(ObjectNotFound):
        await store.head(KEY)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (500, "InternalError"),
        (409, "ConditionalRequestConflict"),
        (400, "RequestTimeout"),
        (502, "BadGateway"),
    ],
)
async def test_a_passing_error_is_waited_out(
    store: ObjectStore, faulty_s3: FaultyS3, status: int, code: str
) -> None:
    faulty_s3.add(Fault("status", status=status, code=code, count=2))
    await store.put(KEY, BytesBody(CONTENT))
    faulty_s3.add(Fault("status", status=status, code=code, count=3))
    assert await store.get(KEY) == CONTENT
    assert [method for method, _ in faulty_s3.requests] == ["PUT"] * 3 + ["GET"] * 4


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (503, "ServiceUnavailable"), (502, "BadGateway"), (500, "InternalError")],
)
async def test_a_5xx_after_the_put_was_applied_is_not_taken_for_a_put_that_did_not_happen(
    store: ObjectStore, faulty_s3: FaultyS3, status: int, code: str
) -> None:
    """A proxy that lost patience with the server that stored it, and answers for another."""
    fault = faulty_s3.add(Fault("status_after", "PUT", count=None, status=status, code=code))
    await store.put(KEY, BytesBody(CONTENT))
    assert fault.hits == FAST.attempts_max
    assert faulty_s3.requests[-1] == ("HEAD", f"prefix/{KEY}")
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(CONTENT[:-1] + b"?"))
    faulty_s3.add(Fault("status", "HEAD", count=None, status=status, code=code))
    with pytest.raises(UploadOutcomeUnknown):
        await store.put(KEY, BytesBody(CONTENT))


async def test_a_put_that_every_attempt_refused_with_503_may_still_happen(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("status", "PUT", count=None))
    with pytest.raises(UploadOutcomeUnknown):
        await store.put(KEY, BytesBody(CONTENT))
    assert [method for method, _ in faulty_s3.requests] == ["PUT"] * FAST.attempts_max + ["HEAD"]


async def test_a_store_that_refuses_every_attempt_is_unavailable(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("status", count=None, status=429, code="TooManyRequests"))
    with pytest.raises(ObjectStoreUnavailable):
        await store.put(KEY, BytesBody(CONTENT))
    assert len(faulty_s3.requests) == FAST.attempts_max
    for operation in (store.get(KEY), store.head(KEY), store.get_range(KEY, 0, 1)):
        with pytest.raises(ObjectStoreUnavailable):
            await operation


async def test_a_listing_and_a_delete_meet_the_same_outage(
    broker: S3Store, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("status", count=None))
    with pytest.raises(ObjectStoreUnavailable):
        await broker.delete([KEY])
    with pytest.raises(ObjectStoreUnavailable):
        _ = [stat async for stat in broker.list("")]
    assert broker.statistics().errors == 2
    assert broker.statistics().retries == 2 * (FAST.attempts_max - 1)


async def test_what_cannot_work_later_is_not_repeated(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("status", status=403, code="AccessDenied", count=None))
    with pytest.raises(ObjectStoreUnavailable, match="AccessDenied"):
        await store.put(KEY, BytesBody(CONTENT))
    assert len(faulty_s3.requests) == 1


async def test_a_missing_bucket_is_no_missing_object(moto_endpoint: str, open_s3: OpenS3) -> None:
    async with open_s3("no-such-bucket", moto_endpoint) as store:
        with pytest.raises(ObjectStoreUnavailable, match="NoSuchBucket"):
            await store.get(KEY)
        with pytest.raises(ObjectStoreUnavailable, match="NoSuchBucket"):
            await store.put(KEY, BytesBody(b"x"))


async def test_nobody_listening_is_unavailable_and_not_an_unknown_outcome(
    moto_bucket: str, unused_tcp_port: int, open_s3: OpenS3
) -> None:
    async with open_s3(moto_bucket, f"http://127.0.0.1:{unused_tcp_port}") as store:
        with pytest.raises(ObjectStoreUnavailable, match=f"attempt {FAST.attempts_max}"):
            await store.put(KEY, BytesBody(CONTENT))


@pytest.mark.parametrize("action", ["hang", "drop"])
async def test_an_outage_during_a_put_leaves_its_outcome_unknown_within_the_deadline(
    store: ObjectStore, faulty_s3: FaultyS3, action: str
) -> None:
    faulty_s3.add(Fault("hang" if action == "hang" else "drop", count=None))
    clock = SystemClock()
    started = clock.monotonic()
    with pytest.raises(UploadOutcomeUnknown):
        await store.put(KEY, BytesBody(CONTENT))
    assert clock.monotonic() - started < FAST.deadline_ms / 1000 + LOADED_S
    faulty_s3.clear()
    await store.put(KEY, BytesBody(CONTENT))
    assert await store.get(KEY) == CONTENT


async def test_a_put_repeated_after_an_unknown_outcome_finds_its_own_bytes(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("hang_after", method="PUT", count=1))
    faulty_s3.add(Fault("status", count=None))
    with pytest.raises(UploadOutcomeUnknown):
        await store.put(KEY, BytesBody(CONTENT))
    faulty_s3.clear()
    await store.put(KEY, BytesBody(CONTENT))
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(CONTENT[:-1] + b"?"))


async def test_a_server_that_tells_no_checksum_is_asked_what_it_has(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("hide_checksum", count=None))
    await store.put(KEY, BytesBody(CONTENT))
    assert [method for method, _ in faulty_s3.requests] == ["PUT", "HEAD"]
    assert await store.get(KEY) == CONTENT


async def test_a_put_that_could_not_be_verified_has_an_unknown_outcome(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("hide_checksum", method="PUT"))
    faulty_s3.add(Fault("status", method="HEAD", count=None))
    with pytest.raises(UploadOutcomeUnknown):
        await store.put(KEY, BytesBody(CONTENT))


async def test_an_object_stored_shorter_than_it_was_sent_is_noticed(
    store: ObjectStore, faulty_s3: FaultyS3
) -> None:
    faulty_s3.add(Fault("hide_checksum", count=None))
    faulty_s3.alter_body = lambda body: body[:-1]
    with pytest.raises(CorruptObject):
        await store.put(KEY, BytesBody(CONTENT))


@on_every_server
async def test_a_body_damaged_on_its_way_is_not_stored(
    s3_server: S3Server, open_s3: OpenS3
) -> None:
    # moto believes every checksum it is told; LocalStack refuses, though with a 500.
    async with (
        FaultyS3(s3_server.endpoint) as proxy,
        open_s3(s3_server.bucket, proxy.url) as store,
    ):
        proxy.alter_body = lambda body: body[:-1] + b"?"
        with pytest.raises((ObjectStoreUnavailable, UploadOutcomeUnknown)):
            await store.put(KEY, BytesBody(CONTENT))
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)
        proxy.alter_body = None
        await store.put(KEY, BytesBody(CONTENT))
        assert await store.get(KEY) == CONTENT


class KnownBody(DiskBody):
    """One that knows its checksum."""

    def crc32c(self) -> int:
        return crc32c(self._content)


async def test_a_body_that_knows_its_checksum_is_read_once(
    moto_endpoint: str, moto_bucket: str
) -> None:
    unsigned = replace(FAST, payload_signed=False)
    body = KnownBody(CONTENT)
    async with s3_store(moto_bucket, moto_endpoint, unsigned) as store:
        await store.put(KEY, body)
        assert await store.get(KEY) == CONTENT
    assert body.passes == 1


async def test_cancelling_a_put_leaves_the_body_alone(broker: S3Store, faulty_s3: FaultyS3) -> None:
    faulty_s3.add(Fault("hang", method="PUT"))
    body = DiskBody(CONTENT)
    putting = asyncio.create_task(broker.put(KEY, body))
    await faulty_s3.until_requests(1)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    passes = body.passes
    await broker.put(ObjectKey("wal/00/next"), BytesBody(b"next"))
    assert body.passes == passes


async def test_a_cut_off_answer_is_asked_for_again(store: ObjectStore, faulty_s3: FaultyS3) -> None:
    await store.put(KEY, BytesBody(CONTENT))
    faulty_s3.add(Fault("truncate", method="GET", count=1))
    assert await store.get_range(KEY, 0, 100_000) == CONTENT[:100_000]
    faulty_s3.add(Fault("truncate", method="GET", count=None))
    with pytest.raises(ObjectStoreUnavailable):
        await store.get_range(KEY, 0, 100_000)


@pytest.mark.parametrize("action", ["shorten", "corrupt"])
async def test_wrong_bytes_are_asked_for_once_more_and_then_an_error(
    store: ObjectStore, faulty_s3: FaultyS3, action: str
) -> None:
    await store.put(KEY, BytesBody(CONTENT))
    fault = Fault("shorten" if action == "shorten" else "corrupt", method="GET", count=1)
    faulty_s3.add(fault)
    assert await store.get(KEY) == CONTENT
    fault.count = None
    with pytest.raises(CorruptObject):
        await store.get(KEY)


@pytest.mark.parametrize("action", ["trickle", "hang"])
async def test_an_answer_that_trickles_or_never_comes_does_not_outlive_the_deadline(
    store: ObjectStore, faulty_s3: FaultyS3, action: str
) -> None:
    await store.put(KEY, BytesBody(CONTENT))
    fault = Fault("trickle" if action == "trickle" else "hang", method="GET", count=None)
    faulty_s3.add(fault)
    clock = SystemClock()
    started = clock.monotonic()
    with pytest.raises(ObjectStoreUnavailable):
        await store.get(KEY)
    assert clock.monotonic() - started < FAST.deadline_ms / 1000 + LOADED_S


async def test_a_listing_goes_on_after_a_failed_page(broker: S3Store, faulty_s3: FaultyS3) -> None:
    names = [f"wal/{number:02x}" for number in range(10)]
    for name in names:
        await broker.put(ObjectKey(name), BytesBody(b"x"))
    faulty_s3.add(Fault("status", method="GET", nth=2))
    assert [stat.key async for stat in broker.list("wal/")] == names
    assert broker.statistics().lists == 5


async def test_two_prefixes_of_one_bucket_do_not_see_each_other(
    moto_bucket: str, moto_endpoint: str
) -> None:
    async with s3_store(moto_bucket, moto_endpoint) as one:
        two = S3Store(
            moto_bucket,
            "prefix-two",
            endpoint_url=moto_endpoint,
            clock=SystemClock(),
            rng=random.Random(),
        )
        async with two:
            await one.put(KEY, BytesBody(b"one"))
            await two.put(KEY, BytesBody(b"two"))
            assert await one.get(KEY) == b"one"
            assert [stat.key async for stat in one.list("")] == [KEY]
            assert list(await two.delete([KEY])) == [KEY]
            assert await one.get(KEY) == b"one"


async def test_the_endpoint_of_the_aws_settings_is_used(
    moto_bucket: str, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    store = S3Store(moto_bucket, clock=SystemClock(), rng=random.Random(), settings=FAST)
    task = BlockingS3Store(moto_bucket, clock=SystemClock(), rng=random.Random(), settings=FAST)
    async with store:
        await store.put(KEY, BytesBody(b"there"))
        with task:
            assert task.get(KEY) == b"there"
    assert store.url == task.url == f"s3://{moto_bucket}/"


async def test_a_task_waits_between_attempts_as_it_is_told(
    faulty_s3: FaultyS3, moto_bucket: str
) -> None:
    faulty_s3.add(Fault("status", count=3))
    waits: list[float] = []
    task = BlockingS3Store(
        moto_bucket,
        endpoint_url=faulty_s3.url,
        clock=SystemClock(),
        rng=random.Random(1),
        sleep=waits.append,
    )
    with task:
        await asyncio.to_thread(task.put, KEY, BytesBody(CONTENT))
        assert await asyncio.to_thread(task.get, KEY) == CONTENT
    for wait, least in zip(waits, (0.05, 0.1, 0.2), strict=True):
        assert least <= wait <= 2 * least


class SlowBody:
    """Takes ten seconds of `clock` for each of its pieces, from the third pass on."""

    def __init__(self, clock: ManualClock) -> None:
        self.length_bytes = 4 * PIECE_BYTES
        self.pieces_sent = 0
        self._passes = 0
        self._clock = clock

    def fragments(self) -> Iterable[Buffer]:
        return self._read()

    def _read(self) -> Iterator[Buffer]:
        self._passes += 1
        sending = self._passes > 2  # the first computes the checksum, the second the signature
        for _ in range(4):
            if sending:
                self._clock.advance(10)
                self.pieces_sent += 1
            yield bytes(PIECE_BYTES)


async def test_a_body_that_takes_too_long_is_not_sent_on(
    faulty_s3: FaultyS3, moto_bucket: str
) -> None:
    clock = ManualClock()
    settings = S3Settings(attempt_timeout_ms=15_000, deadline_ms=15_000)
    task = BlockingS3Store(
        moto_bucket, endpoint_url=faulty_s3.url, clock=clock, rng=random.Random(), settings=settings
    )
    body = SlowBody(clock)
    with task:
        with pytest.raises(UploadOutcomeUnknown, match="took too long"):
            await asyncio.to_thread(task.put, KEY, body)
        assert body.pieces_sent == 2
        with pytest.raises(ObjectNotFound):
            await asyncio.to_thread(task.head, KEY)


def test_a_task_store_is_used_within_with_only(moto_bucket: str, moto_endpoint: str) -> None:
    task = BlockingS3Store(
        moto_bucket, endpoint_url=moto_endpoint, clock=SystemClock(), rng=random.Random()
    )
    with pytest.raises(ValueError, match="not open"):
        task.get(KEY)
    with task, pytest.raises(ObjectNotFound):
        task.get(KEY)
    with pytest.raises(ValueError, match="not open"):
        task.get(KEY)
