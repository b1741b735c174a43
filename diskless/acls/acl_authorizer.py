"""Answers the API handlers by the rules of the catalogue: the authorizer of `authorizer=acl`.

The rules come from a function that gives this broker's copy of them; it is another set after every
change, so one comparison of identities says whether anything has to be looked at again. Within
`diskless.metadata.follow.interval.ms` of a change every broker answers by the new rules. What waits
already (a parked Fetch, a JoinGroup) is answered as it was asked.

Kept in memory: the index, and for each (user, host, operation, type of resource) that has asked the
names that were allowed. All answers are forgotten when a rule changes, and when more than
`NAMES_KEPT_MAX` names or `ANSWERS_KEPT_MAX` askers are kept: that costs time, and no answer.
Refusals are not kept. A user who asks about names that do not exist fills no memory with them
unless rules allow them.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from diskless.acls.acl_index import AclIndex, Answering
from diskless.acls.acl_meaning import READS_METADATA, SEES_CONFIGS, Policy, is_cluster_action
from diskless.authorization import AclOperation, ResourceType
from diskless.ports import ClientInfo
from metadata.acls import AclBinding

NAMES_KEPT_MAX: Final = 200_000
"""Of all answers together; the names themselves belong to the catalogue, mostly."""
ANSWERS_KEPT_MAX: Final = 20_000

_Asker = tuple[str, str, int, int]


class AclAuthorizer:
    """An `Authorizer`; see there."""

    def __init__(self, rules: Callable[[], frozenset[AclBinding]], policy: Policy) -> None:
        """`rules`: all there are, another set after every change."""
        self._rules = rules
        self._policy = policy
        self._seen: frozenset[AclBinding] = frozenset()
        self._index = AclIndex()
        self._answers: dict[_Asker, Answering] = {}
        self._names_kept = 0
        self._version = 0

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        answering = self._answering(client, operation, resource_type)
        if answering is None or answering.is_open:
            return ()
        if not isinstance(names, Collection):
            names = [*names]
        known = answering.known
        if known.issuperset(names):
            return ()
        new = {*names} - known
        allowed = answering.allowed(new)
        self._keep(answering, allowed)
        return new - allowed

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        answering = self._answering(client, operation, resource_type)
        return answering is not None and answering.is_closed()

    def version(self) -> int:
        self._follow()
        return self._version

    def _follow(self) -> None:
        rules = self._rules()
        if rules is not self._seen:
            self._index.follow(rules)
            self._seen = rules
            self._version += 1
            self._forget()

    def _answering(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> Answering | None:
        """None: whom rules do not bind."""
        user, host = client.user, client.host
        if user in self._policy.super_users or is_cluster_action(user, operation, resource_type):
            return None
        self._follow()
        asker = (user, host, operation, resource_type)
        answering = self._answers.get(asker)
        if answering is None:
            if len(self._answers) >= ANSWERS_KEPT_MAX:
                self._forget()
            answering = self._answers[asker] = self._index.answering(
                *asker,
                is_lenient=self._policy.allows_without_acl,
                withheld=self._withheld(client, operation, resource_type),
            )
        return answering

    def _withheld(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> frozenset[str]:
        """What `client` may not do it to whatever the rules say: see READS_METADATA."""
        *kind, name = READS_METADATA
        if [operation, resource_type] != kind:
            return frozenset()
        besides, of_type, of_name = SEES_CONFIGS
        return frozenset({name} if self.denied(client, besides, of_type, (of_name,)) else ())

    def _keep(self, answering: Answering, allowed: Collection[str]) -> None:
        self._names_kept += len(allowed)
        if self._names_kept > NAMES_KEPT_MAX:
            self._forget()
        elif allowed:
            answering.known.update(allowed)

    def _forget(self) -> None:
        self._answers.clear()
        self._names_kept = 0
