"""Asks a running broker what the `diskless quota` commands want, through a stock Kafka client.

kafka-python has the messages, and no methods that send them; these are here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from diskless.cli.admin_connection import AdminConnection, check_results
from diskless.quotas.quota_entities import CLIENT_ID, IP, USER, quota_entity
from metadata.operations import QuotaEntity
from wal.errors import Rejected


class QuotaRow(NamedTuple):
    """One quota. A name that is None: the default; empty: not of the entity."""

    user: str | None
    client_id: str | None
    ip: str | None
    key: str
    value: float


class QuotaClient(AdminConnection):
    """Quotas of one cluster."""

    def list(self) -> Sequence[QuotaRow]:
        """All quotas, in the broker's order."""
        request = DescribeClientQuotasRequest(components=[], strict=False)
        answer = self._ask(request)
        check_results([answer.to_dict()])
        rows = []
        for entry in answer.entries:
            names = {part.entity_type: part.entity_name for part in entry.entity}
            user, client_id, ip = (names.get(kind, "") for kind in (USER, CLIENT_ID, IP))
            rows += [
                QuotaRow(user, client_id, ip, quota.key, quota.value) for quota in entry.values
            ]
        return rows

    def alter(self, entity: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity, by key; None: to be removed. Raises Rejected."""
        entry = AlterClientQuotasRequest.EntryData(
            entity=[
                AlterClientQuotasRequest.EntryData.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ],
            ops=[
                AlterClientQuotasRequest.EntryData.OpData(
                    key=key, value=0.0 if value is None else value, remove=value is None
                )
                for key, value in changes.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
        answer = self._ask(request)
        check_results([result.to_dict() for result in answer.entries])

    def keys_of(self, entity: Mapping[str, str | None]) -> Sequence[str]:
        """The quotas that an entity has. Raises Rejected when it has none."""
        wanted = quota_entity(entity)
        keys = [row.key for row in self.list() if _entity_of(row) == wanted]
        if not keys:
            raise Rejected(f"no quotas at {self._bootstrap} that could be removed")
        return keys


def _entity_of(row: QuotaRow) -> QuotaEntity:
    parts = {USER: row.user, CLIENT_ID: row.client_id, IP: row.ip}
    return quota_entity({kind: name for kind, name in parts.items() if name != ""})
