"""AlterClientQuotas, key 49, versions 0-1: quotas of users, client ids and addresses, by key.

- An entry is refused as a whole, and does not hinder the others. What is checked, and which quotas
  there are: diskless/quotas/quota_entities.py.
- An entity that a request names twice, and a key that an entry names twice, is INVALID_REQUEST.
- An alteration is durable and in force on this broker when it is answered, on others as soon as
  they hear of it (diskless.metadata.follow.interval.ms at most).
- Asks for ALTER_CONFIGS on the cluster.
- More than 10,000 entities with quotas are POLICY_VIOLATION; Kafka has no such limit.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.answers import each_answered, with_answers
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, mapped
from diskless.ports import QuotaAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.quotas.quota_entities import check_quotas, entity_text, quota_entity
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import AlterClientQuotas, QuotaEntity
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 49


def api(quotas: QuotaAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        outcomes: Sequence[AlterClientQuotas | DisklessError]
        refused = access.refused_cluster(request.client, AclOperation.ALTER_CONFIGS)
        if refused is not None:
            outcomes = [refused] * len(asked.entries)
        else:
            outcomes = yield from _checked(asked.entries)
        wanted = [outcome for outcome in outcomes if isinstance(outcome, AlterClientQuotas)]

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            found = with_answers(outcomes, errors)
            entries: Iterator[Fields] = map(_entry, asked.entries, found)
            if not asked.validate_only:
                entries = access.noted(request.client, "AlterClientQuotas", entries, _entity_of_row)
            return encode_response(KEY, request.version, {"entries": entries})

        if asked.validate_only:
            return (yield from encode([None] * len(wanted)))
        request.changes = len(wanted)
        return Deferred(each_answered(quotas.alter_client_quotas, wanted), encode, None)

    return Api(
        key=KEY, name="AlterClientQuotas", versions=range(2), flexible_from=1, handler=handle
    )


def _entity_of_row(row: Fields) -> str:
    """How the audit log names it."""
    parts = {part["entity_type"]: part["entity_name"] for part in row["entity"]}
    return f"quota:{entity_text(quota_entity(parts))}"


def _entry(entry: Any, error: DisklessError | None) -> Fields:
    return {
        **error_fields(error),
        "entity": [
            {"entity_type": part.entity_type, "entity_name": part.entity_name}
            for part in entry.entity
        ],
    }


def _checked(entries: Sequence[Any]) -> Steps[Sequence[AlterClientQuotas | DisklessError]]:
    """What each entry asks for, or why it is refused."""
    outcomes: list[AlterClientQuotas | DisklessError] = []
    entities = yield from mapped(_entity, entries)
    named = Counter(entity for entity in entities if not isinstance(entity, DisklessError))
    for entry, entity in zip(entries, entities, strict=True):
        if isinstance(entity, DisklessError):
            outcomes.append(entity)
        elif named[entity] > 1:
            text = entity_text(entity)
            outcomes.append(InvalidRequest(f"{text} occurs more than once in the request"))
        else:
            outcomes.append(_alteration(entity, entry.ops))
        yield
    return outcomes


def _entity(entry: Any) -> QuotaEntity | DisklessError:
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    if len(parts) < len(entry.entity):
        return InvalidRequest("an entity type occurs more than once in an entity")
    return quota_entity(parts)


def _alteration(entity: QuotaEntity, ops: Sequence[Any]) -> AlterClientQuotas | DisklessError:
    changes = {op.key: None if op.remove else op.value for op in ops}
    if len(changes) < len(ops):
        return InvalidRequest(f"a quota of {entity_text(entity)} occurs more than once")
    try:
        return check_quotas(AlterClientQuotas(entity=entity, changes=changes))
    except DisklessError as error:
        return error
