"""Asks the authorizer for the handlers, and holds the errors that they answer with.

A handler that takes several rows asks once for all of their names, and gets what is refused: a
mapping that is nearly always the same empty one. `allowed_rows` then takes the rows apart, and puts
the answers together again in the order of the request:

    refused = access.refused_topics(request.client, AclOperation.READ, names)
    rows = allowed_rows(asked_rows, name_of, refused)
    answers = rows.merged(await call(rows.allowed), lambda row, error: an_answer)

What is refused goes no further than the API. The text of an error does not tell names: a client
that named a topic by id may not be allowed to know what it is called.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from diskless.api.errors import GroupAuthorizationFailed, TransactionalIdAuthorizationFailed
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclOperation,
    Authorizer,
    ResourceType,
)
from diskless.ports import NOTHING_REFUSED, ClientInfo, TopicsById
from wal.errors import ClusterAuthorizationFailed, DisklessError, TopicAuthorizationFailed

_Row = TypeVar("_Row")
_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", bound=Mapping[str, Any])

Refused = Mapping[Hashable, DisklessError]
"""What may not be, of what was asked for, and why."""


NOT_ASKED: Final = -(2**31)
"""Authorized operations when the request did not ask for them."""


class Access:
    """An authorizer, asked in the words of the APIs."""

    def __init__(self, authorizer: Authorizer, audit: Audit = UNNOTED) -> None:
        """`audit` notes what is refused, and does not note what is only hidden."""
        self._authorizer = authorizer
        self.audit: Final = audit

    def refused_topics(
        self,
        client: ClientInfo,
        operation: AclOperation,
        names: Iterable[str],
        *,
        or_cluster: AclOperation | None = None,
    ) -> Refused:
        """By name; nothing for who may do `or_cluster` to the cluster."""
        refused = self.hidden_topics(client, operation, names, or_cluster=or_cluster)
        if refused:
            self.audit.refused(client, operation, ResourceType.TOPIC, [*map(str, refused)])
        return refused

    def hidden_topics(
        self,
        client: ClientInfo,
        operation: AclOperation,
        names: Iterable[str],
        *,
        or_cluster: AclOperation | None = None,
    ) -> Refused:
        """The same of topics that nobody asked about by themselves: answers leave them out."""
        denied = self._authorizer.denied(client, operation, ResourceType.TOPIC, names)
        if not denied:
            return NOTHING_REFUSED
        if or_cluster is not None and self.may_cluster(client, or_cluster):
            return NOTHING_REFUSED
        return dict.fromkeys(denied, TopicAuthorizationFailed(_text(client, operation, "topic")))

    def grant(self, client: ClientInfo) -> object:
        """Stands for who asks, and for the rules: while it is equal, answers are the same."""
        return client.user, client.host, self._authorizer.version()

    def refused_named(
        self,
        client: ClientInfo,
        operation: AclOperation,
        named: Collection[str | UUID],
        topics: TopicsById,
    ) -> Refused:
        """Topics as a request names them, by name or id; an id of no topic is not refused here."""
        names = (name for item in named if (name := topic_name(item, topics)) is not None)
        refused = self.refused_topics(client, operation, names)
        if not refused:
            return NOTHING_REFUSED
        return {
            item: refused[name]
            for item in named
            if (name := topic_name(item, topics)) is not None and name in refused
        }

    def described_topics(self, client: ClientInfo, names: frozenset[str]) -> frozenset[str]:
        """Those of `names` that `client` may know of."""
        denied = self._authorizer.denied(client, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
        return names.difference(denied)

    def refused_groups(
        self, client: ClientInfo, operation: AclOperation, group_ids: Iterable[str]
    ) -> Refused:
        """By group id."""
        refused = self.hidden_groups(client, operation, group_ids)
        if refused:
            self.audit.refused(client, operation, ResourceType.GROUP, [*map(str, refused)])
        return refused

    def hidden_groups(
        self, client: ClientInfo, operation: AclOperation, group_ids: Iterable[str]
    ) -> Refused:
        """The same of groups that nobody asked about by themselves."""
        denied = self._authorizer.denied(client, operation, ResourceType.GROUP, group_ids)
        if not denied:
            return NOTHING_REFUSED
        return dict.fromkeys(denied, GroupAuthorizationFailed(_text(client, operation, "group")))

    def refused_group(
        self, client: ClientInfo, operation: AclOperation, group_id: str
    ) -> DisklessError | None:
        return self.refused_groups(client, operation, (group_id,)).get(group_id)

    def refused_transactional_ids(
        self, client: ClientInfo, operation: AclOperation, names: Iterable[str]
    ) -> Refused:
        """By transactional id."""
        refused = self.hidden_transactional_ids(client, operation, names)
        if refused:
            kind = ResourceType.TRANSACTIONAL_ID
            self.audit.refused(client, operation, kind, [*map(str, refused)])
        return refused

    def hidden_transactional_ids(
        self, client: ClientInfo, operation: AclOperation, names: Iterable[str]
    ) -> Refused:
        """The same of transactional ids that nobody asked about by themselves."""
        kind = ResourceType.TRANSACTIONAL_ID
        denied = self._authorizer.denied(client, operation, kind, names)
        if not denied:
            return NOTHING_REFUSED
        text = _text(client, operation, "transactional id")
        return dict.fromkeys(denied, TransactionalIdAuthorizationFailed(text))

    def refused_transactional_id(
        self, client: ClientInfo, operation: AclOperation, name: str
    ) -> DisklessError | None:
        return self.refused_transactional_ids(client, operation, (name,)).get(name)

    def refused_cluster(self, client: ClientInfo, operation: AclOperation) -> DisklessError | None:
        if self.may_cluster(client, operation):
            return None
        self.audit.refused(client, operation, ResourceType.CLUSTER, (CLUSTER_NAME,))
        return ClusterAuthorizationFailed(_text(client, operation, "cluster"))

    def may_cluster(self, client: ClientInfo, operation: AclOperation) -> bool:
        """Whether `client` may do it to the cluster; asked besides something else."""
        return not self._authorizer.denied(client, operation, ResourceType.CLUSTER, (CLUSTER_NAME,))

    def may_with_no_topic(self, client: ClientInfo, operation: AclOperation) -> bool:
        """Whether there is no topic, existing or not, to which `client` may do it."""
        return self._authorizer.denied_everywhere(client, operation, ResourceType.TOPIC)

    def operations(
        self, client: ClientInfo, resource_type: ResourceType, names: Iterable[str]
    ) -> Mapping[str, int]:
        """Returns what a client may do to each of `names`, one bit for each operation's number."""
        possible = OPERATIONS_OF[resource_type]
        bits = dict.fromkeys(names, sum(1 << operation for operation in possible))
        for operation in possible:
            for name in self._authorizer.denied(client, operation, resource_type, bits):
                bits[name] &= ~(1 << operation)
        return bits

    def cluster_operations(self, client: ClientInfo) -> int:
        """Nothing for who may not describe the cluster."""
        if not self.may_cluster(client, AclOperation.DESCRIBE):
            return 0
        return self.operations(client, ResourceType.CLUSTER, (CLUSTER_NAME,))[CLUSTER_NAME]

    def noted(
        self, client: ClientInfo, api: str, rows: Iterable[_Answer], what: Callable[[_Answer], str]
    ) -> Iterator[_Answer]:
        """The rows of an answer as they are; those without an error are noted as changes.

        `what`: the resource that a row is about.
        """
        for row in rows:
            if not row["error_code"]:
                self.audit.changed(client, api, what(row))
            yield row


class AllowedRows(NamedTuple, Generic[_Row]):
    """The rows of a request: those that may go on, and by their positions the others' errors."""

    rows: Sequence[_Row]
    allowed: Sequence[_Row]
    refused: Mapping[int, DisklessError]

    @property
    def are_none(self) -> bool:
        """Whether none may go on of those that there are."""
        return bool(self.refused) and not self.allowed

    def merged(
        self, answers: Sequence[_Result], refusal: Callable[[_Row, DisklessError], _Result]
    ) -> Sequence[_Result]:
        """The answers to `allowed` and, made by `refusal`, those to the others: one to each row."""
        if not self.refused:
            return answers
        left = iter(answers)
        return [
            refusal(row, self.refused[position]) if position in self.refused else next(left)
            for position, row in enumerate(self.rows)
        ]


def allowed_rows(
    rows: Sequence[_Row], name_of: Callable[[_Row], Hashable], refused: Refused
) -> AllowedRows[_Row]:
    """`refused` is by `name_of` a row."""
    if not refused:
        return AllowedRows(rows, rows, {})
    errors = {
        position: refused[name]
        for position, row in enumerate(rows)
        if (name := name_of(row)) in refused
    }
    allowed = [row for position, row in enumerate(rows) if position not in errors]
    return AllowedRows(rows, allowed, errors)


def topic_name(named: str | UUID, topics: TopicsById) -> str | None:
    """The name of a topic that is named so; None: there is none of this id."""
    if isinstance(named, str):
        return named
    topic = topics.topic_by_id(named)
    return None if topic is None else topic.name


def _text(client: ClientInfo, operation: AclOperation, what: str) -> str:
    return f"{client.user} may not {operation.name} this {what}"
