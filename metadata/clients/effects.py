"""Tells when a change of topics, quotas, users or ACLs has reached this broker's catalogue.

A broker that does not lead the catalogue reads a little behind it. Who changed something through
this broker wants to see it here, so the routed client waits for that. Each such operation has a
function: it is called with the catalogue and the request before that is sent, and gives the
question to ask with the answers until it is true.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from metadata import operations as ops
from metadata.access_tokens import AlterAccessToken
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from metadata.messages import brokers
from metadata.messages.access_tokens import ALTER_ACCESS_TOKENS_HERE
from metadata.messages.coordinator import CREATE_PARTITIONS, DELETE_TOPICS
from metadata.replica.replica import Replica
from wal.errors import DisklessError

Errors = Sequence[DisklessError | None]


def _creation(
    catalogue: Replica, topics: Sequence[ops.CreateTopic]
) -> Callable[[Sequence[ops.TopicDescription | DisklessError]], bool]:
    return lambda created: all(
        isinstance(topic, DisklessError) or catalogue.topic_by_id(topic.topic_id) is not None
        for topic in created
    )


def _growth(catalogue: Replica, topics: Sequence[ops.CreatePartitions]) -> Callable[[Errors], bool]:
    def has_partitions(topic: ops.CreatePartitions) -> bool:
        known = catalogue.topic_by_id(topic.topic_id)
        return known is not None and known.partition_count >= topic.partition_count

    return lambda errors: all(
        error is not None or has_partitions(topic)
        for topic, error in zip(topics, errors, strict=True)
    )


def _deletion(catalogue: Replica, topic_ids: Sequence[UUID]) -> Callable[[Errors], bool]:
    return lambda errors: all(
        error is not None or catalogue.topic_by_id(topic_id) is None
        for topic_id, error in zip(topic_ids, errors, strict=True)
    )


def _configs(
    catalogue: Replica, requests: Sequence[ops.AlterTopicConfigs]
) -> Callable[[Sequence[ops.AlteredTopicConfigs]], bool]:
    before = [catalogue.topic_by_id(request.topic_id) for request in requests]
    return lambda answers: all(
        answer.error is not None
        or catalogue.topic_by_id(request.topic_id) is not topic
        or (topic is not None and topic.configs == answer.configs)
        for request, topic, answer in zip(requests, before, answers, strict=True)
    )


def _quotas(
    catalogue: Replica, requests: Sequence[ops.AlterClientQuotas]
) -> Callable[[Errors], bool]:
    """Each is as asked for, or what somebody else made of it in between."""
    before = [catalogue.client_quotas().get(request.entity) or {} for request in requests]

    def are_altered(request: ops.AlterClientQuotas, old: Mapping[str, float]) -> bool:
        known = catalogue.client_quotas().get(request.entity) or {}
        return all(
            known.get(key) == value or known.get(key) != old.get(key)
            for key, value in request.changes.items()
        )

    return lambda errors: all(
        error is not None or are_altered(request, old)
        for request, old, error in zip(requests, before, errors, strict=True)
    )


def _new_acls(catalogue: Replica, rules: Sequence[AclBinding]) -> Callable[[Errors], bool]:
    return lambda errors: all(
        error is not None or rule in catalogue.acls()
        for rule, error in zip(rules, errors, strict=True)
    )


def _deleted_acls(
    catalogue: Replica, filters: Sequence[AclFilter]
) -> Callable[[Sequence[DeletedAcls | DisklessError]], bool]:
    return lambda answers: all(
        isinstance(answer, DisklessError) or catalogue.acls().isdisjoint(answer.rules)
        for answer in answers
    )


def _credentials(
    catalogue: Replica, requests: Sequence[ops.AlterScramCredential]
) -> Callable[[Errors], bool]:
    """Each is as asked for, or what somebody else made of it in between.

    One that came too late to be the first waits for those that came before it: brokers that start
    together all try to add the first user, and none may turn that user away afterwards.
    """
    old = catalogue.scram_credentials()

    def is_altered(request: ops.AlterScramCredential) -> bool:
        key = (request.user, request.mechanism)
        known = catalogue.scram_credentials().get(key)
        return known == request.credential or known != old.get(key)

    def is_seen(request: ops.AlterScramCredential, error: DisklessError | None) -> bool:
        if error is None:
            return is_altered(request)
        return not request.is_first or bool(catalogue.scram_credentials())

    return lambda errors: all(map(is_seen, requests, errors))


def _tokens(catalogue: Replica, requests: Sequence[AlterAccessToken]) -> Callable[[Errors], bool]:
    """Each is there or gone as asked for, unless it was refused."""
    return lambda errors: all(
        error is not None or (one.token.token_id in catalogue.access_tokens()) != one.is_revoked
        for one, error in zip(requests, errors, strict=True)
    )


EFFECTS: Final[Mapping[int, Callable[[Replica, Any], Callable[[Any], bool]]]] = {
    brokers.CREATE_TOPICS.key: _creation,
    CREATE_PARTITIONS.key: _growth,
    DELETE_TOPICS.key: _deletion,
    brokers.ALTER_TOPIC_CONFIGS.key: _configs,
    brokers.ALTER_CLIENT_QUOTAS.key: _quotas,
    brokers.CREATE_ACLS.key: _new_acls,
    brokers.DELETE_ACLS.key: _deleted_acls,
    brokers.ALTER_SCRAM_CREDENTIALS.key: _credentials,
    ALTER_ACCESS_TOKENS_HERE.key: _tokens,
}
"""By the key of the operation."""
