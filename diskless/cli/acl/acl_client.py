"""Asks a running broker what the `diskless acl` commands want, through a stock Kafka client.

kafka-python's ACL types have names for every number, and no place for a rule of a later Kafka;
so its messages are used, and the values of `metadata.acls`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from diskless.acls.acl_meaning import Policy
from diskless.acls.acl_settings import AUTHORIZER, EVERYONE, SUPER_USERS, AuthorizerSettings
from diskless.cli.admin_connection import AdminConnection, check_results, translated_errors
from metadata.acls import AclBinding, AclFilter

_MIN_VERSION: Final = 1
"""From which patterns are told."""


class AclClient(AdminConnection):
    """The rules of one cluster. Raises Rejected with the broker's words, and BrokerUnreachable."""

    def rules(self, wanted: AclFilter) -> Sequence[AclBinding]:
        """What the filter finds, by resource."""
        request = DescribeAclsRequest(min_version=_MIN_VERSION, **_filter_fields(wanted))
        answer = self._ask(request)
        check_results([{**answer.to_dict(), "name": "rules"}])
        return [_rule(found, entry) for found in answer.resources for entry in found.acls]

    def add(self, rules: Sequence[AclBinding]) -> None:
        """The rules are there afterwards."""
        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                resource_pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        ]
        answer = self._ask(CreateAclsRequest(min_version=_MIN_VERSION, creations=creations))
        check_results([{**result.to_dict(), "name": "rule"} for result in answer.results])

    def remove(self, filters: Sequence[AclFilter]) -> Sequence[AclBinding]:
        """Returns the rules that were found, which are gone."""
        asked = [DeleteAclsRequest.DeleteAclsFilter(**_filter_fields(one)) for one in filters]
        answer = self._ask(DeleteAclsRequest(min_version=_MIN_VERSION, filters=asked))
        check_results([{**one.to_dict(), "name": "filter"} for one in answer.filter_results])
        return [
            _rule(gone, gone) for result in answer.filter_results for gone in result.matching_acls
        ]

    def policy(self) -> Policy:
        """What a broker has configured beside the rules."""
        with translated_errors(self._bootstrap):
            cluster = self._admin.describe_cluster()
            node_id = str(cluster["brokers"][0]["broker_id"])
            resource = ConfigResource(ConfigResourceType.BROKER, node_id)
            described = self._admin.describe_configs([resource], config_filter="all")
        ((_, found),) = described.items()
        values = {key: str(entry.get("value") or "") for key, entry in found[node_id].items()}
        return AuthorizerSettings(
            authorizer=values[AUTHORIZER],
            super_users=values[SUPER_USERS],
            allows_without_acl=values[EVERYONE] == "true",
        ).policy()


def _rule(resource: Any, entry: Any) -> AclBinding:
    """Of an answer; in some the resource is part of the entry."""
    return AclBinding(
        resource.resource_type,
        resource.resource_name,
        resource.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )


def _filter_fields(wanted: AclFilter) -> Mapping[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
