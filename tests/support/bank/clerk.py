"""A clerk: reads legs, writes the balance of the account after each, and commits both as one.

`python -m tests.support.bank.clerk JSON`, with the keys of `Orders`. Clerks share the partitions of
the legs as one group, each a static member. The balances of a partition are in the partition of
the same number. Whoever is given a partition reads its balances first, to the end, whether it is
open or not: so it waits for what another clerk has begun.
"""

import json
import sys
import time
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.bank.programs import (
    BALANCES,
    CALL_S,
    CLIENT,
    PATIENCE_S,
    TOPIC,
    Fenced,
    Wishes,
    call,
    gives_up_after,
    say,
)

GROUP: Final = "clerks"
POLL_S: Final = 0.1
STUCK_S: Final = CALL_S + 10.0
"""librdkafka 2.16 forgets the timeout of this call, and to look for the group's coordinator, where
the broker that was it is not in its metadata for a while (its issues 5456 and 5511)."""
LEGS_MAX: Final = 200
"""Of one transaction."""


class Orders(NamedTuple):
    """What a clerk is told."""

    bootstrap: str
    name: str
    """Its transactional id, and its name in the group."""
    timeout_ms: int
    session_ms: int
    gather_s: float


class Clerk:
    def __init__(self, orders: Orders) -> None:
        client = {**CLIENT, "bootstrap.servers": orders.bootstrap}
        self._client = client
        self._gather_s = orders.gather_s
        self._balances: dict[int, dict[int, int]] = {}
        """Of each account, by partition: those that are this clerk's."""
        self._is_broken = False
        self._producer = Producer(
            {
                **client,
                "transactional.id": orders.name,
                "transaction.timeout.ms": orders.timeout_ms,
                "linger.ms": 2,
            }
        )
        self._consumer = Consumer(
            {
                **client,
                "group.id": GROUP,
                "group.instance.id": orders.name,
                "session.timeout.ms": orders.session_ms,
                "heartbeat.interval.ms": 500,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )

    def run(self) -> None:
        wishes = Wishes()
        try:
            call(lambda: self._producer.init_transactions(CALL_S))
            self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)
            say("ready")
            while wishes.obey():
                messages = self._consumer.consume(LEGS_MAX, self._gather_s)
                legs = [message for message in messages if message.error() is None]
                for message in messages:
                    error = message.error()
                    if error is not None and error.fatal():
                        raise Fenced(error.name())
                if legs:
                    self._book(legs)
        except Fenced as fenced:
            say("fenced", why=str(fenced))
            return
        self._consumer.close()

    def _book(self, legs: list[Message]) -> None:
        try:
            call(self._producer.begin_transaction)
            after: dict[int, dict[int, int]] = {}
            positions: dict[int, int] = {}
            for message in legs:
                partition, offset = message.partition(), message.offset()
                leg = json.loads(message.value() or b"")
                mine = after.setdefault(partition, dict(self._balances[partition]))
                account = leg["account"]
                mine[account] = mine.get(account, 0) + leg["amount"]
                positions[partition] = (offset or 0) + 1
                balance = {"account": account, "amount": mine[account], "leg": offset}
                self._producer.produce(
                    BALANCES, json.dumps(balance), str(account), partition=partition
                )
            places = [TopicPartition(TOPIC, one, at) for one, at in positions.items()]
            members = self._consumer.consumer_group_metadata()
            with gives_up_after(STUCK_S, "send_offsets_to_transaction"):
                call(lambda: self._producer.send_offsets_to_transaction(places, members, CALL_S))
            call(lambda: self._producer.commit_transaction(CALL_S))
            self._balances.update(after)
            say("booked", legs=len(legs))
        except KafkaException as failure:
            say("failed", why=failure.args[0].name())
            call(lambda: self._producer.abort_transaction(CALL_S))
            self._go_back({message.partition() for message in legs})

    def _go_back(self, partitions: set[int | None]) -> None:
        """Read what was aborted again, if it is still this clerk's."""
        mine = [TopicPartition(TOPIC, one) for one in partitions if one in self._balances]
        for place in call(lambda: self._consumer.committed(mine, CALL_S)):
            try:
                if place.offset < 0:
                    place.offset = 0
                self._consumer.seek(place)
            except KafkaException as failure:
                # It was taken from this clerk meanwhile.
                say("not mine", partition=place.partition, why=failure.args[0].name())

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._balances[place.partition] = self._read_balances(place.partition)
        say("assigned", partitions=[place.partition for place in places])

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._balances.pop(place.partition, None)

    def _read_balances(self, partition: int) -> dict[int, int]:
        reader = Consumer(
            {
                **self._client,
                "group.id": f"{GROUP}-restoring",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            end = high_watermark(AdminClient(self._client), BALANCES, partition)
            reader.assign([TopicPartition(BALANCES, partition, 0)])
            found: dict[int, int] = {}
            ends_at = time.monotonic() + PATIENCE_S
            while time.monotonic() < ends_at:
                message = reader.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    balance = json.loads(message.value() or b"")
                    found[balance["account"]] = balance["amount"]
                elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                    return found
            raise Fenced(f"balances of {partition} do not end at {end}")
        finally:
            reader.close()


def high_watermark(admin: AdminClient, topic: str, partition: int) -> int:
    place = TopicPartition(topic, partition)

    def ask() -> Any:
        asked = {place: OffsetSpec.latest()}
        level = IsolationLevel.READ_UNCOMMITTED
        return admin.list_offsets(asked, isolation_level=level, request_timeout=CALL_S)[
            place
        ].result()

    return int(call(ask).offset)


if __name__ == "__main__":
    Clerk(Orders(**json.loads(sys.argv[1]))).run()
