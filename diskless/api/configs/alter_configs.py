"""AlterConfigs, key 33, versions 0-2: all configs of topics, replaced.

What a request leaves out is as if it had never been set. Kafka has deprecated this API for that;
IncrementalAlterConfigs is the better one. See diskless/api/configs/config_resources.py for the
rest.
"""

from collections.abc import Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.configs.config_resources import (
    Change,
    alter_resources,
    altered_rows,
    refused_resources,
)
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.topics.topic_config_entries import replaced_configs
from wal.errors import DisklessError

KEY: Final = 33


def api(topics: TopicAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        alter = AclOperation.ALTER_CONFIGS
        refused = refused_resources(access, request.client, alter, asked.resources)

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            rows = altered_rows(asked.resources, errors)
            return encode_response(KEY, request.version, {"responses": rows})

        altered = alter_resources(
            topics, asked.resources, _change_of, refused, validate_only=asked.validate_only
        )
        return Deferred(altered, encode, None)

    return Api(key=KEY, name="AlterConfigs", versions=range(3), flexible_from=2, handler=handle)


def _change_of(resource: Any) -> Change:
    values = {config.name: config.value for config in resource.configs}
    return lambda _: replaced_configs(values)
