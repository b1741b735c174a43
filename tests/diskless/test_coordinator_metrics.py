"""What `/metrics` says of metadata partitions, on a leader and on a broker that follows it."""

from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.live_broker import LiveBroker, until

SETTINGS = {
    "http.listen": "127.0.0.1:0",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.metadata.follow.interval.ms": "20",
}

LAG = "diskless_metadata_lag_records"


def scraped(broker: LiveBroker) -> dict[tuple[str, ...], float]:
    """Samples of metadata partitions by name, partition and other label."""
    metrics = broker.broker.base.http
    assert metrics is not None
    with urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    return {
        (sample.name, labels.pop("partition"), *labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "partition" in (labels := dict(sample.labels))
    }


def test_a_broker_on_a_local_log_leads_everything_for_ever(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        # What a broker writes of itself after its start is on its way for a moment.
        until(
            lambda: all(scraped(broker)[LAG, partition] == 0 for partition in ("0", "1")),
            "a log that is applied to its end",
        )
        samples = scraped(broker)
    for partition in ("0", "1"):
        assert samples["diskless_metadata_leading", partition] == 1
        assert samples["diskless_metadata_leader", partition] == 0
        assert samples["diskless_metadata_leader_epoch", partition] == 1
        assert samples["diskless_metadata_log_end_offset", partition] >= 1
        assert samples["diskless_metadata_snapshots_total", partition, "failed"] == 0
        assert samples["diskless_wal_files_retired_total", partition, "deleted"] == 0
        assert ("diskless_metadata_lease_seconds", partition) not in samples
    assert ("diskless_orphan_scan_objects_total", "0", "seen") in samples
    assert ("diskless_orphan_scan_objects_total", "1", "seen") not in samples


def test_of_two_brokers_one_leads_and_both_know_it(tmp_path: Path) -> None:
    shared = {
        **SETTINGS,
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path}/bucket",
    }
    with (
        LiveBroker(tmp_path / "a", {**shared, "node.id": "1"}) as leader,
        LiveBroker(tmp_path / "b", {**shared, "node.id": "2"}) as follower,
    ):
        samples, others = scraped(leader), scraped(follower)
        assert samples["diskless_metadata_leading", "0"] == 1
        assert 0 < samples["diskless_metadata_lease_seconds", "0"] <= 10
        assert others["diskless_metadata_leading", "0"] == 0
        assert others["diskless_metadata_leader", "0"] == 1
        assert ("diskless_metadata_lease_seconds", "0") not in others
        assert ("diskless_metadata_fed", "0") not in samples
        until(lambda: scraped(follower)["diskless_metadata_fed", "0"] == 1, "it is fed")
        assert ("diskless_wal_files_retired_total", "0", "deleted") not in others
        until(
            lambda: (
                scraped(follower)["diskless_metadata_log_end_offset", "0"]
                >= samples["diskless_metadata_log_end_offset", "0"]
            ),
            "the follower has read what the leader wrote",
        )
