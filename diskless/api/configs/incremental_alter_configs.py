"""IncrementalAlterConfigs, key 44, versions 0-1: single configs of topics, set or deleted; lists
appended to and subtracted from.

A topic's changes apply to its configs as they are at that moment, all together, also when others
alter them at the same time. See diskless/api/configs/config_resources.py for the rest.
"""

from typing import Any, Final

from diskless.api.access import Access
from diskless.api.configs.config_resources import Change, altering
from diskless.ports import TopicAdmin
from diskless.server.registry import Api
from diskless.topics.topic_config_entries import ConfigChange, TopicConfigs

KEY: Final = 44


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    def change_of(resource: Any) -> Change:
        changes = [
            ConfigChange(config.name, config.config_operation, config.value)
            for config in resource.configs
        ]
        return lambda before: configs.changed(before, changes)

    handle = altering(KEY, "IncrementalAlterConfigs", topics, access, change_of)
    return Api(
        key=KEY, name="IncrementalAlterConfigs", versions=range(2), flexible_from=1, handler=handle
    )
