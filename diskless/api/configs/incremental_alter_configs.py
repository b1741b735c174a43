"""IncrementalAlterConfigs, key 44, versions 0-1: single configs of topics, set or deleted; lists
appended to and subtracted from.

A topic's changes apply to its configs as they are at that moment, all together, also when others
alter them at the same time. See diskless/api/configs/config_resources.py for the rest.
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
from diskless.topics.topic_config_entries import ConfigChange, TopicConfigs
from wal.errors import DisklessError

KEY: Final = 44


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    def change_of(resource: Any) -> Change:
        changes = [
            ConfigChange(config.name, config.config_operation, config.value)
            for config in resource.configs
        ]
        return lambda before: configs.changed(before, changes)

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        alter = AclOperation.ALTER_CONFIGS
        refused = refused_resources(access, request.client, alter, asked.resources)

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            rows = altered_rows(asked.resources, errors)
            return encode_response(KEY, request.version, {"responses": rows})

        altered = alter_resources(
            topics, asked.resources, change_of, refused, validate_only=asked.validate_only
        )
        return Deferred(altered, encode, None)

    return Api(
        key=KEY, name="IncrementalAlterConfigs", versions=range(2), flexible_from=1, handler=handle
    )
