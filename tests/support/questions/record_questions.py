"""What is asked of a broker in each version about records and transactions."""

import warnings
from typing import Any

with warnings.catch_warnings():
    # As in tests/support/clients/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.questions.asker import NOTHING, TOPIC, Asker, a_name


class RecordQuestions(Asker):
    """Produce, Fetch and offsets; then transactions."""

    # -- records

    def produce(self, version: int) -> None:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for offset in range(3):
            builder.append(offset, timestamp=1_000, key=b"k", value=b"v", headers=[])
        topic = a_name("produced") if version < 13 else TOPIC
        if version < 13:
            self._create(topic)
        answer = self._ask(
            0,
            version,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": self._topic_id,
                    "partition_data": [{"index": 0, "records": bytes(builder.build())}],
                }
            ],
        )
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == NOTHING
        assert partition.base_offset == 0 if version < 13 else partition.base_offset >= 10

    def fetch(self, version: int) -> None:
        answer = self._ask(
            1,
            version,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                {
                    **self._topic("topic"),
                    "partitions": [
                        {
                            "partition": 0,
                            "fetch_offset": 2,
                            "current_leader_epoch": -1,
                            "last_fetched_epoch": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
        )
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code, partition.high_watermark >= 10) == (NOTHING, True)
        assert b"v" in bytes(partition.records)

    def list_offsets(self, version: int) -> None:
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1_004}
        answer = self._ask(
            2,
            version,
            replica_id=-1,
            timeout_ms=1_000,
            topics=[{"name": TOPIC, "partitions": [asked]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.offset) == (NOTHING, 4)
        assert partition.timestamp == 1_004

    def offset_for_leader_epoch(self, version: int) -> None:
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        answer = self._ask(
            23, version, replica_id=-1, topics=[{"topic": TOPIC, "partitions": [asked]}]
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.end_offset >= 10) == (NOTHING, True)

    def delete_records(self, version: int) -> None:
        topic = self._create(a_name("emptied"))
        answer = self._ask(
            21,
            version,
            timeout_ms=5_000,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.low_watermark) == (NOTHING, 0)

    def init_producer_id(self, version: int) -> None:
        answer = self._ask(
            22,
            version,
            transactional_id=None,
            transaction_timeout_ms=1_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code == NOTHING
        assert (answer.producer_id >= 0, answer.producer_epoch) == (True, 0)
        self._producer(version)

    # -- transactions

    def _producer(self, version: int = 4) -> dict[str, Any]:
        """Of a new transactional id."""
        name = a_name("id")
        answer = self._ask(
            22,
            version,
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert (answer.error_code, answer.producer_epoch) == (NOTHING, 0)
        return {
            "transactional_id": name,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    def _begun(self, version: int = 3) -> dict[str, Any]:
        """Of a new transactional id with an open transaction."""
        producer = self._producer()
        topics = [{"name": TOPIC, "partitions": [0]}]
        answer = self._ask(
            24,
            version,
            **{f"v3_and_below_{name}": value for name, value in producer.items()},
            v3_and_below_topics=topics,
            transactions=[{**producer, "verify_only": False, "topics": topics}],
        )
        if version < 4:
            (topic,) = answer.results_by_topic_v3_and_below
        else:
            (topic,) = answer.results_by_transaction[0].topic_results
        (partition,) = topic.results_by_partition
        assert (topic.name, partition.partition_index) == (TOPIC, 0)
        assert partition.partition_error_code == NOTHING
        return producer

    def _end(self, producer: dict[str, Any], version: int = 3) -> None:
        answer = self._ask(26, version, **producer, committed=version % 2 == 0)
        assert answer.error_code == NOTHING

    def add_partitions_to_txn(self, version: int) -> None:
        self._end(self._begun(version))

    def add_offsets_to_txn(self, version: int) -> None:
        producer = self._producer()
        answer = self._ask(25, version, **producer, group_id=a_name("group"))
        assert answer.error_code == NOTHING
        self._end(producer)

    def txn_offset_commit(self, version: int) -> None:
        producer, group = self._producer(), {"group_id": a_name("group")}
        assert self._ask(25, 3, **producer, **group).error_code == NOTHING
        offset = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        nobody = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": TOPIC, "partitions": [offset]}]
        answer = self._ask(28, version, **producer, **group, **nobody, topics=topics)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == NOTHING
        self._end(producer)

    def end_txn(self, version: int) -> None:
        self._end(self._begun(), version)

    def describe_transactions(self, version: int) -> None:
        producer = self._begun()
        answer = self._ask(65, version, transactional_ids=[producer["transactional_id"]])
        (found,) = answer.transaction_states
        assert (found.error_code, found.transaction_state) == (NOTHING, "Ongoing")
        assert (found.producer_id, found.transaction_timeout_ms) == (
            producer["producer_id"],
            60_000,
        )
        assert [(topic.topic, [*topic.partitions]) for topic in found.topics] == [(TOPIC, [0])]
        self._end(producer)

    def list_transactions(self, version: int) -> None:
        producer = self._begun()
        answer = self._ask(
            66,
            version,
            state_filters=["Ongoing"],
            producer_id_filters=[producer["producer_id"]],
            duration_filter=-1,
            transactional_id_pattern="id-.*",
        )
        assert (answer.error_code, [*answer.unknown_state_filters]) == (NOTHING, [])
        (found,) = answer.transaction_states
        assert found.transactional_id == producer["transactional_id"]
        assert (found.producer_id, found.transaction_state) == (producer["producer_id"], "Ongoing")
        self._end(producer)
