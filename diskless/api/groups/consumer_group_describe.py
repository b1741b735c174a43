"""ConsumerGroupDescribe, key 69, versions 0-1: every group that was asked for is in the answer.

- A classic group is GROUP_ID_NOT_FOUND, as one that is not there; clients ask DescribeGroups then.
- Asks for DESCRIBE on each group, and on the topics that its members have: a group that has others
  as well is TOPIC_AUTHORIZATION_FAILED, without its members.
- Version 1 tells which members speak the classic protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from diskless.api.access import NOT_ASKED, Access, Refused, allowed_rows
from diskless.api.errors import error_fields
from diskless.authorization import AclOperation, ResourceType
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import AssignedTopic, ConsumerGroupMember, DescribedConsumerGroup
from diskless.loop.long_work import Steps, gathered, mapped
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 69

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)

        client, describe = request.client, AclOperation.DESCRIBE
        refused = access.refused_groups(client, describe, asked.group_ids)
        rows = allowed_rows(asked.group_ids, str, refused)
        operations: Mapping[str, int] = {}
        if asked.include_authorized_operations:
            operations = access.operations(client, ResourceType.GROUP, rows.allowed)

        def encode(described: Sequence[DescribedConsumerGroup]) -> ReplySteps:
            shown = yield from mapped(show, described)
            answers = (
                _group(group, operations.get(group.group_id, NOT_ASKED))
                for group in rows.merged(shown, _refused)
            )
            return (yield from encode_response(KEY, version, {"groups": answers}))

        def show(group: DescribedConsumerGroup) -> DescribedConsumerGroup:
            hidden = access.hidden_topics(client, describe, set(_topics_of(group)))
            return _shown(group, hidden)

        return Deferred(gathered(groups.describe_consumer, rows.allowed), encode, None)

    return Api(
        key=KEY, name="ConsumerGroupDescribe", versions=range(2), flexible_from=0, handler=handle
    )


def _refused(group_id: str, error: DisklessError) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(group_id, error=error)


def _topics_of(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        for topic in (*member.assigned, *member.target):
            yield topic.topic_name


def _shown(group: DescribedConsumerGroup, hidden: Refused) -> DescribedConsumerGroup:
    """The group, or why it is not shown."""
    error = next((hidden[name] for name in _topics_of(group) if name in hidden), None)
    return group if error is None else _refused(group.group_id, error)


def _group(group: DescribedConsumerGroup, operations: int) -> Fields:
    return {
        **error_fields(group.error),
        "group_id": group.group_id,
        "group_state": group.state if group.error is None else "",
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": map(_member, group.members),
        "authorized_operations": NOT_ASKED if group.error else operations,
    }


def _member(member: ConsumerGroupMember) -> Fields:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topic_names,
        "subscribed_topic_regex": member.topic_pattern,
        "assignment": _assignment(member.assigned),
        "target_assignment": _assignment(member.target),
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _assignment(topics: Sequence[AssignedTopic]) -> Fields:
    return {
        "topic_partitions": [
            {
                "topic_id": topic.topic_id,
                "topic_name": topic.topic_name,
                "partitions": topic.partitions,
            }
            for topic in topics
        ]
    }
