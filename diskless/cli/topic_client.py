"""Asks a running broker what the `diskless topic` commands want, through a stock Kafka client."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kafka import TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec

from diskless.cli.admin_connection import AdminConnection, check_results, translated_errors
from metadata.records.segment_identity import segment_directory
from wal.errors import Rejected


class TopicRow(NamedTuple):
    """One topic in the list; `records` is log end minus log start, over all partitions."""

    name: str
    partitions: int
    records: int


class PartitionRow(NamedTuple):
    partition: int
    leader: int
    log_start: int
    log_end: int
    last_rolled: int
    """The last offset that is in a Parquet segment; -1 when none is."""

    @property
    def not_rolled(self) -> int:
        """Records behind the last rolled one."""
        return self.log_end - max(self.log_start, self.last_rolled + 1)


class TopicDetails(NamedTuple):
    """`configs`: (name, value, who set it) in name order."""

    topic_id: UUID
    segments: str
    """Where its segments are, below the object store's URL."""
    partitions: Sequence[PartitionRow]
    configs: Sequence[tuple[str, str, str]]


class TopicClient(AdminConnection):
    """Topics of one cluster."""

    def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        with translated_errors(self._bootstrap):
            wanted = {
                "num_partitions": partitions,
                "replication_factor": -1,
                "configs": dict(configs),
            }
            answer = self._admin.create_topics({name: wanted}, raise_errors=False)
            check_results(answer["topics"])

    def alter(self, name: str, *, configs: Mapping[str, str], delete: Sequence[str]) -> None:
        """Set `configs`, and let `delete` follow the broker's defaults again; all or nothing."""
        changes = {
            **{key: (AlterConfigOp.SET, value) for key, value in configs.items()},
            **dict.fromkeys(delete, (AlterConfigOp.DELETE, None)),
        }
        resource = ConfigResource(ConfigResourceType.TOPIC, name, changes)
        with translated_errors(self._bootstrap):
            # The broker says better than the client what is wrong with a key.
            answer = self._admin.alter_configs([resource], raise_on_unknown=False, incremental=True)
        for outcome in answer["topic"].values():
            if outcome != "OK":
                raise Rejected(outcome)

    def grow(self, name: str, *, partitions: int) -> None:
        """Add partitions, so that there are as many."""
        with translated_errors(self._bootstrap):
            answer = self._admin.create_partitions({name: partitions}, raise_errors=False)
        check_results([result.to_dict() for result in answer.results])

    def delete(self, name: str) -> None:
        with translated_errors(self._bootstrap):
            check_results(self._admin.delete_topics([name], raise_errors=False)["topics"])

    def list(self) -> Sequence[TopicRow]:
        """All topics in name order."""
        with translated_errors(self._bootstrap):
            rows = []
            for topic in sorted(self._admin.describe_topics(), key=lambda topic: topic["name"]):
                bounds = self._bounds(topic["name"], topic["partitions"])
                records = sum(row.log_end - row.log_start for row in bounds)
                rows.append(TopicRow(topic["name"], len(bounds), records))
            return rows

    def describe(self, name: str) -> TopicDetails:
        with translated_errors(self._bootstrap):
            (topic,) = self._admin.describe_topics([name])
            if topic.get("error_code"):
                raise Rejected(f"no topic {name} at {self._bootstrap}")
            answer = self._admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all"
            )
            ((_, resources),) = answer.items()
            configs = [
                (key, str(entry.get("value")), str(entry.get("config_source", "")))
                for key, entry in sorted(resources[name].items())
            ]
            topic_id = UUID(str(topic["topic_id"]))
            bounds = self._bounds(name, topic["partitions"])
            return TopicDetails(topic_id, segment_directory(name, topic_id), bounds, configs)

    def _bounds(self, name: str, partitions: Sequence[Mapping[str, int]]) -> Sequence[PartitionRow]:
        ends: dict[OffsetSpec, Mapping[TopicPartition, int]] = {}
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST_TIERED, OffsetSpec.LATEST):
            wanted = {
                TopicPartition(name, partition["partition_index"]): spec for partition in partitions
            }
            listed = self._admin.list_partition_offsets(wanted)
            ends[spec] = {key: value.offset for key, value in listed.items()}
        return [
            PartitionRow(
                index,
                leader,
                ends[OffsetSpec.EARLIEST][TopicPartition(name, index)],
                ends[OffsetSpec.LATEST][TopicPartition(name, index)],
                ends[OffsetSpec.LATEST_TIERED][TopicPartition(name, index)],
            )
            for index, leader in sorted(
                (partition["partition_index"], partition["leader_id"]) for partition in partitions
            )
        ]
