"""What the coordinator of the catalogue alone decides: configs, quotas, users, rules, tables.

Every coordinator has one, since it may be the catalogue's; the routing asks no other
(`Address.CATALOGUE` in metadata/messages/codec.py). All of it raises CommitFailed, NotCoordinator
and CommitOutcomeUnknown; what else goes wrong is in the entries of an answer.
"""

from collections.abc import Sequence
from typing import Final

from metadata import operations as ops
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from metadata.coordinator.pipeline import Pipeline
from metadata.replica.replica import Replica
from metadata.rules.acls import decide_create_acls, decide_delete_acls
from metadata.rules.quotas import decide_alter_client_quotas
from metadata.rules.tables import decide_commit_tables, described, has_table
from metadata.rules.topics import decide_alter_topic_configs
from metadata.rules.typed import decide_set_topic_columns
from metadata.rules.users import decide_alter_scram_credentials
from metadata.table_operations import CommitTable, ListTables, TableCommit, TableDescription
from wal.clock import Clock
from wal.errors import DisklessError


class Catalogue:
    """Belongs to one coordinator; answers are in the order of the requests."""

    def __init__(self, pipeline: Pipeline, replica: Replica, *, clock: Clock) -> None:
        self._perform: Final = pipeline.perform
        self._replica = replica
        self._clock = clock

    async def alter_topic_configs(
        self, requests: Sequence[ops.AlterTopicConfigs]
    ) -> Sequence[ops.AlteredTopicConfigs]:
        """An entry may be UnknownTopicId."""
        return await self._perform(lambda view, _: decide_alter_topic_configs(view, requests))

    async def set_topic_columns(
        self, requests: Sequence[ops.SetTopicColumns]
    ) -> Sequence[DisklessError | None]:
        """An entry may be UnknownTopicId or Rejected."""
        return await self._perform(lambda view, _: decide_set_topic_columns(view, requests))

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas]
    ) -> Sequence[DisklessError | None]:
        """An entry may be PolicyViolation."""
        return await self._perform(lambda view, _: decide_alter_client_quotas(view, requests))

    async def create_acls(self, rules: Sequence[AclBinding]) -> Sequence[DisklessError | None]:
        """An entry may be PolicyViolation."""
        return await self._perform(lambda view, _: decide_create_acls(view, rules))

    async def delete_acls(
        self, filters: Sequence[AclFilter]
    ) -> Sequence[DeletedAcls | DisklessError]:
        """An entry has the rules that a filter found, which are gone."""
        return await self._perform(lambda view, _: decide_delete_acls(view, filters))

    async def alter_scram_credentials(
        self, requests: Sequence[ops.AlterScramCredential]
    ) -> Sequence[DisklessError | None]:
        """An entry may be UnknownCredential, PolicyViolation."""
        return await self._perform(lambda view, _: decide_alter_scram_credentials(view, requests))

    def list_tables(self, asked: ListTables) -> Sequence[TableDescription]:
        """Topics that are tables, by name."""
        now_ms = self._clock.now_ms()
        return [
            described(topic, self._replica.table(topic.topic_id), now_ms)
            for name, topic in sorted(self._replica.topics().items())
            if has_table(topic.configs) and asked.wants(name)
        ]

    async def commit_tables(self, requests: Sequence[CommitTable]) -> Sequence[TableCommit]:
        """An entry may be UnknownTopicId, Rejected, InvalidRequest."""
        return await self._perform(
            lambda view, now_ms: decide_commit_tables(view, requests, now_ms)
        )
