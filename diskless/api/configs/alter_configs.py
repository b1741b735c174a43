"""AlterConfigs, key 33, versions 0-2: all configs of topics, replaced.

What a request leaves out is as if it had never been set. Kafka has deprecated this API for that;
IncrementalAlterConfigs is the better one. See diskless/api/configs/config_resources.py for the
rest.
"""

from typing import Any, Final

from diskless.api.access import Access
from diskless.api.configs.config_resources import Change, altering
from diskless.ports import TopicAdmin
from diskless.server.registry import Api
from diskless.topics.topic_config_entries import replaced_configs

KEY: Final = 33


def api(topics: TopicAdmin, access: Access) -> Api:
    handle = altering(KEY, "AlterConfigs", topics, access, _change_of)
    return Api(key=KEY, name="AlterConfigs", versions=range(3), flexible_from=2, handler=handle)


def _change_of(resource: Any) -> Change:
    values = {config.name: config.value for config in resource.configs}
    return lambda _: replaced_configs(values)
