"""ApiVersions, key 18, versions 0-4: what this broker serves.

- Answers always under response header v0, so that a client that knows nothing yet can read it.
- A version above ours is answered in the form of version 0 with UNSUPPORTED_VERSION and the range
  of this API; clients try again within it. The body of such a request is not looked at.
- Produce is advertised from 0 although 3 is the first version served: librdkafka before 2.11 takes
  a higher minimum for a broker without gzip and lz4 and quietly sends uncompressed batches
  (KAFKA-18659).
- The one feature is `transaction.version` 2, from version 3 on: clients switch their transaction
  protocol on it, not on version ranges. No other level of it is supported (`update_features.py`).
"""

import re
from collections.abc import Mapping
from typing import Final

from diskless.api.errors import UnsupportedVersion, kafka_code
from diskless.loop.long_work import Steps
from diskless.ports import Buffer
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, ApiRegistry, Outcome, ReplySteps, Request
from wal.errors import InvalidRequest

KEY: Final = 18
_MAX_VERSION: Final = 4

FEATURE_LEVELS: Final[Mapping[str, int]] = {"transaction.version": 2}
"""What every broker is at, by feature; it is both the lowest and the highest level."""
_SUPPORTED: Final = [
    {"name": name, "min_version": level, "max_version": level}
    for name, level in FEATURE_LEVELS.items()
]
_FINALIZED: Final = [
    {"name": name, "min_version_level": level, "max_version_level": level}
    for name, level in FEATURE_LEVELS.items()
]

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


def api(registry: ApiRegistry) -> Api:
    """Lists what `registry` holds at the time of each request."""
    written: dict[tuple[int, int], Buffer] = {}
    """Answers by version and number of APIs. Every connection begins with this request."""

    def handle(request: Request) -> Steps[Outcome]:
        if request.version > _MAX_VERSION:
            return (
                yield from _reply(
                    0,
                    {
                        "error_code": kafka_code(UnsupportedVersion()),
                        "api_keys": [_range(KEY, 0, _MAX_VERSION)],
                    },
                )
            )
        if request.version >= 3:
            asked = yield from decode_request(KEY, request.version, request.body)
            names = (asked.client_software_name, asked.client_software_version)
            if not all(_SOFTWARE.fullmatch(name) for name in names):
                refused = {"error_code": kafka_code(InvalidRequest()), "api_keys": []}
                return (yield from _reply(request.version, refused))
        answer = written.get((request.version, len(registry)))
        if answer is None:
            served = [
                _range(item.key, _advertised_min(item), item.max_version)
                for item in registry
                if item.is_advertised
            ]
            values = {
                "error_code": 0,
                "api_keys": served,
                "supported_features": _SUPPORTED,
                "finalized_features_epoch": 0,
                "finalized_features": _FINALIZED,
            }
            (answer,) = yield from encode_response(KEY, request.version, values)
            written[request.version, len(registry)] = answer
        return [answer]

    return Api(
        key=KEY,
        name="ApiVersions",
        versions=range(_MAX_VERSION + 1),
        flexible_from=3,
        handler=handle,
        answers_any_version=True,
    )


def _reply(version: int, values: Fields) -> ReplySteps:
    return encode_response(KEY, version, values)


def _range(key: int, min_version: int, max_version: int) -> Fields:
    return {"api_key": key, "min_version": min_version, "max_version": max_version}


def _advertised_min(item: Api) -> int:
    if item.advertised_min_version is None:
        return item.min_version
    return item.advertised_min_version
