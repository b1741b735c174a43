"""UpdateFeatures, key 57, versions 0-2: what `kafka-features upgrade` and `downgrade` ask for.

- The one feature is `transaction.version`, and it is always 2 (`api_versions.py`): a broker keeps
  numbers of transactions under epochs that name one transaction each, so there is no way back. An
  update to 2 succeeds and changes nothing; any other is INVALID_UPDATE_VERSION, and so is any of
  another feature, with the words of Kafka's controllers.
- As in Kafka from 4.0 on, one update that is refused fails the request, in every version.
- Asks for ALTER on the cluster.
"""

from typing import Any, Final

from diskless.api.access import Access
from diskless.api.cluster.api_versions import FEATURE_LEVELS
from diskless.api.errors import InvalidUpdateVersion, error_fields
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from wal.errors import DisklessError

KEY: Final = 57

_UPGRADE: Final = 1
_UPGRADE_TYPES: Final = range(1, 4)
"""To a higher level, to a lower one that loses nothing, to a lower one whatever it loses."""


def api(access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        error: DisklessError | None = access.refused_cluster(request.client, AclOperation.ALTER)
        for update in asked.feature_updates:
            yield
            if error is None:
                error = _refusal(update)
        done = () if error is not None else asked.feature_updates
        values = {
            **error_fields(error),
            "results": [{"feature": update.feature, **error_fields(None)} for update in done],
        }
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="UpdateFeatures", versions=range(3), flexible_from=0, handler=handle)


def _refusal(update: Any) -> InvalidUpdateVersion | None:
    name, level = update.feature, update.max_version_level
    served = FEATURE_LEVELS.get(name)
    if served == level and getattr(update, "upgrade_type", _UPGRADE) in _UPGRADE_TYPES:
        return None
    if served == level:
        why = "There is no such upgrade type."
    elif level < 0:
        why = "A feature version cannot be less than 0."
    elif served is None:
        why = "This broker does not support the feature."
    else:
        why = f"This broker only supports version {served}."
    return InvalidUpdateVersion(f"Invalid update version {level} for feature {name}. {why}")
