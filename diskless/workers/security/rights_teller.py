"""Tells workers what the head knows of users and rights; the words are in `security_news`.

Only what a worker needs: rules where an authorizer asks them, users and secrets where a listener
asks for a log-in. A worker that joins gets all of it, and every worker each change after that, in
the call in which the catalogue's replica says that it has changed: so before whoever asked for the
change is answered.

Invariant: `changes` makes what was told last what is known now; nothing is between the two.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from diskless.workers import line
from diskless.workers.security.security_news import (
    RuleNews,
    SecretNews,
    changes_of_users,
    encode_users,
)
from metadata.acls import AclBinding
from metadata.operations import ScramCredentials


class Catalogue(Protocol):
    """The replica of the catalogue."""

    def acls(self) -> frozenset[AclBinding]: ...

    def scram_credentials(self) -> ScramCredentials: ...


class _Encoded(NamedTuple):
    """A message, and what it tells."""

    of: object
    message: bytes


def _encoded_rules(rules: frozenset[AclBinding]) -> _Encoded:
    return _Encoded(rules, line.frame(line.RULES, RuleNews(rules).encode()))


def _encoded_users(users: ScramCredentials) -> _Encoded:
    return _Encoded(users, line.frame(line.USERS, encode_users(users)))


class RightsTeller:
    """What of users and rights was told; messages are for whoever sends them."""

    def __init__(
        self,
        catalogue: Catalogue,
        secrets: Callable[[], SecretNews],
        *,
        asks_rules: bool,
        asks_users: bool,
    ) -> None:
        """`asks_rules`: whether there is an authorizer; `asks_users`: whether anybody logs in."""
        self._catalogue: Final = catalogue
        self._secrets: Final = secrets
        self._asks_rules: Final = asks_rules
        self._asks_users: Final = asks_users
        self._rules: frozenset[AclBinding] = frozenset()
        self._users: ScramCredentials = {}
        self._all_rules = _encoded_rules(self._rules)
        self._all_users = _encoded_users(self._users)
        """What a worker that joins is told."""

    async def prepare(self) -> None:
        """Encode in a thread what `everything` will need, if nothing changes until then.

        A hundred thousand rules take tenths of a second.
        """
        rules, users = self._catalogue.acls(), self._catalogue.scram_credentials()
        if self._asks_rules and self._all_rules.of is not rules:
            self._all_rules = await asyncio.to_thread(_encoded_rules, rules)
        if self._asks_users and self._all_users.of is not users:
            self._all_users = await asyncio.to_thread(_encoded_users, users)

    def everything(self) -> Sequence[bytes]:
        """Messages for who knows nothing yet. What has changed is to be told to others before."""
        messages = []
        if self._asks_rules:
            if self._all_rules.of is not self._rules:
                self._all_rules = _encoded_rules(self._rules)
            messages.append(self._all_rules.message)
        if self._asks_users:
            if self._all_users.of is not self._users:
                self._all_users = _encoded_users(self._users)
            messages.append(self._all_users.message)
            messages.append(self.secrets())
        return messages

    def changes(self) -> Sequence[bytes]:
        """Messages for who knows what was told before."""
        messages = []
        if self._asks_rules and (rules := self._catalogue.acls()) is not self._rules:
            before, self._rules = self._rules, rules
            news = RuleNews(rules - before, before - rules)
            messages.append(line.frame(line.RULES, news.encode()))
        if self._asks_users and (users := self._catalogue.scram_credentials()) is not self._users:
            before_them, self._users = self._users, users
            changed = changes_of_users(before_them, users)
            messages.append(line.frame(line.USERS, encode_users(changed)))
        return messages

    def secrets(self) -> bytes:
        """The message that says which secrets there are."""
        return line.frame(line.SECRETS, self._secrets().encode())
