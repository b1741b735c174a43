"""A transactional producer by raw requests: it sends whatever a test wants, whenever it wants."""

import asyncio
from datetime import timedelta
from typing import Any, Final

from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.questions.kafka_raw_client import RawClient

TRANSACTIONAL: Final = 0x10
DEADLINE_S: Final = 60.0

NOT_COORDINATOR: Final = 16
CONCURRENT_TRANSACTIONS: Final = 51
_AGAIN: Final = {14, 15, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS}


class RawProducer:
    """What a client knows of itself; `client` is one connection to the id's coordinator."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client = client
        self.name = name
        self.producer_id = -1
        self.epoch = -1

    async def _until_settled(self, key: int, version: int, **values: Any) -> Any:
        """Ask again as long as the last transaction is being ended, as clients do."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.client.ask(key, version, transactional_id=self.name, **values)
                results = getattr(answer, "results_by_topic_v3_and_below", ())
                codes = [
                    part.partition_error_code
                    for one in results
                    for part in one.results_by_partition
                ]
                code = max(map(int, codes), default=0) or int(getattr(answer, "error_code", 0))
                if code not in _AGAIN:
                    return answer, code
                await asyncio.sleep(0.02)

    async def init(self, timeout: timedelta = timedelta(minutes=1)) -> int:
        answer, code = await self._until_settled(
            22, 4, transaction_timeout=timeout, producer_id=-1, producer_epoch=-1
        )
        if not code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return code

    @property
    def pair(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}

    async def add(self, topic: str, *partitions: int) -> int:
        topics = [{"name": topic, "partitions": [*partitions]}]
        _, code = await self._until_settled(
            24,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        return code

    async def add_group(self, group_id: str) -> int:
        _, code = await self._until_settled(25, 3, group_id=group_id, **self.pair)
        return code

    def batch(self, sequence: int, value: bytes, *, bits: int = TRANSACTIONAL) -> bytes:
        return build_batch(
            [Row(1_700_000_000_000, None, value)],
            attributes=bits,
            producer_epoch=self.epoch,
            producer_id=self.producer_id,
            base_sequence=sequence,
        )

    async def produce(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        version: int = 9,
        name: str | None = None,
        has_id: bool = True,
    ) -> tuple[int, int]:
        """(error code, base offset)"""
        answer = await self.client.ask(
            0,
            version,
            transactional_id=(name or self.name) if has_id else None,
            acks=-1,
            timeout=timedelta(seconds=30),
            topic_data=[
                {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
            ],
        )
        (part,) = answer.responses[0].partition_responses
        return int(part.error_code), part.base_offset

    async def commit_offset(
        self,
        group_id: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        version: int = 3,
        **member: Any,
    ) -> int:
        answer = await self.client.ask(
            28,
            version,
            transactional_id=self.name,
            group_id=group_id,
            **self.pair,
            **{"generation_id": -1, "member_id": "", "group_instance_id": None, **member},
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
        (part,) = answer.topics[0].partitions
        return int(part.error_code)

    async def end(self, *, is_commit: bool, version: int = 3) -> int:
        answer, code = await self._until_settled(26, version, committed=is_commit, **self.pair)
        if version >= 5 and not code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return code

    async def offset(
        self, group_id: str, topic: str, partition: int, *, require_stable: bool
    ) -> tuple[int, int]:
        """(error code, committed offset)"""
        answer = await self.client.ask(
            9,
            7,
            group_id=group_id,
            require_stable=require_stable,
            topics=[{"name": topic, "partition_indexes": [partition]}],
        )
        (part,) = answer.topics[0].partitions
        return int(part.error_code), part.committed_offset
