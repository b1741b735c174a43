"""DescribeClientQuotas, key 48, versions 0-1: the quotas whose entities match, as this broker knows
them.

A component asks for a type: for one name, for the default, or for whatever there is of it, default
included. An entity matches when it has all of these types as asked for; with `strict`, and no other
types. No component: all entities, or with `strict` none, since no entity is without a type.

- Asks for DESCRIBE_CONFIGS on the cluster.
- An error concerns the whole request: INVALID_REQUEST for components that contradict themselves or
  each other, UNSUPPORTED_VERSION for a type that there is not.
- Entities come in the order of their types and names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.errors import UnsupportedVersion, error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import QuotaAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.quotas.quota_entities import ENTITY_TYPES, IP
from diskless.server.registry import Api, Outcome, Request
from metadata.operations import QuotaEntity
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 48

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2

_Wanted = Mapping[str, tuple[int, str | None]]
"""How a type is to match, and the name where it is to be one."""


def api(quotas: QuotaAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        values: Fields
        refused = access.refused_cluster(request.client, AclOperation.DESCRIBE_CONFIGS)
        try:
            if refused is not None:
                raise refused
            wanted = _wanted(asked.components)
        except DisklessError as error:
            values = {
                **error_fields(error),
                "entries": None,
            }
        else:
            known = quotas.client_quotas()
            found = []
            for entity, set_for_it in [*known.items()]:
                if _matches(entity, wanted, strict=asked.strict):
                    found.append((entity, set_for_it))
                yield
            found.sort(key=lambda row: _in_order(row[0]))
            entries = (_entry(entity, set_for_it) for entity, set_for_it in found)
            values = {"error_code": 0, "error_message": None, "entries": entries}
        return (yield from encode_response(KEY, request.version, values))

    return Api(
        key=KEY, name="DescribeClientQuotas", versions=range(2), flexible_from=1, handler=handle
    )


def _wanted(components: Sequence[Any]) -> _Wanted:
    """Raises DisklessError."""
    wanted: dict[str, tuple[int, str | None]] = {}
    for component in components:
        kind, match_type, name = component.entity_type, component.match_type, component.match
        if not kind:
            raise InvalidRequest("an empty entity type")
        if kind in wanted:
            raise InvalidRequest(f"the entity type {kind} occurs more than once")
        if kind not in ENTITY_TYPES:
            raise UnsupportedVersion(f"there are no quotas of entity type {kind!r}")
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            raise InvalidRequest(f"unknown match type {match_type}")
        if (name is not None) != (match_type == _EXACT):
            raise InvalidRequest(
                f"a {kind} is matched by a name of its own, and a default or any one by none"
            )
        wanted[kind] = (match_type, name)
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest("an ip goes together with no user and no client id")
    return wanted


def _matches(entity: QuotaEntity, wanted: _Wanted, *, strict: bool) -> bool:
    parts = dict(entity)
    if strict and len(parts) != len(wanted):
        return False
    return all(
        kind in parts and (match_type == _ANY or parts[kind] == name)
        for kind, (match_type, name) in wanted.items()
    )


def _in_order(entity: QuotaEntity) -> Any:
    return [(kind, name is not None, name or "") for kind, name in entity]


def _entry(entity: QuotaEntity, quotas: Mapping[str, float]) -> Fields:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "values": [{"key": key, "value": value} for key, value in sorted(quotas.items())],
    }
