"""A transactional producer by hand: one connection, one request at a time, nothing in between.

It speaks the classic protocol: partitions are added to the transaction before they are written to.
"""

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Final, Self

from bench.tools.raw_client import (
    RawClient,
    batch,
    check_produced_all,
    produce_many_body,
    text,
)

FIND_COORDINATOR: Final = 10
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS: Final = 24
END: Final = 26
OFFSET_COMMIT: Final = 8
PRODUCE: Final = 0
TIMEOUT_MS: Final = 60_000
IS_TRANSACTIONAL: Final = 0x10
BUSY: Final = frozenset({14, 15, 16, 51})
"""The coordinator is not there yet, or not done with the transaction before."""
_ASK_AGAIN_S: Final = 0.002
_PATIENCE_S: Final = 60.0
_INITIALISED: Final = struct.Struct(">ihqh")


class TransactionFailed(Exception):
    """A broker answered with an error."""


class RawTransactions:
    """One transactional id. Use `connect`."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.conflicts = 0
        """Answers that said to come again."""
        self._client = client
        self._name = name
        self._named = b""
        self._producer_id = -1
        self._epoch = 0
        self._sequences: dict[int, int] = {}

    @classmethod
    async def connect(cls, bootstrap: str, name: str) -> Self:
        made = cls(await RawClient.connect(bootstrap), name)
        await made._ask(FIND_COORDINATOR, 1, text(name) + b"\x01", 4)
        body = text(name) + struct.pack(">i", TIMEOUT_MS)
        answer = await made._ask(INIT_PRODUCER_ID, 1, body, 4)
        _, _, made._producer_id, made._epoch = _INITIALISED.unpack_from(answer)
        made._named = text(name) + struct.pack(">qh", made._producer_id, made._epoch)
        return made

    async def close(self) -> None:
        await self._client.close()

    async def add(self, topic: str, partitions: Sequence[int]) -> None:
        listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
        body = self._named + struct.pack(">i", 1) + text(topic) + listed
        # Behind the topic's name: the first partition's error is that of all.
        await self._ask(ADD_PARTITIONS, 1, body, 4 + 4 + 2 + len(topic.encode()) + 4 + 4)

    async def write(self, topic: str, partitions: Sequence[int], value: bytes) -> None:
        """One record to each."""
        batches = {}
        for partition in partitions:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + 1
            batches[partition] = batch(
                value,
                self._producer_id,
                sequence,
                producer_epoch=self._epoch,
                attributes=IS_TRANSACTIONAL,
            )
        body = produce_many_body(topic, batches, self._name)
        check_produced_all(await self._client.send(PRODUCE, 7, body))

    async def commit(self) -> float:
        """Milliseconds that the answer took."""
        started = time.perf_counter()
        await self._ask(END, 1, self._named + b"\x01", 4)
        return (time.perf_counter() - started) * 1_000

    async def commit_offset(self, group_id: str, topic: str, offset: int) -> float:
        """Of one partition, outside of any transaction; milliseconds that the answer took."""
        head = text(group_id) + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
        place = struct.pack(">iiq", 1, 0, offset) + text("")
        body = head + struct.pack(">i", 1) + text(topic) + place
        started = time.perf_counter()
        await self._ask(OFFSET_COMMIT, 2, body, 4 + 2 + len(topic.encode()) + 4 + 4)
        return (time.perf_counter() - started) * 1_000

    async def _ask(self, key: int, version: int, body: bytes, error_at: int) -> bytes:
        """The answer, whose error is there. Raises: TransactionFailed."""
        ends_at = time.monotonic() + _PATIENCE_S
        while True:
            answer = await self._client.send(key, version, body)
            (error,) = struct.unpack_from(">h", answer, error_at)
            if not error:
                return answer
            if error not in BUSY or time.monotonic() > ends_at:
                raise TransactionFailed(f"API {key} answered {error}")
            self.conflicts += 1
            await asyncio.sleep(_ASK_AGAIN_S)
