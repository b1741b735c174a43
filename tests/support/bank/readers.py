"""Who reads what a bank's programs write, in threads: consumers, and tasks of the Spark source.

Each reads all partitions of one topic, and sees what is committed alone.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from metadata.operations import PlanSegments
from tests.support.bank.books import Balance, Leg
from tests.support.bank.programs import CLIENT
from tests.support.clients.stock_clients import QUIET
from tiering.coordinator_client import CoordinatorClient
from tiering.roll import roll
from tiering.source.planning import Share
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, OutcomeUnknown, Rejected, Retriable
from wal.stores.blocking_store import open_blocking_store

ROLLED_EVERY: Final = 5
"""Reads of a task."""


class Reader(ABC):
    """What all have in common; `_read` reads what there is now."""

    def __init__(self, partitions: int) -> None:
        self.found: list[tuple[int, int, float, dict[str, Any]]] = []
        """Partition, offset, when, and the value, in the order in which they were read."""
        self._ends = dict.fromkeys(range(partitions), 0)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._read()
        except BaseException as failure:
            self._failure = failure

    @abstractmethod
    def _read(self) -> None:
        """Read what has come; returns soon."""

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def has_read_to(self, ends: Mapping[int, int]) -> bool:
        assert self._failure is None, self._failure
        return all(self._ends[partition] >= end for partition, end in ends.items())

    def legs(self) -> list[Leg]:
        return [
            Leg(
                partition=partition,
                offset=offset,
                transfer_id=value["id"],
                teller=value["teller"],
                number=value["number"],
                account=value["account"],
                amount=value["amount"],
                seen_s=seen_s,
            )
            for partition, offset, seen_s, value in self.found
        ]

    def balances(self) -> list[Balance]:
        return [
            Balance(partition, value["leg"], value["account"], value["amount"])
            for partition, _, _, value in self.found
        ]


class ConsumingReader(Reader):
    """A consumer with read_committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(partitions)
        self._consumer = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "logger": QUIET,
            }
        )
        # Not OFFSET_BEGINNING, for which it would ask a broker that may not know the topic yet.
        self._consumer.assign([TopicPartition(topic, one, 0) for one in self._ends])
        self._start()

    def stop(self) -> None:
        super().stop()
        self._consumer.close()

    def _read(self) -> None:
        for message in self._consumer.consume(1_000, 0.1):
            error = message.error()
            partition, offset = message.partition(), message.offset()
            if error is None:
                assert partition is not None
                assert offset is not None
                value = json.loads(message.value() or b"")
                self.found.append((partition, offset, time.monotonic(), value))
            elif error.code() == KafkaError._PARTITION_EOF:
                assert partition is not None
                self._ends[partition] = offset or 0
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)


class TableReader(Reader):
    """Reads as tasks of Spark's micro-batches do, and rolls what it has read now and then.

    Records come out of WAL objects or segments, whichever has them when they are read.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, every_s: float) -> None:
        super().__init__(partitions)
        self._bootstrap = bootstrap
        self._every_s = every_s
        self._log = TopicLog(bootstrap, topic, sleep=time.sleep)
        self.reads = 0
        self.segments = 0
        """That were rolled."""
        self._start()

    def _read(self) -> None:
        self._stopping.wait(self._every_s)
        try:
            self._take()
            self.reads += 1
            if self.reads % ROLLED_EVERY == 0:
                self._roll()
        except (Retriable, OutcomeUnknown):
            # Nobody could be asked now; it reads on where it was.
            return

    def _take(self) -> None:
        topic = self._log.topic()
        partitions = [TopicIdPartition(topic.topic_id, number) for number in self._ends]
        wanted = Wanted(columns=["offset", "value"])
        ends = self._log.ends(partitions)
        with open_blocking_store(topic.object_store_url) as store:
            for partition in partitions:
                number = partition.partition
                share = Share(number, self._ends[number], ends[number])
                rows = [
                    row
                    for table in share_tables(self._log, partition, share, store, wanted)
                    for row in table.to_pylist()
                ]
                now = time.monotonic()
                self.found += [
                    (number, row["offset"], now, json.loads(row["value"])) for row in rows
                ]
                self._ends[number] = max(share.start, share.end)

    def _roll(self) -> None:
        coordinator = CoordinatorClient(self._bootstrap)
        planned = coordinator.plan_segments(PlanSegments(include_partial=True, max_plans=1_000))
        with open_blocking_store(planned.object_store_url, sync=False) as store:
            rolled = [roll(plan, store).segment for plan in planned.plans]
        for commit in coordinator.commit_segments(rolled):
            # Another leader may know that it was committed, or retention deleted it.
            assert commit.error is None or isinstance(commit.error, Expected), commit.error
            self.segments += commit.error is None


Expected: Final[tuple[type[DisklessError], ...]] = (Retriable, OutcomeUnknown, Rejected)
