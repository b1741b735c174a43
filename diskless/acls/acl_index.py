"""The rules of access control, arranged so that thousands of names are one question.

Rules that differ in their resource's name alone are one `NamedSet`: literal names in a set, and
prefixes in order. A user at a host asks for an operation on names; the sets that speak about that,
at most four of each operation (its own principal or `User:*`, its host or `*`), are put together
once as an `Answering`, which keeps the names that it has allowed. So a name that was asked about
before is one look-up in a set, and one that was not is a look-up and a binary search in each of the
few sets that there are.

The index follows the rules: of a new set of them, what is other than before is put in and taken
out, so that one changed rule of 10,000 costs a millisecond, not a new index.

`diskless.acls.acl_meaning` says what the rules mean, and gives the same answers one by one.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from diskless.acls.acl_meaning import EVERYBODY, operations_deciding
from metadata.acls import WILDCARD, AclBinding, PatternType, Permission


class _Key(NamedTuple):
    """What rules have in common that differ in the names of their resources."""

    permission: int
    resource_type: int
    operation: int
    principal: str
    host: str


class NamedSet:
    """The resources that some rules name."""

    __slots__ = ("_shortest", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: set[str] = set()
        self.prefixes: set[str] = set()
        self._shortest: Sequence[str] | None = ()

    def add(self, rule: AclBinding) -> None:
        if rule.pattern_type == PatternType.PREFIXED:
            self.prefixes.add(rule.resource_name)
            self._shortest = None
        else:
            self.literals.add(rule.resource_name)

    def add_all(self, named: "NamedSet") -> None:
        self.literals |= named.literals
        self.prefixes |= named.prefixes
        self._shortest = None

    def remove(self, rule: AclBinding) -> None:
        if rule.pattern_type == PatternType.PREFIXED:
            self.prefixes.discard(rule.resource_name)
            self._shortest = None
        else:
            self.literals.discard(rule.resource_name)

    def __bool__(self) -> bool:
        return bool(self.literals or self.prefixes)

    def has_all(self) -> bool:
        """Whether whatever can be named is named."""
        return WILDCARD in self.literals

    def has_prefix_of(self, name: str) -> bool:
        shortest = self._shortest_prefixes()
        place = bisect_right(shortest, name)
        return place > 0 and name.startswith(shortest[place - 1])

    def among(self, names: set[str]) -> set[str]:
        """Those of `names` that are named."""
        if self.has_all():
            return names
        found = names & self.literals
        shortest = self._shortest_prefixes()
        if shortest:
            found.update(
                name
                for name in names
                if (place := bisect_right(shortest, name)) and name.startswith(shortest[place - 1])
            )
        return found

    def _shortest_prefixes(self) -> Sequence[str]:
        """In order, without those that begin with another one.

        So the only one that a name can begin with is the last one that is not behind it: whatever
        stands between a prefix and a name that begins with it begins with that prefix, too.
        """
        shortest = self._shortest
        if shortest is None:
            kept: list[str] = []
            for prefix in sorted(self.prefixes):
                if not kept or not prefix.startswith(kept[-1]):
                    kept.append(prefix)
            self._shortest = shortest = kept
        return shortest


class Answering:
    """Answers for one user at one host, about one operation on one type of resource."""

    __slots__ = ("_allowing", "_denying", "_mentioned", "_withheld", "is_open", "known")

    def __init__(
        self,
        allowing: Sequence[NamedSet],
        denying: Sequence[NamedSet],
        mentioned: NamedSet | None,
        withheld: frozenset[str],
    ) -> None:
        """`mentioned`: all that any rule names, where what none names is allowed.

        `withheld`: names that are not allowed whatever the rules say about them.
        """
        self._withheld = withheld
        self._allowing = allowing
        self._denying = denying
        self._mentioned = mentioned
        self.known: set[str] = set()
        """Names that are allowed, of those that were asked about."""
        self.is_open: Final = (
            not denying and not withheld and any(named.has_all() for named in allowing)
        )
        """Whether every name is allowed."""

    def allowed(self, names: set[str]) -> set[str]:
        """Those of `names` that are allowed."""
        allowed: set[str] = set()
        for named in self._allowing:
            allowed |= named.among(names)
        if self._mentioned is not None:
            allowed |= names - self._mentioned.among(names)
        for named in self._denying:
            allowed -= named.among(allowed)
        return allowed - self._withheld

    def is_closed(self) -> bool:
        """Whether there is no name at all that is allowed, of something that exists or not."""
        if any(named.has_all() for named in self._denying):
            return True
        if self._mentioned is not None and not self._mentioned.has_all():
            # Some name is in no rule; there are more names than rules.
            return False
        return not any(named.has_all() or any(self._left_of(named)) for named in self._allowing)

    def _left_of(self, named: NamedSet) -> Iterator[bool]:
        """Of each name and each prefix whether something of it is not denied."""
        for name in named.literals:
            yield not any(
                name in denied.literals or denied.has_prefix_of(name) for denied in self._denying
            )
        for prefix in named.prefixes:
            yield not any(denied.has_prefix_of(prefix) for denied in self._denying)


class AclIndex:
    """The rules that `follow` was given last."""

    def __init__(self) -> None:
        self._rules: frozenset[AclBinding] = frozenset()
        self._sets: dict[_Key, NamedSet] = {}
        self._mentioned: dict[int, NamedSet] = {}

    def follow(self, rules: frozenset[AclBinding]) -> None:
        """Take over what is other in `rules`."""
        for rule in self._rules - rules:
            key = _key(rule)
            named = self._sets[key]
            named.remove(rule)
            if not named:
                del self._sets[key]
        for rule in rules - self._rules:
            key = _key(rule)
            found = self._sets.get(key)
            if found is None:
                found = self._sets[key] = NamedSet()
            found.add(rule)
        self._rules = rules
        self._mentioned.clear()

    def answering(
        self,
        user: str,
        host: str,
        operation: int,
        resource_type: int,
        *,
        is_lenient: bool,
        withheld: frozenset[str],
    ) -> Answering:
        """`is_lenient`: what no rule names is allowed. `withheld`: see `Answering`."""
        return Answering(
            [*self._speaking(Permission.ALLOW, user, host, operation, resource_type)],
            [*self._speaking(Permission.DENY, user, host, operation, resource_type)],
            self._mentioned_of(resource_type) if is_lenient else None,
            withheld,
        )

    def _speaking(
        self, permission: Permission, user: str, host: str, operation: int, resource_type: int
    ) -> Iterator[NamedSet]:
        for about in operations_deciding(permission, operation):
            for principal in (f"User:{user}", EVERYBODY):
                for place in _both(host, WILDCARD):
                    key = _Key(permission, resource_type, about, principal, place)
                    named = self._sets.get(key)
                    if named is not None:
                        yield named

    def _mentioned_of(self, resource_type: int) -> NamedSet:
        """What any rule names."""
        found = self._mentioned.get(resource_type)
        if found is None:
            found = self._mentioned[resource_type] = NamedSet()
            for key, named in self._sets.items():
                if key.resource_type == resource_type:
                    found.add_all(named)
        return found


def _key(rule: AclBinding) -> _Key:
    return _Key(rule.permission, rule.resource_type, rule.operation, rule.principal, rule.host)


def _both(one: str, other: str) -> Collection[str]:
    return (one,) if one == other else (one, other)
