"""A teller: moves money between random accounts, both legs in one transaction, until told to stop.

`python -m tests.support.bank.teller JSON`, with the keys of `Orders`. It says `began` with the
whole transfer before it sends anything, `commits` before it asks to commit, and `committed` or
`aborted` when it knows. What ends its producer is said as `fenced`, and ends the program.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException, Producer

from tests.support.bank.programs import (
    CALL_S,
    CLIENT,
    TOPIC,
    Fenced,
    Wishes,
    call,
    say,
)

LARGEST_AMOUNT: Final = 100
LIFE: Final = 1_000_000
"""Transfers of one life of a teller, at most: numbers rise over all its lives."""
ABORTED_SHARE: Final = 0.25
SLOW_SHARE: Final = 0.05
"""Transfers in which the teller thinks between the legs, so that others overtake it."""
SLOW_S: Final = 0.5
SENT_S: Final = 2.0
"""How long a transfer that is aborted waits until its legs are sent."""


class Orders(NamedTuple):
    """What a teller is told."""

    bootstrap: str
    name: str
    """Its transactional id as well."""
    life: int
    accounts: int
    partitions: int
    timeout_ms: int
    pause_s: float
    """Between two transfers, on average."""


class Teller:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._rng = random.Random(f"{orders.name}-{orders.life}")
        self._number = orders.life * LIFE
        self._producer = Producer(
            {
                **CLIENT,
                "bootstrap.servers": orders.bootstrap,
                "transactional.id": orders.name,
                "transaction.timeout.ms": orders.timeout_ms,
                "linger.ms": 2,
            }
        )

    def run(self) -> None:
        wishes = Wishes()
        try:
            call(lambda: self._producer.init_transactions(CALL_S))
            say("ready")
            while wishes.obey(self._rng.expovariate(1 / self._orders.pause_s)):
                self._transfer()
        except Fenced as fenced:
            say("fenced", why=str(fenced))

    def _transfer(self) -> None:
        self._number += 1
        transfer_id = f"{self._orders.name}-{self._number}"
        debited, credited = self._rng.sample(range(self._orders.accounts), 2)
        amount = self._rng.randint(1, LARGEST_AMOUNT)
        is_committed = self._rng.random() >= ABORTED_SHARE
        say("began", id=transfer_id, accounts=[debited, credited], amount=amount)
        try:
            call(self._producer.begin_transaction)
            self._send(transfer_id, debited, -amount)
            if self._rng.random() < SLOW_SHARE:
                self._producer.flush(CALL_S)
                time.sleep(self._rng.random() * SLOW_S)
            self._send(transfer_id, credited, amount)
            if is_committed:
                say("commits", id=transfer_id)
                call(lambda: self._producer.commit_transaction(CALL_S))
                say("committed", id=transfer_id)
                return
            # Else the producer forgets what it has not sent, and nothing is there to be left out.
            self._producer.flush(SENT_S)
        except KafkaException as failure:
            say("failed", id=transfer_id, why=failure.args[0].name())
        call(lambda: self._producer.abort_transaction(CALL_S))
        say("aborted", id=transfer_id)

    def _send(self, transfer_id: str, account: int, amount: int) -> None:
        leg = {
            "id": transfer_id,
            "teller": self._orders.name,
            "number": self._number,
            "account": account,
            "amount": amount,
        }
        partition = account % self._orders.partitions
        send: Callable[..., Any] = self._producer.produce
        call(lambda: send(TOPIC, json.dumps(leg), str(account), partition=partition))


if __name__ == "__main__":
    Teller(Orders(**json.loads(sys.argv[1]))).run()
