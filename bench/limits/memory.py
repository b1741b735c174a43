"""Group `memory`: the broker's resident set in a store outage, and its growth under steady load.

The outage is made where a broken mount would make it: `objects/wal` of the file store leads nowhere
(a symbolic link to itself, so that every access is an error), and a minute later it is back.
Producers keep trying for the whole minute; all of their records must be acknowledged afterwards.
"""

import statistics
import threading
import time
from pathlib import Path

from bench.tools import load
from bench.tools.broker import BenchBroker, ResidentMemory, fresh_directory
from bench.tools.report import Report

OUTAGE_S = 60.0
STEADY_S = 120.0
STEADY_BYTES_PER_S = 60 << 20
RECORD_BYTES = 1024
PARTITIONS = 12


def run_memory(report: Report) -> None:
    _run_outage(report)
    _run_steady(report)


def _run_outage(report: Report) -> None:
    report.step(f"memory: a store outage of {OUTAGE_S:.0f} s under full load")
    with fresh_directory() as directory:
        data = directory / "data"
        with BenchBroker(data, {"num.partitions": PARTITIONS}) as broker:
            load.produce(
                broker.bootstrap,
                record_bytes=RECORD_BYTES,
                total_bytes=64 << 20,
                partitions=PARTITIONS,
            )
            with ResidentMemory(broker.pid) as memory:
                outcome: list[load.Measured | BaseException] = []

                def produce() -> None:
                    try:
                        outcome.append(
                            load.produce(
                                broker.bootstrap,
                                record_bytes=RECORD_BYTES,
                                total_bytes=1 << 30,
                                partitions=PARTITIONS,
                                settings={
                                    "enable.idempotence": True,
                                    "request.timeout.ms": 10_000,
                                    "message.timeout.ms": 300_000,
                                },
                            )
                        )
                    except BaseException as error:
                        outcome.append(error)

                producer = threading.Thread(target=produce)
                producer.start()
                time.sleep(0.5)
                _take_away(data / "objects" / "wal")
                time.sleep(OUTAGE_S)
                _give_back(data / "objects" / "wal")
                healed = time.perf_counter()
                producer.join()
            if isinstance(outcome[0], BaseException):
                raise outcome[0]
            report.add("outage_recovery_s", time.perf_counter() - healed, "s")
            report.add("rss_outage_mib", memory.peak_mib, "MiB", bound="≤ 300")


def _run_steady(report: Report) -> None:
    report.step(f"memory: {STEADY_S:.0f} s of steady load")
    with (
        fresh_directory() as directory,
        BenchBroker(directory / "data", {"num.partitions": PARTITIONS}) as broker,
    ):
        with ResidentMemory(broker.pid) as memory:
            client = load.producer(broker.bootstrap)
            client.list_topics(load.TOPIC, timeout=30)
            messages = [{"value": load.payload(RECORD_BYTES)}] * 1000
            started = time.perf_counter()
            sent = 0
            while (now := time.perf_counter() - started) < STEADY_S:
                while sent * RECORD_BYTES < now * STEADY_BYTES_PER_S:
                    sent += client.produce_batch(
                        load.TOPIC, messages, partition=(sent // 1000) % PARTITIONS
                    )
                    client.poll(0)
                time.sleep(0.005)
            client.flush(60)
        # The first half warms pools and caches; growth is what the second half adds to its start.
        late = [mib for at, mib in memory.samples if at > STEADY_S / 2]
        quarter = max(1, len(late) // 4)
        growth = statistics.median(late[-quarter:]) - statistics.median(late[:quarter])
        report.add("rss_steady_mib", memory.peak_mib, "MiB")
        report.add(
            "rss_growth_mib", growth, "MiB", note="last half minute minus the first, after 1 min"
        )


def _take_away(directory: Path) -> None:
    directory.rename(directory.with_suffix(".away"))
    directory.symlink_to(directory)


def _give_back(directory: Path) -> None:
    directory.unlink()
    directory.with_suffix(".away").rename(directory)
