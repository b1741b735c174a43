"""Decides quotas of clients; pure functions over the speculative view.

They are the catalogue's. An entity is whatever names it: changes of one key leave the others of the
same entity alone, and an entity without quotas is forgotten.
"""

from collections.abc import Sequence
from typing import Final

from metadata.operations import AlterClientQuotas
from metadata.records.control import ClientQuotasRecord
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import DisklessError, PolicyViolation

QUOTA_ENTITIES_MAX: Final = 10_000
"""Every broker keeps all of them in memory, and a copy is made at every change."""


def decide_alter_client_quotas(
    view: SpeculativeView, requests: Sequence[AlterClientQuotas]
) -> Decision[Sequence[DisklessError | None]]:
    """A record for each entity whose quotas are others afterwards."""
    records: list[ClientQuotasRecord] = []
    answer: list[DisklessError | None] = []
    count = view.quota_entity_count()
    for request in requests:
        before = view.quotas(request.entity) or {}
        merged = {**before, **request.changes}
        after = {key: value for key, value in merged.items() if value is not None}
        grown = count + bool(after) - bool(before)
        if grown > max(count, QUOTA_ENTITIES_MAX):
            answer.append(PolicyViolation(f"{QUOTA_ENTITIES_MAX} entities have quotas already"))
            continue
        if after != before:
            count = grown
            view.put_quotas(request.entity, after or None)
            records.append(ClientQuotasRecord(entity=request.entity, quotas=after))
        answer.append(None)
    return Decision(records, answer)
