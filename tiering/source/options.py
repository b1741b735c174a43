"""Reads the options of `format("diskless")`, and says which one to change when they make no sense.

Names are those of Spark's Kafka source where that has them, in any case, so that a job moves by the
name of its format. An option that nobody knows is an error: a misspelt limit would be no limit.

Failure cases: InvalidSettings naming the option and what it may be.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

import re2

from metadata.operations import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tiering.coordinator_client import parse_bootstrap
from wal.errors import InvalidSettings, Rejected
from wal.staging.staged_keys import check_sink_id

OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap": "host:port of a broker; several separated by commas",
    "topic": "the topic to read; several separated by commas",
    "subscribePattern": "a pattern (RE2) that the whole names of topics match, in place of topic",
    "assign": "topics and their partitions as JSON, in place of topic",
    "columns": "columns to read, separated by commas; `*`: those of Spark's Kafka source, default",
    "partitions": "partitions to read, as `0,3-5`; default: all",
    "startingOffsets": "`earliest`, `latest`, or offsets by partition as JSON",
    "startingTimestamp": "milliseconds since 1970: the first record of that time or later",
    "endingOffsets": "the same for the end of a batch read, itself not read",
    "endingTimestamp": "the same for the end of a batch read",
    "maxOffsetsPerTrigger": "offsets of a micro-batch, over all partitions; default: no limit",
    "maxBytesPerTrigger": "stored bytes of a micro-batch, over all partitions; default: no limit",
    "failOnDataLoss": "false: go on where records were deleted before they were read",
    "latest": "true: of each key the newest record alone, and none whose value is null",
    "pushdown": "true: read only what the filters of the query may match",
    "commandConfig": "file of Kafka's client properties, on the driver and on executors",
    "schemaRegistry": "URL of the schema registry, for typed columns of records not rolled yet",
    "schemaRegistryAuth": "file:PATH of a file with USER:PASSWORD for it, where tasks run",
    "objectStore": "URL at which Spark reaches the bucket, when brokers reach it by another",
}
"""What each of a read means, for docs/tables.md."""

SINK_OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap": OPTIONS["bootstrap"],
    "topic": "the topic to write to",
    "sink.id": "exactly once: a name for this stream of batches, of no other query",
    "sink.batch.id": "exactly once, for df.write: the number of this batch, greater than the last",
    "compression": "exactly once: `none`, `gzip`, `snappy`, `lz4`, `zstd`; default: `lz4`",
    "commandConfig": OPTIONS["commandConfig"],
    "objectStore": OPTIONS["objectStore"],
}
"""The same of a write."""

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_WITH_SINK_ID: Final = ("sink.batch.id", "compression", "objectStore")

_OF_SPARK: Final = frozenset({"checkpointlocation"})
"""What Spark passes on of a streaming write though it is its own."""

_ALIASES: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "topic",
}

PARTITION_MAX: Final = 1_000_000
"""More than any topic has; a range without an end must not take all memory."""

_Value = TypeVar("_Value")


class Edge(NamedTuple):
    """Where reading begins or ends, in each partition."""

    timestamp: int
    """As ListOffsets has it: a time in milliseconds, or EARLIEST_TIMESTAMP, or LATEST_TIMESTAMP."""
    offsets: Mapping[int, int] | None = None
    """By partition, in place of `timestamp`; -1 and -2 are the latest and the earliest."""
    by_topic: Mapping[str, Mapping[int, int]] | None = None
    """The same of several topics; `offsets` are those of one of them."""

    def of(self, partition: int) -> int:
        """An offset, or a negative timestamp of ListOffsets that stands for one. Not for times."""
        if self.offsets is None:
            return self.timestamp
        return self.offsets[partition]

    def of_topic(self, name: str, option: str) -> "Edge":
        """The edge of one topic. Raises: InvalidSettings."""
        if self.by_topic is None:
            return self
        offsets = self.by_topic.get(name)
        if offsets is None:
            raise InvalidSettings(f"option {option} has no offsets for topic {name}")
        return Edge(self.timestamp, offsets)


EARLIEST: Final = Edge(EARLIEST_TIMESTAMP)
LATEST: Final = Edge(LATEST_TIMESTAMP)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read, checked."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    """By name; empty: those that match `pattern`."""
    pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None
    """Partitions by topic, of all `topics`."""
    columns: tuple[str, ...] | None = None
    partitions: frozenset[int] | None = None
    starting: Edge | None = None
    ending: Edge | None = None
    offsets_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    latest: bool = False
    pushdown: bool = False
    command_config: str | None = None
    object_store_url: str | None = None
    registry_url: str | None = None
    registry_auth: str | None = None
    given: frozenset[str] = field(default_factory=frozenset)
    """Names of the options that were given."""

    @property
    def topic(self) -> str:
        """The only topic; of options that are `of_topic`, or name one."""
        (name,) = self.topics
        return name

    def of_topic(self, name: str) -> "SourceOptions":
        """The options as they are for one topic of them. Raises: InvalidSettings."""
        return replace(
            self,
            topics=(name,),
            pattern=None,
            partitions=self.partitions if self.assigned is None else self.assigned[name],
            assigned=None,
            starting=self.starting and self.starting.of_topic(name, "startingOffsets"),
            ending=self.ending and self.ending.of_topic(name, "endingOffsets"),
        )


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises: InvalidSettings."""
    given = _by_name(options, OPTIONS)

    def value(name: str, parse: Callable[[str], _Value]) -> _Value | None:
        text = given.get(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidSettings(f"option {name}={text!r}: must be {error}") from error

    bootstrap = _required(given, "bootstrap", OPTIONS)
    parse_bootstrap(bootstrap)
    chosen = [
        name for name in ("topic", "subscribePattern", "assign") if given.get(name, "").strip()
    ]
    if not chosen:
        _required(given, "topic", OPTIONS)
    if len(chosen) > 1:
        raise InvalidSettings(f"options {' and '.join(chosen)}: give one of them")
    assigned = value("assign", _assigned)
    topics = tuple(assigned) if assigned else ()
    if "topic" in chosen:
        topics = value("topic", _topics) or ()
    if "partitions" in given and len(topics) != 1:
        raise InvalidSettings("option partitions is for one topic; several have them in assign")
    if "partitions" in given and assigned:
        raise InvalidSettings("options partitions and assign: give one of them")
    return SourceOptions(
        bootstrap=bootstrap,
        topics=topics,
        pattern=value("subscribePattern", _pattern),
        assigned=assigned,
        columns=value("columns", _names),
        partitions=value("partitions", _partitions),
        starting=_edge(given, value, topics, "startingOffsets", "startingTimestamp"),
        ending=_edge(given, value, topics, "endingOffsets", "endingTimestamp"),
        offsets_per_trigger=value("maxOffsetsPerTrigger", _positive),
        bytes_per_trigger=value("maxBytesPerTrigger", _positive),
        fail_on_data_loss=value("failOnDataLoss", _boolean) is not False,
        latest=value("latest", _boolean) is True,
        pushdown=value("pushdown", _boolean) is True,
        command_config=given.get("commandConfig"),
        object_store_url=given.get("objectStore"),
        registry_url=given.get("schemaRegistry"),
        registry_auth=given.get("schemaRegistryAuth"),
        given=frozenset(given),
    )


class SinkOptions(NamedTuple):
    """The options of one write, checked."""

    bootstrap: str
    topic: str
    command_config: str | None
    sink_id: str | None = None
    """Set for exactly once."""
    batch_id: int | None = None
    compression: str = "lz4"
    object_store_url: str | None = None


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises: InvalidSettings."""
    own = {key: text for key, text in options.items() if key.lower() not in _OF_SPARK}
    given = _by_name(own, SINK_OPTIONS)
    bootstrap = _required(given, "bootstrap", SINK_OPTIONS)
    parse_bootstrap(bootstrap)
    sink_id, batch_id = given.get("sink.id"), given.get("sink.batch.id")
    compression = given.get("compression", "lz4")
    if sink_id is None:
        for name in _WITH_SINK_ID:
            if name in given:
                raise InvalidSettings(f"option {name} is for writes with option sink.id")
    else:
        try:
            check_sink_id(sink_id)
        except Rejected as error:
            raise InvalidSettings(f"option sink.id: {error}") from error
    if batch_id is not None and not (batch_id.isdecimal() and int(batch_id) < 1 << 63):
        raise InvalidSettings(f"option sink.batch.id={batch_id!r}: must be a number from 0 on")
    if compression not in COMPRESSIONS:
        raise InvalidSettings(
            f"option compression={compression!r}: must be one of {', '.join(COMPRESSIONS)}"
        )
    return SinkOptions(
        bootstrap,
        _required(given, "topic", SINK_OPTIONS),
        given.get("commandConfig"),
        sink_id,
        None if batch_id is None else int(batch_id),
        compression,
        given.get("objectStore"),
    )


def refuse(options: SourceOptions, names: tuple[str, ...], why: str) -> None:
    """Raise InvalidSettings when one of `names` is given."""
    for name in names:
        if name in options.given:
            raise InvalidSettings(f"option {name} is {why}")


def _by_name(options: Mapping[str, str], known: Mapping[str, str]) -> Mapping[str, str]:
    names = {**{name.lower(): name for name in known}, **_ALIASES}
    given: dict[str, str] = {}
    for key, text in options.items():
        name = names.get(key.lower())
        if name is None:
            raise InvalidSettings(f"option {key}: there is none; there are {', '.join(known)}")
        if given.setdefault(name, text) != text:
            raise InvalidSettings(f"option {name} is given twice, {given[name]!r} and {text!r}")
    return given


def _required(given: Mapping[str, str], name: str, meanings: Mapping[str, str]) -> str:
    text = given.get(name, "").strip()
    if not text:
        raise InvalidSettings(f"option {name} is missing: {meanings[name]}")
    return text


def _edge(
    given: Mapping[str, str], value: Any, topics: tuple[str, ...], offsets: str, timestamp: str
) -> Edge | None:
    if offsets in given and timestamp in given:
        raise InvalidSettings(f"options {offsets} and {timestamp}: give one of them")
    edge: Edge | None = value(offsets, lambda text: _offsets(text, topics))
    if edge is None:
        edge = value(timestamp, _time)
    return edge


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, each once, separated by commas")
    return names


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of topics, each once, separated by commas")
    return names


def _pattern(text: str) -> str:
    try:
        re2.compile(text.strip())
    except re2.error as error:
        raise ValueError(f"a regular expression of RE2: {error}") from error
    return text.strip()


def _assigned(text: str) -> Mapping[str, frozenset[int]]:
    what = 'topics and their partitions as JSON: {"flights": [0, 1], "weather": [0]}'
    try:
        tree = json.loads(text)
        if not isinstance(tree, dict) or not tree:
            raise ValueError(what)
        for numbers in tree.values():
            if not isinstance(numbers, list) or not numbers:
                raise ValueError(what)
            if any(type(one) is not int or not 0 <= one < PARTITION_MAX for one in numbers):
                raise ValueError(what)
    except (ValueError, RecursionError) as error:
        raise ValueError(what) from error
    return {name: frozenset(numbers) for name, numbers in tree.items()}


def _partitions(text: str) -> frozenset[int]:
    what = f"numbers below {PARTITION_MAX:,} or ranges of them, as 0,3-5"
    wanted: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ValueError(what)
        if not int(first) <= int(last or first) < PARTITION_MAX:
            raise ValueError(what)
        wanted.update(range(int(first), int(last or first) + 1))
    return frozenset(wanted)


def _offsets(text: str, topics: tuple[str, ...]) -> Edge:
    """`earliest`, `latest`, or JSON as {"flights": {"0": 23}}; of one topic the inner part."""
    simple = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if simple is not None:
        return simple
    example = topics[0] if topics else "flights"
    what = (
        f'earliest, latest, or offsets by partition as JSON: {{"{example}": {{"0": 23, "1": -2}}}}'
    )
    try:
        tree = json.loads(text)
        if not isinstance(tree, dict) or not tree:
            raise ValueError(what)
        is_inner = len(topics) == 1 and not any(isinstance(one, dict) for one in tree.values())
        by_topic = {topics[0]: tree} if is_inner else tree
        if topics and set(by_topic) - set(topics):
            raise ValueError(what)
        edges = {name: _by_partition(offsets) for name, offsets in by_topic.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(what) from error
    return Edge(LATEST_TIMESTAMP, by_topic=edges)


def _by_partition(tree: Any) -> Mapping[int, int]:
    if not isinstance(tree, dict) or not tree:
        raise ValueError
    if any(type(offset) is not int or not -2 <= offset < 1 << 63 for offset in tree.values()):
        raise ValueError
    return {int(partition): offset for partition, offset in tree.items()}


def _time(text: str) -> Edge:
    if not text.strip().isdecimal() or int(text) >= 1 << 63:
        raise ValueError("milliseconds since 1970")
    return Edge(int(text))


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) < 1 << 63:
        raise ValueError("a positive number")
    return int(text)


def _boolean(text: str) -> bool:
    known = {"true": True, "false": False}.get(text.strip().lower())
    if known is None:
        raise ValueError("true or false")
    return known
