"""A transactional producer of the classic protocol that sends what it is told, when it is told.

It numbers nothing and looks after nothing, so it can do what clients do when they are late: repeat
what was done, send what belongs to a transaction that has ended, go on after another took over.
Each method gives the error code of the answer; 0 is none.
"""

import asyncio
from datetime import timedelta
from typing import Any, Final, Self

from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.questions.kafka_raw_client import RawClient

CONCURRENT_TRANSACTIONS: Final = 51
COORDINATOR_IS_BUSY: Final = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
RETRIABLE: Final = frozenset({3, 6, 19})
"""What a producer sends again."""
_TRANSACTIONAL: Final = 0x10
_ASK_AGAIN_S: Final = 0.02
_ATTEMPTS: Final = 3_000


class RawProducer:
    """One producer of one transactional id, from when its id was given to it."""

    def __init__(self, client: RawClient, name: str, producer_id: int, producer_epoch: int) -> None:
        self.name = name
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._client = client

    @classmethod
    async def init(cls, client: RawClient, name: str) -> Self:
        """The next producer of this name. Waits until the one before it is done with."""
        answer = await _calm(client, 22, 4, **_initial(name, -1, -1))
        assert answer.error_code == 0, answer
        return cls(client, name, answer.producer_id, answer.producer_epoch)

    async def init_again(self) -> int:
        """Ask for another epoch, as who still is what it was."""
        asked = _initial(self.name, self.producer_id, self.producer_epoch)
        return int((await _calm(self._client, 22, 4, **asked)).error_code)

    async def add(self, topic: str, partition: int = 0) -> int:
        for _ in range(_ATTEMPTS):
            answer = await self._client.ask(
                24,
                3,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [partition]}],
            )
            ((row,),) = (one.results_by_partition for one in answer.results_by_topic_v3_and_below)
            if int(row.partition_error_code) not in COORDINATOR_IS_BUSY:
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        return int(row.partition_error_code)

    async def produce(
        self, topic: str, sequence: int, value: bytes = b"value", partition: int = 0
    ) -> int:
        """One record."""
        batch = build_batch(
            [Row(value=value)],
            attributes=_TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
        )
        for _ in range(_ATTEMPTS):
            answer = await self._client.ask(
                0,
                9,
                transactional_id=self.name,
                acks=-1,
                timeout=timedelta(seconds=60),
                topic_data=[
                    {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
                ],
            )
            ((row,),) = (one.partition_responses for one in answer.responses)
            if int(row.error_code) not in RETRIABLE:
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        return int(row.error_code)

    async def add_group(self, group_id: str) -> int:
        answer = await _calm(self._client, 25, 3, **self._named(), group_id=group_id)
        return int(answer.error_code)

    async def commit_offset(self, group_id: str, topic: str, offset: int) -> int:
        """Of partition 0, as a consumer that is in no group."""
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        answer = await self._client.ask(
            28,
            3,
            **self._named(),
            group_id=group_id,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        ((row,),) = (one.partitions for one in answer.topics)
        return int(row.error_code)

    async def end(self, *, is_commit: bool) -> int:
        answer = await _calm(self._client, 26, 3, **self._named(), committed=is_commit)
        return int(answer.error_code)

    def _named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
        }


async def find_coordinator(client: RawClient, name: str) -> None:
    """Return when the coordinator of this transactional id answers."""
    for _ in range(_ATTEMPTS):
        answer = await client.ask(10, 3, key=name, key_type=1)
        if answer.error_code == 0:
            return
        await asyncio.sleep(_ASK_AGAIN_S)
    raise AssertionError(answer)


def _initial(name: str, producer_id: int, producer_epoch: int) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "transaction_timeout": timedelta(seconds=60),
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }


async def _calm(client: RawClient, key: int, version: int, **values: Any) -> Any:
    """Ask until the coordinator is not busy with the transaction before."""
    for _ in range(_ATTEMPTS):
        answer = await client.ask(key, version, **values)
        if int(answer.error_code) not in COORDINATOR_IS_BUSY:
            break
        await asyncio.sleep(_ASK_AGAIN_S)
    return answer
