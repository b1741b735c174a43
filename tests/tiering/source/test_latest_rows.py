"""Of each key the newest record, by the tasks of a read: against a dict, over both tiers."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import SegmentExtent
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.profiles import examples
from tests.support.tiers.compacted import compact_everything
from tests.support.tiers.rolled import merge_everything, roll_everything
from tiering.source.planning import Share
from tiering.source.rows.latest_rows import fewer_shares, latest_tables, newest_offsets
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import open_blocking_store

TOPIC = "accounts"
WANTED = Wanted(columns=["offset", "key", "value"])

keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"a\0", b"key " * 9]))
records = st.lists(st.tuples(keys, st.booleans()), max_size=40)


class Kept(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def newest(written: Sequence[Kept], below: int) -> list[Kept]:
    """The model: a dict."""
    last = {one.key: one for one in written[:below] if one.key is not None}
    return [
        one
        for one in written[:below]
        if one.key is None or (last[one.key] == one and one.value is not None)
    ]


def table(rows: Sequence[tuple[int, bytes | None, bool]]) -> pa.Table:
    return pa.table(
        {
            "offset": pa.array([row[0] for row in rows], pa.int64()),
            "tombstone": pa.array([row[2] for row in rows], pa.bool_()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
        }
    )


@examples()
@given(records, st.data())
def test_what_is_kept_is_what_a_dict_keeps(
    some: Sequence[tuple[bytes | None, bool]], data: st.DataObject
) -> None:
    rows = [(3 * at, key, is_tombstone) for at, (key, is_tombstone) in enumerate(some)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    pieces = [rows[first:last] for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    border = data.draw(st.integers(0, len(pieces)))
    kept = newest_offsets(
        map(table, pieces[:border]),
        map(table, pieces[border:]),
        keys_bytes=data.draw(st.integers(1, 200)),
    )
    written = [Kept(offset, key, None if dead else b"") for offset, key, dead in rows]
    own = {row[0] for piece in pieces[:border] for row in piece}
    assert [*kept] == [one.offset for one in newest(written, len(written)) if one.offset in own]


def test_a_plan_has_few_shares_and_none_twice() -> None:
    many = [Share(0, 10 * at, 10 * at + 10) for at in range(40)]
    few = fewer_shares(many, 16)
    assert few == [Share(0, 30 * at, min(30 * at + 30, 400)) for at in range(14)]
    # What lies between is too old to be asked for.
    apart = [Share(0, 0, 10), Share(0, 50, 60), Share(0, 60, 70)]
    assert fewer_shares(apart, 1) == [Share(0, 0, 10), Share(0, 50, 70)]
    assert fewer_shares([], 16) == []


class Accounts:
    """A topic with one partition, and all that was ever written to it."""

    def __init__(self, broker: LiveBroker, rng: random.Random, policy: str) -> None:
        self.broker = broker
        self._rng = rng
        self._has_keys = policy == "compact"
        self.written: list[Kept] = []
        config = {
            "cleanup.policy": policy,
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
            "segment.bytes": "4000",
        }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, config=config)])[TOPIC].result(60)
        self.log = TopicLog(broker.bootstrap, TOPIC, sleep=time.sleep)
        self.partition = TopicIdPartition(self.log.topic().topic_id, 0)

    def write(self, count: int) -> None:
        rng = self._rng
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "batch.size": 400})
        for at in range(len(self.written), len(self.written) + count):
            key = b"account %d" % rng.randrange(40)
            if not self._has_keys and rng.random() < 0.1:
                key = None
            value = None if rng.random() < 0.2 else b"balance of %d" % at
            producer.produce(TOPIC, value, key, partition=0)
            self.written.append(Kept(at, key, value))
        assert producer.flush(60) == 0

    @property
    def url(self) -> str:
        return self.log.topic().object_store_url

    def latest(self, cuts: Sequence[int]) -> list[Kept]:
        """What tasks give whose shares end at `cuts`."""
        found = []
        with open_blocking_store(self.url) as store:
            for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
                share = Share(0, start, end)
                for rows in latest_tables(self.log, self.partition, share, cuts[-1], store, WANTED):
                    found += kept(rows)
        return found

    def segments(self) -> list[str]:
        extents = self.log.extents(self.partition, 0, len(self.written))
        return [extent.object_key for extent in extents if isinstance(extent, SegmentExtent)]


def kept(rows: pa.Table) -> list[Kept]:
    return [Kept(row["offset"], row["key"], row["value"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_every_mix_of_generations_and_of_what_is_not_rolled_has_the_same_newest_records(
    tmp_path: Path, policy: str
) -> None:
    rng = random.Random(7)
    with LiveBroker(tmp_path / "data") as broker:
        accounts = Accounts(broker, rng, policy)
        for step in range(5):
            accounts.write(rng.randrange(20, 120))
            end = len(accounts.written)
            cuts = sorted({*(rng.randrange(1, end) for _ in range(step)), end})
            assert accounts.latest(cuts) == newest(accounts.written, end)
            roll_everything(broker)
            if step == 1:
                merge_everything(broker)
            if policy == "compact" and step > 1:
                assert compact_everything(broker).removed_count
            assert accounts.latest(cuts) == newest(accounts.written, end)
            # As of an earlier end, unless a later record has removed what was the newest then.
            if policy == "delete":
                below = rng.randrange(1, end)
                assert accounts.latest([below]) == newest(accounts.written, below)


@pytest.fixture(params=["0", "60000"], ids=["gone at once", "kept"])
def grace_ms(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def test_a_slow_read_goes_on_over_merges_without_a_missing_object_or_a_row_twice(
    tmp_path: Path, grace_ms: str
) -> None:
    settings = {
        "diskless.file.delete.grace.ms": grace_ms,
        "diskless.file.cleaner.interval.ms": "100",
    }
    with LiveBroker(tmp_path / "data", settings) as broker:
        accounts = Accounts(broker, random.Random(1), "delete")
        for _ in range(8):
            accounts.write(40)
            roll_everything(broker)
        before, end = accounts.segments(), len(accounts.written)
        assert len(before) > 1
        old = [tmp_path / "data" / "objects" / key for key in before]
        assert all(path.exists() for path in old)
        with open_blocking_store(accounts.url) as store:
            share = Share(0, 0, end)
            slow = share_tables(accounts.log, accounts.partition, share, store, WANTED)
            latest = latest_tables(accounts.log, accounts.partition, share, end, store, WANTED)
            rows = kept(next(slow)) + kept(next(slow))
            some = kept(next(latest))
            merge_everything(broker)
            assert set(before) - {*accounts.segments()}
            if grace_ms == "0":
                until(lambda: not any(path.exists() for path in old), "old objects are deleted")
            rows += [one for table in slow for one in kept(table)]
            some += [one for table in latest for one in kept(table)]
    assert rows == accounts.written
    assert some == newest(accounts.written, end)
