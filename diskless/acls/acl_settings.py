"""The configuration section of the authorizer: whether there is one, and who stands above rules."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from diskless.acls.acl_meaning import Policy, can_anybody_alter
from metadata.acls import AclBinding
from wal.errors import InvalidSettings
from wal.settings import setting

AUTHORIZER: Final = "authorizer"
SUPER_USERS: Final = "super.users"
EVERYONE: Final = "allow.everyone.if.no.acl.found"
ACL_AUTHORIZER: Final = "acl"
NO_AUTHORIZER: Final = "none"

_USER: Final = "User:"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerSettings:
    """Kafka's keys, but for `authorizer`, which names a behaviour and never a class to load."""

    authorizer: str = setting(
        AUTHORIZER,
        "",
        choices=("", ACL_AUTHORIZER, NO_AUTHORIZER),
        why="acl: the broker refuses what no rule allows; none: everybody may do everything; empty "
        "means none, and starts only where nobody logs in or the machine alone reaches the broker",
    )
    super_users: str = setting(
        SUPER_USERS,
        "",
        why="User:NAME, separated by semicolons: may do everything, whatever the rules say; too "
        "few: nobody can mend rules that lock all others out; more: as many who are bound by none",
    )
    allows_without_acl: bool = setting(
        EVERYONE,
        False,
        why="true: what no rule names is open to everybody, so a topic is closed only by its first "
        "rule; false: it is closed until a rule allows somebody",
    )

    @property
    def is_on(self) -> bool:
        """Whether rules are asked."""
        return self.authorizer == ACL_AUTHORIZER

    def policy(self) -> Policy:
        """What counts beside the rules. Raises InvalidSettings."""
        return Policy(self._super_user_names(), self.allows_without_acl)

    def _super_user_names(self) -> Collection[str]:
        names = set()
        for item in filter(None, map(str.strip, self.super_users.split(";"))):
            if not item.startswith(_USER) or item == _USER:
                raise InvalidSettings(
                    f"{SUPER_USERS}={self.super_users!r}: {item!r} is not User:NAME; several are "
                    "separated by semicolons"
                )
            names.add(item.removeprefix(_USER))
        if "*" in names:
            raise InvalidSettings(f"{SUPER_USERS}: everybody (User:*) is {AUTHORIZER}=none")
        return frozenset(names)


def check_chosen(settings: AuthorizerSettings, *, is_asked_who: bool) -> None:
    """`is_asked_who`: whether clients from elsewhere must say who they are.

    Raises InvalidSettings: they must, and nothing follows from it.
    """
    if is_asked_who and not settings.authorizer:
        raise InvalidSettings(
            f"clients must say who they are, and nobody asks what they may do: set "
            f"{AUTHORIZER}={ACL_AUTHORIZER} and {SUPER_USERS}=User:NAME, or "
            f"{AUTHORIZER}={NO_AUTHORIZER} if each of them may do everything"
        )


def check_not_locked_out(settings: AuthorizerSettings, rules: Iterable[AclBinding]) -> None:
    """Raises InvalidSettings: there is nobody who may change the rules, so it would stay so."""
    if not can_anybody_alter(rules, settings.policy()):
        raise InvalidSettings(
            f"{AUTHORIZER}={ACL_AUTHORIZER}, and nobody may change the rules: there is no rule "
            f"that allows ALTER on the cluster. Set {SUPER_USERS}=User:NAME"
        )
