"""A stock producer that sends records of 1 KiB one by one at a fixed rate, without linger."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from bench.tools import load

RECORD_BYTES: Final = 1024
RATE_BYTES_PER_S: Final = 1 << 20
SECONDS: Final = 15.0


def paced_produce(
    bootstrap: str,
    *,
    partitions: int,
    seconds: float = SECONDS,
    bytes_per_s: float = RATE_BYTES_PER_S,
    settings: Mapping[str, object] = load.NO_SETTINGS,
) -> Sequence[float]:
    """Milliseconds from each produce call to its acknowledgement.

    Before them a record of each partition is acknowledged: the client is connected then and has its
    producer id, and the rate does not begin with a backlog.
    """
    client = load.producer(bootstrap, {"linger.ms": 0, **settings})
    client.list_topics(load.TOPIC, timeout=30)
    value = load.payload(RECORD_BYTES)
    for partition in range(partitions):
        client.produce(load.TOPIC, value, partition=partition)
    client.flush(30)
    waits: list[float] = []
    interval = RECORD_BYTES / bytes_per_s
    started = time.perf_counter()
    sent = 0
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            client.poll(0.1)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        while (now := time.perf_counter()) - started < seconds:
            while sent * interval <= now - started:

                def delivered(error: object, _: object, at: float = time.perf_counter()) -> None:
                    if error is None:
                        waits.append((time.perf_counter() - at) * 1000)

                client.produce(
                    load.TOPIC, value, partition=sent % partitions, on_delivery=delivered
                )
                sent += 1
            time.sleep(0.001)
        client.flush(30)
    finally:
        stop.set()
        poller.join()
    if len(waits) < sent:
        raise RuntimeError(f"{sent - len(waits)} of {sent} records were not acknowledged")
    return waits


def settled_waits(
    bootstrap: str,
    *,
    partitions: int,
    seconds: float,
    bytes_per_s: float = RATE_BYTES_PER_S,
    idempotent: bool = True,
) -> Sequence[float]:
    """Those of `paced_produce` without a new connection's first quarter."""
    waits = paced_produce(
        bootstrap,
        partitions=partitions,
        seconds=seconds,
        bytes_per_s=bytes_per_s,
        settings={"enable.idempotence": idempotent},
    )
    return waits[len(waits) // 4 :]
