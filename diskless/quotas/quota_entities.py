"""Says whom a quota can be for, which quotas there are, and what their values may be.

An entity is a user, a client id, or both together; each part may be the default of all that have no
quotas of their own. An ip address is an entity too, by itself.

| key | of |
|---|---|
| producer_byte_rate | user, client-id: bytes a second of Produce requests |
| consumer_byte_rate | user, client-id: bytes a second of Fetch answers |
| request_percentage | user, client-id: processor time of the event loop; 100 is all of it |
| controller_mutation_rate | user, client-id: partitions created and deleted a second |
| connection_creation_rate | ip: connections a second |

Any other key is INVALID_REQUEST, by name, so that nobody believes in a limit that is not there. So
is an ip that is no address: names are not looked up.
"""

import ipaddress
import math
from collections.abc import Mapping
from typing import Final

from metadata.operations import AlterClientQuotas, QuotaEntity
from wal.errors import InvalidRequest

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_WHOLE: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})
"""Quotas that are whole numbers."""
_CLIENT_KEYS: Final = frozenset(
    {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
)
_IP_KEYS: Final = frozenset({CONNECTION_CREATION_RATE})

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
    """`request` with values that are checked, and whole where they must be. Raises InvalidRequest.

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
    if parts.get(IP) is not None and known_address(parts[IP]) != parts[IP]:
        raise InvalidRequest(f"{parts[IP]!r} is no address, as a socket writes it")


def known_address(text: str | None) -> str | None:
    """An address as connections have it; None: it is none."""
    try:
        known = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    mapped = known.ipv4_mapped if isinstance(known, ipaddress.IPv6Address) else None
    return str(mapped or known)


def _checked_value(entity: QuotaEntity, key: str, value: float) -> float:
    is_address = IP in {kind for kind, _ in entity}
    if key not in (_IP_KEYS if is_address else _CLIENT_KEYS):
        raise InvalidRequest(f"there is no quota {key!r} of {entity_text(entity)}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequest(f"the quota {key} must be greater than 0, not {value:g}")
    if value > _RATE_MAX:
        raise InvalidRequest(f"the quota {key} is too large: {value:g}")
    if key not in _WHOLE:
        return value
    whole = float(round(value))
    if abs(value - whole) > _FRACTION_MAX or not whole:
        raise InvalidRequest(f"the quota {key} must be a whole number, not {value!r}")
    return whole
