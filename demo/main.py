"""The story, step by step; `run` reads as its table of contents.

In a directory one broker tells it, which is killed and comes back; on a bucket there are two, and
the one that is killed stays dead (`demo.stores`).

Exit status 0: every comparison held. 1: one did not, or something did not work at all; the message
names the log to look at. 130: interrupted. Whatever happens, no process stays behind; the data
directory does, so that `diskless chunk dump` and Spark can be tried on it.
"""

import argparse
import json
import logging
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

import duckdb
from confluent_kafka import KafkaException
from rich.console import Console

from demo import clients, events, lake, spark_numbers
from demo.broker_process import BrokerError, BrokerProcess, run_diskless, run_logged
from demo.events import Event
from demo.ledger import Comparison, Ledger, ReadRecord
from demo.screen import BYTES_PER_MB, Screen
from demo.stores import Store, directory_store, minio_store
from localstack.local_server import LocalServerError

PARTITIONS: Final = 6
FLIGHTS_OUTSTANDING_MAX: Final = 50_000
WEATHER_OUTSTANDING_MAX: Final = 4_000
"""Small, so that the kill half way finds a known number of events unacknowledged."""

SPARK_TIMEOUT_S: Final = 300.0
VERIFY_TIMEOUT_S: Final = 120.0
SOURCES: Final = ("chunk", "object", "segment")
"""Where a fetched batch can come from, as the broker's metrics name it."""

EXPECTED: Final = (
    BrokerError,
    KafkaException,
    LocalServerError,
    OSError,
    ValueError,
    clients.StalledError,
    duckdb.Error,
)
"""What `run` raises when the story cannot go on."""

DEFAULT_DIRECTORY: Final = Path("build") / "demo"


DOLLARS_PER_1000: Final[Mapping[str, float]] = {
    "put": 0.005,
    "list": 0.005,
    "get": 0.0004,
    "head": 0.0004,
    "delete": 0.0,
}
"""What S3 Standard charges for requests in its cheapest regions."""


class Files(NamedTuple):
    """What lies where below the demo's directory."""

    directory: Path

    def work(self, node_id: int) -> Path:
        """A broker's log and configuration."""
        return self.directory / f"broker-{node_id}"

    def data(self, node_id: int) -> Path:
        return self.work(node_id) / "data"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


class Brokers:
    """The brokers of the story, by node id."""

    def __init__(self, files: Files, store: Store, stack: ExitStack) -> None:
        self._files = files
        self._running: dict[int, BrokerProcess] = {}
        self._dead: list[BrokerProcess] = []
        for node_id in store.node_ids:
            files.work(node_id).mkdir()
            broker = BrokerProcess(
                files.data(node_id),
                files.work(node_id),
                {**store.settings, "node.id": str(node_id)},
                object_store=store.url,
            )
            self._running[node_id] = stack.enter_context(broker)
            broker.start()

    @property
    def bootstrap(self) -> str:
        """Those that run."""
        return ",".join(broker.bootstrap for broker in self._running.values())

    @property
    def catalogue_url(self) -> str:
        """Of one of those that run."""
        return next(iter(self._running.values())).http_url

    @property
    def count_running(self) -> int:
        return len(self._running)

    @property
    def counters(self) -> Counter[str]:
        """Of all brokers, in all their lives."""
        return sum(
            (broker.counters for broker in (*self._running.values(), *self._dead)), Counter[str]()
        )

    def refresh_counters(self) -> None:
        for broker in self._running.values():
            broker.refresh_counters()

    def kill_one(self) -> None:
        """SIGKILL the first, which leads; it comes back only where there is no other."""
        node_id, broker = min(self._running.items())
        broker.refresh_counters()
        broker.kill()
        if len(self._running) == 1:
            broker.start()
        else:
            self._dead.append(self._running.pop(node_id))

    def restart_without_local_files(self) -> None:
        """Stop them, empty their local WAL and caches, start them again."""
        for node_id, broker in self._running.items():
            broker.stop()
            for local in ("wal", "cache"):
                shutil.rmtree(self._files.data(node_id) / local, ignore_errors=True)
            broker.start()

    def stop(self) -> None:
        for broker in self._running.values():
            broker.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the demo; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Diskless on real data")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="emptied first")
    parser.add_argument(
        "--store", choices=("directory", "minio"), default="directory", help="where objects are"
    )
    parser.add_argument("--flights", type=int, default=events.FLIGHTS_COUNT, help="how many")
    parser.add_argument("--weather", type=int, default=events.WEATHER_COUNT, help="how many")
    options = parser.parse_args(arguments)
    # Anywhere but on a terminal nobody knows the width, and 80 columns fold the tables.
    width = None if sys.stdout.isatty() else 120
    screen = Screen(Console(highlight=False, width=width))
    # A terminated demo leaves its `with` blocks like a failed one, and with them its processes.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        run(screen, options.directory.absolute(), options.flights, options.weather, options.store)
    except KeyboardInterrupt:
        screen.console.print("interrupted")
        return 130
    except EXPECTED as error:
        screen.check("the demo ran to its end", False, str(error).splitlines())
    if screen.checks_failed:
        screen.console.print(f"[bold red]{len(screen.checks_failed)} comparisons failed[/]:")
        for claim in screen.checks_failed:
            screen.console.print(f"  {claim}", markup=False)
        return 1
    screen.console.print(f"[bold green]all {screen.checks_held} comparisons held[/]")
    return 0


def run(
    screen: Screen, directory: Path, flights_count: int, weather_count: int, store_name: str
) -> None:
    """The whole story, in a directory that is emptied first. Raises EXPECTED."""
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

    with ExitStack() as stack:
        with screen.step("start the store and the brokers"):
            store = stack.enter_context(
                minio_store(directory / "minio")
                if store_name == "minio"
                else nullcontext(directory_store(files.data(1) / "objects"))
            )
            brokers = Brokers(files, store, stack)
        screen.console.print(f"ready: {brokers.bootstrap}, objects in {store.place}")
        for ledger in ledgers:
            schema = events.SCHEMAS[ledger.topic]
            clients.create_topic(brokers.bootstrap, ledger.topic, PARTITIONS, schema)

        _produce(screen, brokers, flights, log)
        _read_and_compare(screen, brokers, flights, log, "at the tail")
        _produce_through_a_crash(screen, brokers, weather, log)
        _restart_without_local_files(screen, brokers)
        _read_all_from(screen, brokers, ledgers, log, source="object", place="WAL objects")

        wal_objects = store.list_objects("wal/")
        _roll(screen, brokers, files)
        _restart_without_local_files(screen, brokers)
        _read_all_from(screen, brokers, ledgers, log, source="segment", place="Parquet")
        _ask_the_tables(screen, brokers, store, files, wanted, log)
        brokers.stop()
        _verify(screen, store, files)
        segments = store.list_objects("segments/")

    counters = brokers.counters
    screen.print_steps()
    screen.print_pairs(
        "What it took",
        [
            ("WAL objects written", _count_and_size(wal_objects)),
            ("Parquet segments written", _count_and_size(segments)),
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
    _print_requests(screen, counters)


def _print_requests(screen: Screen, counters: Counter[str]) -> None:
    """By kind, and what S3 would charge for them."""
    counts = {
        kind: counters[f'diskless_object_store_requests_total{{op="{kind}"}}']
        for kind in DOLLARS_PER_1000
    }
    dollars = {kind: counts[kind] / 1000 * DOLLARS_PER_1000[kind] for kind in counts}
    screen.print_pairs(
        "Requests by the brokers, in dollars at S3's list prices",
        [
            *((kind.upper(), f"{counts[kind]:,.0f}   ${dollars[kind]:.4f}") for kind in counts),
            ("together", f"{sum(counts.values()):,.0f}   ${sum(dollars.values()):.4f}"),
        ],
    )


def _produce(screen: Screen, brokers: Brokers, ledger: Ledger, log: logging.Logger) -> None:
    with screen.step(f"produce {ledger.topic}", len(ledger.events)) as (step, advance):
        clients.produce(
            brokers.bootstrap,
            ledger,
            advance=advance,
            log=log,
            outstanding_max=FLIGHTS_OUTSTANDING_MAX,
        )
        step.records, step.size_bytes = len(ledger.events), _size_bytes(ledger)
        step.remark = "idempotent, acks=all, zstd"
    _check_deliveries(screen, ledger)


def _produce_through_a_crash(
    screen: Screen, brokers: Brokers, ledger: Ledger, log: logging.Logger
) -> None:
    """Produce; half way, with events in flight, kill a broker."""
    crash: list[int] = []

    def kill_one(unacknowledged: int) -> None:
        crash.append(unacknowledged)
        brokers.kill_one()

    with screen.step(f"produce {ledger.topic}, SIGKILL half way", len(ledger.events)) as (
        step,
        advance,
    ):
        clients.produce(
            brokers.bootstrap,
            ledger,
            advance=advance,
            log=log,
            outstanding_max=min(WEATHER_OUTSTANDING_MAX, len(ledger.events) // 4),
            at_half_way=kill_one,
        )
        step.records, step.size_bytes = len(ledger.events), _size_bytes(ledger)
        step.remark = f"{sum(crash):,} unacknowledged then; {brokers.count_running} left"
    screen.check("a broker was killed with events in flight", bool(crash and crash[0] > 0))
    _check_deliveries(screen, ledger)


def _check_deliveries(screen: Screen, ledger: Ledger) -> None:
    problems = ledger.delivery_problems()
    screen.check(
        f"all {len(ledger.events):,} {ledger.topic} acknowledged once, offsets dense and in order",
        not problems,
        problems,
    )


def _read_and_compare(
    screen: Screen, brokers: Brokers, ledger: Ledger, log: logging.Logger, when: str
) -> None:
    with screen.step(f"read {ledger.topic} {when}", len(ledger.events)) as (step, advance):
        records: Iterator[ReadRecord] = clients.read_all(
            brokers.bootstrap, ledger, advance=advance, log=log
        )
        comparison: Comparison = ledger.compare(records)
        step.records, step.size_bytes = comparison.records, comparison.size_bytes
    screen.check(
        f"{ledger.topic} {when}: key, value, headers, timestamp and offset of"
        f" {comparison.records:,} records are what was sent",
        comparison.held,
        [f"{comparison.differences:,} differences, the first:", *comparison.told],
    )


def _roll(screen: Screen, brokers: Brokers, files: Files) -> None:
    with screen.step("roll everything into Parquet with Spark, write the tables") as (step, _):
        status = run_diskless(
            ["tier", "--bootstrap", brokers.bootstrap, "--once", "--all", "--master", "local[2]"],
            files.log("tier"),
            SPARK_TIMEOUT_S,
        )
        step.remark = "Spark's start included"
    screen.check("the roll ended well", status == 0, [f"status {status}, see {files.log('tier')}"])


def _restart_without_local_files(screen: Screen, brokers: Brokers) -> None:
    brokers.restart_without_local_files()
    screen.console.print("every live broker stopped, local WAL and caches emptied, started again")


def _read_all_from(
    screen: Screen,
    brokers: Brokers,
    ledgers: Sequence[Ledger],
    log: logging.Logger,
    *,
    source: str,
    place: str,
) -> None:
    """Read and compare all topics; every byte must have come from `source`, none from elsewhere."""
    before = brokers.counters
    for ledger in ledgers:
        _read_and_compare(screen, brokers, ledger, log, f"from {place}")
    brokers.refresh_counters()
    fetched = {name: brokers.counters[_fetched(name)] - before[_fetched(name)] for name in SOURCES}
    screen.check(
        f"all of that was served from {place}",
        fetched[source] > 0 and sum(fetched.values()) == fetched[source],
        [f"bytes fetched: {fetched}"],
    )


def _ask_the_tables(
    screen: Screen,
    brokers: Brokers,
    store: Store,
    files: Files,
    wanted: events.Numbers,
    log: logging.Logger,
) -> None:
    """Ask two engines what the CSV was asked, while a producer writes flights of another year.

    The table in the catalogue is as of the roll; Spark's source has what came since as well.
    """
    live = json.dumps({"carrier": events.LIVE_CARRIER, "dep_delay": 0, "distance": 0}).encode()
    with clients.writing_on(brokers.bootstrap, "flights", live, log):
        with screen.step("ask DuckDB, attached to the catalogue") as (step, _):
            told = lake.numbers(brokers.catalogue_url, store.duckdb_credentials)
            step.remark = "a producer is writing"
        _check_numbers(screen, "DuckDB", told, wanted)
        found = _told_by_spark(screen, brokers, files)
    if found is None:
        return
    since = found.carriers.pop(events.LIVE_CARRIER, None)
    screen.check("Spark's source has flights that were written since", since is not None)
    _check_numbers(screen, "Spark", found, wanted)
    screen.print_pairs(
        "Mean departure delay per carrier, from the topic by Spark",
        [
            (f"{name}, {numbers.flights:,} flights", f"{numbers.mean_dep_delay_minutes:.2f} min")
            for name, numbers in sorted(found.carriers.items())
        ],
    )


def _told_by_spark(screen: Screen, brokers: Brokers, files: Files) -> events.Numbers | None:
    log = files.log("spark-read")
    with screen.step('ask Spark, format("diskless")') as (step, _):
        status = run_logged(
            [sys.executable, "-m", "demo.spark_numbers", brokers.bootstrap], log, SPARK_TIMEOUT_S
        )
        step.remark = "Spark's start included"
    if status != 0:
        screen.check("Spark could read the topics", False, [f"status {status}, see {log}"])
        return None
    return spark_numbers.parse_numbers(log.read_text())


def _check_numbers(
    screen: Screen, engine: str, found: events.Numbers, wanted: events.Numbers
) -> None:
    screen.check(
        f"{engine}: flights and delays of {len(wanted.carriers)} carriers are those of the CSV",
        found.carriers == wanted.carriers,
        [f"{engine}: {found.carriers}", f"CSV: {wanted.carriers}"],
    )
    screen.check(
        f"{engine}: {wanted.weather_rows:,} weather rows, per airport and in sum those of the CSV",
        found._replace(carriers={}) == wanted._replace(carriers={}),
        [f"{engine}: {found._replace(carriers={})}", f"CSV: {wanted._replace(carriers={})}"],
    )


def _verify(screen: Screen, store: Store, files: Files) -> None:
    log = files.log("verify")
    arguments: list[str | Path] = ["verify", "--data", files.data(store.node_ids[-1])]
    if store.url is not None:
        arguments += ["--object-store", store.url]
    with screen.step("diskless verify"):
        status = run_diskless(arguments, log, VERIFY_TIMEOUT_S)
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


def _count_and_size(lengths: Mapping[str, int]) -> str:
    return f"{len(lengths):,} ({sum(lengths.values()) / BYTES_PER_MB:,.1f} MB)"


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
