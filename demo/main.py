"""The story, step by step; `run` reads as its table of contents.

Exit status 0: every comparison held. 1: one did not, or something did not work at all; the message
names the log to look at. 130: interrupted. Whatever happens, no process stays behind; the data
directory does, so that `diskless chunk dump` and Spark can be tried on it.
"""

import argparse
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from confluent_kafka import KafkaException
from rich.console import Console

from demo import clients, events, spark_numbers
from demo.broker_process import BrokerError, BrokerProcess, run_diskless, run_logged
from demo.events import Event
from demo.ledger import Comparison, Ledger, ReadRecord
from demo.screen import BYTES_PER_MB, Screen

PARTITIONS: Final = 6
FLIGHTS_OUTSTANDING_MAX: Final = 50_000
WEATHER_OUTSTANDING_MAX: Final = 4_000
"""Small, so that the kill half way finds a known number of events unacknowledged."""

SPARK_TIMEOUT_S: Final = 300.0
VERIFY_TIMEOUT_S: Final = 120.0
SOURCES: Final = ("chunk", "object", "segment")
"""Where a fetched batch can come from, as the broker's metrics name it."""

DEFAULT_DIRECTORY: Final = Path("build") / "demo"


class Files(NamedTuple):
    """What lies where below the demo's directory."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def local_wal(self) -> Path:
        return self.data / "wal"

    @property
    def cache(self) -> Path:
        return self.data / "cache"

    @property
    def wal_objects(self) -> Path:
        return self.data / "objects" / "wal"

    @property
    def segments(self) -> Path:
        return self.data / "objects" / "segments"

    def segments_of(self, topic: str) -> list[Path]:
        """The directories of this topic's segments; there should be one."""
        return sorted(self.segments.glob(f"topic={topic}/id=*"))

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the demo; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Diskless on real data")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="emptied first")
    parser.add_argument("--flights", type=int, default=events.FLIGHTS_COUNT, help="how many")
    parser.add_argument("--weather", type=int, default=events.WEATHER_COUNT, help="how many")
    options = parser.parse_args(arguments)
    # Anywhere but on a terminal nobody knows the width, and 80 columns fold the tables.
    width = None if sys.stdout.isatty() else 120
    screen = Screen(Console(highlight=False, width=width))
    # A terminated demo leaves its `with` blocks like a failed one, and with them its processes.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        run(screen, options.directory.absolute(), options.flights, options.weather)
    except KeyboardInterrupt:
        screen.console.print("interrupted")
        return 130
    except (BrokerError, clients.StalledError, KafkaException, OSError, ValueError) as error:
        screen.check("the demo ran to its end", False, str(error).splitlines())
    if screen.checks_failed:
        screen.console.print(f"[bold red]{len(screen.checks_failed)} comparisons failed[/]:")
        for claim in screen.checks_failed:
            screen.console.print(f"  {claim}", markup=False)
        return 1
    screen.console.print(f"[bold green]all {screen.checks_held} comparisons held[/]")
    return 0


def run(screen: Screen, directory: Path, flights_count: int, weather_count: int) -> None:
    """The whole story, in a directory that is emptied first.

    Raises: BrokerError, StalledError, KafkaException, OSError, ValueError when it cannot go on.
    """
    started = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files = Files(directory)
    log = _client_log(files)

    with screen.step("read the CSV files, make JSON events", flights_count + weather_count) as (
        step,
        advance,
    ):
        flights_frame = events.read_flights(flights_count)
        weather_frame = events.read_weather(weather_count)
        wanted = events.reference_numbers(flights_frame, weather_frame)
        flights = Ledger(
            "flights", _collect(events.flight_events(flights_frame), advance), PARTITIONS
        )
        weather = Ledger(
            "weather", _collect(events.weather_events(weather_frame), advance), PARTITIONS
        )
        step.records = len(flights.events) + len(weather.events)
    ledgers = (flights, weather)

    with BrokerProcess(files.data, directory) as broker:
        broker.start()
        screen.console.print(f"broker ready on {broker.bootstrap}, data in {files.data}")
        for ledger in ledgers:
            clients.create_topic(broker.bootstrap, ledger.topic, PARTITIONS)

        _produce(screen, broker, flights, log)
        _read_and_compare(screen, broker, flights, log, "at the tail")
        _produce_through_a_crash(screen, broker, weather, log)
        _restart_without_local_files(screen, broker, files)
        _read_all_from(screen, broker, ledgers, log, source="object", place="WAL objects")

        wal_objects = _sizes(files.wal_objects)
        _roll(screen, broker, files)
        _restart_without_local_files(screen, broker, files)
        _read_all_from(screen, broker, ledgers, log, source="segment", place="Parquet")
        broker.stop()
        counters = broker.counters

    _compare_with_spark(screen, files, wanted)
    _verify(screen, files)

    screen.print_steps()
    segments = _sizes(files.segments)
    screen.print_pairs(
        "What it took",
        [
            ("WAL objects written", _count_and_size(wal_objects)),
            ("Parquet segments written", _count_and_size(segments)),
            *(
                (f"object store {name} by the broker", f"{counters[counter]:,.0f}")
                for name, counter in (
                    ("PUTs", 'diskless_object_store_requests_total{op="put"}'),
                    ("GETs", 'diskless_object_store_requests_total{op="get"}'),
                )
            ),
            (
                "object cache hits / misses",
                f"{counters[_cache('hit')]:,.0f} / {counters[_cache('miss')]:,.0f}",
            ),
            *(
                (f"fetched from {source}", f"{counters[_fetched(source)] / BYTES_PER_MB:,.1f} MB")
                for source in SOURCES
            ),
            ("the whole demo", f"{time.monotonic() - started:,.0f} s"),
        ],
    )


def _produce(screen: Screen, broker: BrokerProcess, ledger: Ledger, log: logging.Logger) -> None:
    with screen.step(f"produce {ledger.topic}", len(ledger.events)) as (step, advance):
        clients.produce(
            broker.bootstrap,
            ledger,
            advance=advance,
            log=log,
            outstanding_max=FLIGHTS_OUTSTANDING_MAX,
        )
        step.records, step.size_bytes = len(ledger.events), _size_bytes(ledger)
        step.remark = "idempotent, acks=all, zstd"
    _check_deliveries(screen, ledger)


def _produce_through_a_crash(
    screen: Screen, broker: BrokerProcess, ledger: Ledger, log: logging.Logger
) -> None:
    """Produce; half way, with events in flight, kill the broker and start it again."""
    crash: list[int] = []

    def kill_and_restart(unacknowledged: int) -> None:
        broker.refresh_counters()
        broker.kill()
        crash.append(unacknowledged)
        broker.start()

    with screen.step(f"produce {ledger.topic}, SIGKILL half way", len(ledger.events)) as (
        step,
        advance,
    ):
        clients.produce(
            broker.bootstrap,
            ledger,
            advance=advance,
            log=log,
            outstanding_max=min(WEATHER_OUTSTANDING_MAX, len(ledger.events) // 4),
            at_half_way=kill_and_restart,
        )
        step.records, step.size_bytes = len(ledger.events), _size_bytes(ledger)
        step.remark = f"killed with {sum(crash):,} unacknowledged"
    screen.check("the broker was killed with events in flight", bool(crash and crash[0] > 0))
    _check_deliveries(screen, ledger)


def _check_deliveries(screen: Screen, ledger: Ledger) -> None:
    problems = ledger.delivery_problems()
    screen.check(
        f"all {len(ledger.events):,} {ledger.topic} acknowledged once, offsets dense and in order",
        not problems,
        problems,
    )


def _read_and_compare(
    screen: Screen, broker: BrokerProcess, ledger: Ledger, log: logging.Logger, when: str
) -> None:
    with screen.step(f"read {ledger.topic} {when}", len(ledger.events)) as (step, advance):
        records: Iterator[ReadRecord] = clients.read_all(
            broker.bootstrap, ledger, advance=advance, log=log
        )
        comparison: Comparison = ledger.compare(records)
        step.records, step.size_bytes = comparison.records, comparison.size_bytes
    screen.check(
        f"{ledger.topic} {when}: key, value, headers, timestamp and offset of"
        f" {comparison.records:,} records are what was sent",
        comparison.held,
        [f"{comparison.differences:,} differences, the first:", *comparison.told],
    )


def _roll(screen: Screen, broker: BrokerProcess, files: Files) -> None:
    with screen.step("roll everything into Parquet with Spark") as (step, _):
        status = run_diskless(
            ["tier", "--bootstrap", broker.bootstrap, "--once", "--all", "--master", "local[2]"],
            files.log("tier"),
            SPARK_TIMEOUT_S,
        )
        step.remark = "Spark's start included"
    screen.check("the roll ended well", status == 0, [f"status {status}, see {files.log('tier')}"])


def _restart_without_local_files(screen: Screen, broker: BrokerProcess, files: Files) -> None:
    """Stop the broker, empty its local WAL and caches, start it again."""
    broker.stop()
    for local in (files.local_wal, files.cache):
        shutil.rmtree(local, ignore_errors=True)
    broker.start()
    screen.console.print("broker stopped, local WAL and caches emptied, broker started again")


def _read_all_from(
    screen: Screen,
    broker: BrokerProcess,
    ledgers: Sequence[Ledger],
    log: logging.Logger,
    *,
    source: str,
    place: str,
) -> None:
    """Read and compare all topics; every byte must have come from `source`, none from elsewhere."""
    before = broker.counters
    for ledger in ledgers:
        _read_and_compare(screen, broker, ledger, log, f"from {place}")
    broker.refresh_counters()
    fetched = {name: broker.counters[_fetched(name)] - before[_fetched(name)] for name in SOURCES}
    screen.check(
        f"all of that was served from {place}",
        fetched[source] > 0 and sum(fetched.values()) == fetched[source],
        [f"bytes fetched: {fetched}"],
    )


def _compare_with_spark(screen: Screen, files: Files, wanted: events.Numbers) -> None:
    directories = [files.segments_of("flights"), files.segments_of("weather")]
    one_each = all(len(found) == 1 for found in directories)
    screen.check("each topic has one directory of segments", one_each, [str(directories)])
    if not one_each:
        return
    log = files.log("spark-read")
    with screen.step("aggregate the segments with plain spark.read.parquet") as (step, _):
        status = run_logged(
            [sys.executable, "-m", "demo.spark_numbers"] + [str(found[0]) for found in directories],
            log,
            SPARK_TIMEOUT_S,
        )
        step.remark = "Spark's start included"
    if status != 0:
        screen.check("Spark could read the segments", False, [f"status {status}, see {log}"])
        return
    found = spark_numbers.parse_numbers(log.read_text())
    screen.check(
        f"flights and delays of {len(wanted.carriers)} carriers are those of the CSV",
        found.carriers == wanted.carriers,
        [f"Spark: {found.carriers}", f"CSV: {wanted.carriers}"],
    )
    screen.check(
        f"{wanted.weather_rows:,} weather rows, per airport and in sum those of the CSV",
        found._replace(carriers={}) == wanted._replace(carriers={}),
        [f"Spark: {found._replace(carriers={})}", f"CSV: {wanted._replace(carriers={})}"],
    )
    screen.print_pairs(
        "Mean departure delay per carrier, from Parquet by Spark",
        [
            (f"{name}, {numbers.flights:,} flights", f"{numbers.mean_dep_delay_minutes:.2f} min")
            for name, numbers in sorted(found.carriers.items())
        ],
    )


def _verify(screen: Screen, files: Files) -> None:
    log = files.log("verify")
    with screen.step("diskless verify"):
        status = run_diskless(["verify", "--data", files.data], log, VERIFY_TIMEOUT_S)
    screen.check("every stored invariant holds", status == 0, log.read_text().splitlines())


def _collect(source: Iterator[Event], advance: Callable[[int], None]) -> list[Event]:
    """All events, telling `advance` now and then."""
    collected: list[Event] = []
    for event in source:
        collected.append(event)
        if len(collected) % clients.PROGRESS_EVERY_RECORDS == 0:
            advance(clients.PROGRESS_EVERY_RECORDS)
    advance(len(collected) % clients.PROGRESS_EVERY_RECORDS)
    return collected


def _size_bytes(ledger: Ledger) -> int:
    return sum(event.size_bytes for event in ledger.events)


def _sizes(directory: Path) -> list[int]:
    """The size of every file below `directory`."""
    return [path.stat().st_size for path in directory.rglob("*") if path.is_file()]


def _count_and_size(sizes: Sequence[int]) -> str:
    return f"{len(sizes):,} ({sum(sizes) / BYTES_PER_MB:,.1f} MB)"


def _fetched(source: str) -> str:
    return f'diskless_fetch_bytes_total{{source="{source}"}}'


def _cache(result: str) -> str:
    return f'diskless_object_cache_requests_total{{result="{result}"}}'


def _client_log(files: Files) -> logging.Logger:
    """Where librdkafka tells of lost connections; on the screen it would look like a failure."""
    log = logging.Logger("demo.clients")
    handler = logging.FileHandler(files.log("clients"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    return log


def _terminated(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
