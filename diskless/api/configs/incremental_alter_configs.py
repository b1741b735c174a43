"""IncrementalAlterConfigs, key 44, versions 0-1: single configs of topics, set or deleted; lists
appended to and subtracted from.

A topic's changes are made of its configs as they are at that moment, whoever else alters them at
the same time, and all together. See diskless/api/configs/config_resources.py for the rest.
"""

from collections.abc import Awaitable
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.configs.config_resources import Change, alter_resources, refused_resources
from diskless.authorization import AclOperation
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Reply, Request
from diskless.topics.topic_config_entries import ConfigChange, TopicConfigs

KEY: Final = 44


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    def change_of(resource: Any) -> Change:
        changes = [
            ConfigChange(config.name, config.config_operation, config.value)
            for config in resource.configs
        ]
        return lambda before: configs.changed(before, changes)

    async def answer(version: int, asked: Any, refused: Refused) -> Reply:
        responses = await alter_resources(
            topics, asked.resources, change_of, refused, validate_only=asked.validate_only
        )
        return [encode_response(KEY, version, {"responses": responses})]

    def handle(request: Request) -> Awaitable[Reply]:
        asked = decode_request(KEY, request.version, request.body)
        alter = AclOperation.ALTER_CONFIGS
        refused = refused_resources(access, request.client, alter, asked.resources)
        return answer(request.version, asked, refused)

    return Api(
        key=KEY,
        name="IncrementalAlterConfigs",
        min_version=0,
        max_version=1,
        flexible_from=1,
        handler=handle,
    )
