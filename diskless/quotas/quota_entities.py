"""Says whom a quota can be for, which quotas there are, and what their values may be.

An entity is a user, a client id, or both together; each part may be the default of all that have no
quotas of their own. An ip address is an entity too, by itself.

| key | of |
|---|---|
| producer_byte_rate | user, client-id: bytes a second of Produce requests |
| consumer_byte_rate | user, client-id: bytes a second of Fetch answers |
| request_percentage | user, client-id: not served |
| controller_mutation_rate | user, client-id: not served |
| connection_creation_rate | ip: not served; `max.connections.per.ip` limits an address |

What is not served is INVALID_REQUEST, by name, so that nobody believes in a limit that is not
there. request_percentage is a share of the time of Kafka's threads. What a client costs here is
spread over one event loop, threads that read and write for many clients at once, and the object
store; a number for some of that would not be what was asked for.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final

from metadata.operations import AlterClientQuotas, QuotaEntity
from wal.errors import InvalidRequest

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"

_CLIENT_KEYS: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})
_NOT_SERVED: Final[Mapping[str, Collection[str]]] = {
    "request_percentage": (USER, CLIENT_ID),
    "controller_mutation_rate": (USER, CLIENT_ID),
    "connection_creation_rate": (IP,),
}

_RATE_MAX: Final = float(2**63 - 1)
_FRACTION_MAX: Final = 1e-6
"""Clients compute with floating point numbers; what is a whole number to them is one."""
_NAME_BYTES_MAX: Final = 32_767
"""More than a request header can hold of a client id."""


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity of these types and names; no name: the default."""
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


def entity_text(entity: QuotaEntity) -> str:
    """For people: `client-id=a, user=(default)`."""
    return ", ".join(f"{kind}={'(default)' if name is None else name}" for kind, name in entity)


def check_quotas(request: AlterClientQuotas) -> AlterClientQuotas:
    """`request` with values that are whole numbers. Raises InvalidRequest.

    A key can be removed whatever it is, since it may have been set by another release.
    """
    check_entity(request.entity)
    changes = {
        key: None if value is None else _checked_value(request.entity, key, value)
        for key, value in request.changes.items()
    }
    return AlterClientQuotas(entity=request.entity, changes=changes)


def check_entity(entity: QuotaEntity) -> None:
    """Raises InvalidRequest."""
    parts = dict(entity)
    if not parts or len(parts) < len(entity):
        raise InvalidRequest("a quota entity names a user, a client id or an ip, each once")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise InvalidRequest(f"there are no quotas of entity type {kind!r}")
        if name == "":
            raise InvalidRequest(f"an empty {kind} cannot have quotas; the default has no name")
        if name is not None and len(name.encode()) > _NAME_BYTES_MAX:
            raise InvalidRequest(f"a {kind} of more than {_NAME_BYTES_MAX} bytes")
    if IP in parts and len(parts) > 1:
        raise InvalidRequest("an ip entity goes together with no user and no client id")


def _checked_value(entity: QuotaEntity, key: str, value: float) -> float:
    kinds = {kind for kind, _ in entity}
    if key in _NOT_SERVED and kinds.intersection(_NOT_SERVED[key]):
        raise InvalidRequest(f"the quota {key} is not served by this broker")
    if key not in _CLIENT_KEYS or IP in kinds:
        raise InvalidRequest(f"there is no quota {key!r} of {entity_text(entity)}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"the quota {key} must be greater than 0, not {value:g}")
    if value > _RATE_MAX:
        raise InvalidRequest(f"the quota {key} is too large: {value:g}")
    whole = float(round(value))
    if abs(value - whole) > _FRACTION_MAX or not whole:
        raise InvalidRequest(f"the quota {key} must be a whole number of bytes, not {value!r}")
    return whole
