"""Users and rights as a worker knows them: what the head has told.

Whoever asks gets what has arrived until now, and not what had arrived when the event loop last came
by: news of a change are in the worker's socket before the head answers whoever asked for it, and
here they are taken before each answer. So a user that was removed, or a rule, counts in no worker
any more once anybody has heard that it is gone; unless the worker takes so little that the head
has to keep its news, and then as soon as they come.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from diskless.sasl.broker_secrets import BrokerSecrets
from diskless.sasl.cluster_secret import ClusterSecret
from diskless.workers.security.security_news import RuleNews, SecretNews, UserChanges
from metadata.acls import AclBinding
from metadata.operations import ScramCredentials
from wal.clock import Clock


class KnownRights:
    """On the event loop of a worker."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        """`refresh` takes the news that have arrived."""
        self._refresh: Final = refresh
        self._rules: frozenset[AclBinding] = frozenset()
        self._users: ScramCredentials = {}
        self._secrets = SecretNews()
        self._has_secrets_changed: Final = asyncio.Event()

    def acls(self) -> frozenset[AclBinding]:
        """All rules; another set after every change."""
        self._refresh()
        return self._rules

    def scram_credentials(self) -> ScramCredentials:
        """Those of all users; another mapping after every change."""
        self._refresh()
        return self._users

    @property
    def decoys(self) -> bytes:
        """What unknown users' salts follow from; empty where nobody logs in."""
        return self._secrets.decoys

    def broker_secrets(self, clock: Clock) -> BrokerSecrets | None:
        """Those of the cluster, `follow`ed from here on; None: there is only this broker."""
        found = self._secrets.secrets
        return BrokerSecrets(found, self._told_secrets, clock) if found else None

    async def follow(self, secrets: BrokerSecrets) -> None:
        """Have `secrets` be those that were told last, until cancelled."""
        while True:
            await self._has_secrets_changed.wait()
            self._has_secrets_changed.clear()
            await secrets.refresh()

    async def _told_secrets(self) -> tuple[ClusterSecret, ...]:
        return tuple(self._secrets.secrets)

    def take_rules(self, news: RuleNews) -> None:
        self._rules = self._rules.difference(news.gone).union(news.came)

    def take_users(self, changes: UserChanges) -> None:
        users = dict(self._users)
        for key, credential in changes.items():
            if credential is None:
                users.pop(key, None)
            else:
                users[key] = credential
        self._users = users

    def take_secrets(self, news: SecretNews) -> None:
        self._secrets = news
        self._has_secrets_changed.set()
