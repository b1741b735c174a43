"""The index of rules: the same answers as the rules one by one, whatever changes between two."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.acls import acl_authorizer
from diskless.acls.acl_authorizer import AclAuthorizer
from diskless.acls.acl_meaning import ALL, Policy, Question, can_anybody_alter, decide
from diskless.authorization import CLUSTER_NAME, AclOperation, ResourceType
from diskless.ports import ClientInfo
from metadata.acls import AclBinding, PatternType, Permission
from metadata.operations import METADATA_TOPIC
from tests.support.profiles import examples

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALTER, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.CLUSTER_ACTION
ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

NAMES = ["", "a", "aa", "ab", "aba", "abc", "b", "ba", "*", "c", METADATA_TOPIC]
HOSTS = ["10.0.0.1", "10.0.0.2"]
USERS = ["ann", "bob", "__broker", "root"]

RULES = st.builds(
    AclBinding,
    resource_type=st.sampled_from([TOPIC, GROUP, CLUSTER]),
    resource_name=st.sampled_from([*NAMES[1:], CLUSTER_NAME]),
    pattern_type=st.sampled_from([LITERAL, PREFIXED]),
    principal=st.sampled_from(["User:ann", "User:bob", "User:*", "Group:ann"]),
    host=st.sampled_from([*HOSTS, "*"]),
    operation=st.sampled_from([READ, WRITE, ALTER, DESCRIBE, ALTER_CONFIGS, ALL]),
    permission=st.sampled_from([ALLOW, DENY]),
)
RULE_SETS = st.frozensets(RULES, max_size=8)


class Rules:
    """The catalogue's, which change."""

    def __init__(self, rules: frozenset[AclBinding] = frozenset()) -> None:
        self.now = rules

    def __call__(self) -> frozenset[AclBinding]:
        return self.now


def asked_by(user: str, host: str = "10.0.0.1") -> ClientInfo:
    return ClientInfo(1, "client", host, user)


@given(st.lists(RULE_SETS, min_size=1, max_size=4), st.booleans())
@examples(2)
def test_many_names_are_answered_as_one_by_one(
    versions: Sequence[frozenset[AclBinding]], is_lenient: bool
) -> None:
    rules = Rules()
    policy = Policy(frozenset({"root"}), is_lenient)
    authorizer = AclAuthorizer(rules, policy)
    for version in versions:
        rules.now = version
        for user in USERS:
            for host in HOSTS:
                for operation in (READ, DESCRIBE):
                    client = asked_by(user, host)
                    expected = {
                        name
                        for name in NAMES
                        if not decide(
                            version, policy, Question(user, host, operation, TOPIC, name)
                        ).is_allowed
                    }
                    assert {*authorizer.denied(client, operation, TOPIC, NAMES)} == expected
                    again = authorizer.denied(client, operation, TOPIC, iter(NAMES))
                    assert {*again} == expected, "asked again, with what is kept"


@given(RULE_SETS, st.booleans())
@examples(2)
def test_what_is_denied_everywhere_is_denied_whatever_the_name(
    rules: frozenset[AclBinding], is_lenient: bool
) -> None:
    policy = Policy(frozenset(), is_lenient)
    authorizer = AclAuthorizer(Rules(rules), policy)
    client = asked_by("ann")
    # What a rule names, what begins so, and what no rule names.
    names = [rule.resource_name for rule in rules]
    names += [f"{name}~" for name in names] + ["~"]
    is_denied = all(
        not decide(rules, policy, Question("ann", client.host, WRITE, TOPIC, name)).is_allowed
        for name in names
    )
    assert authorizer.denied_everywhere(client, WRITE, TOPIC) == is_denied


def allow(name: str, operation: int = READ, **others: object) -> AclBinding:
    rule = AclBinding(TOPIC, name, LITERAL, "User:ann", "*", operation, ALLOW)
    return rule._replace(**others)  # type: ignore[arg-type]


def test_no_rule_is_no() -> None:
    authorizer = AclAuthorizer(Rules(), Policy())
    assert {*authorizer.denied(asked_by("ann"), READ, TOPIC, ["a"])} == {"a"}
    assert authorizer.denied_everywhere(asked_by("ann"), READ, TOPIC)


def test_brokers_may_do_what_brokers_do_and_nothing_else() -> None:
    everything = AclBinding(CLUSTER, CLUSTER_NAME, LITERAL, "User:*", "*", ALL, DENY)
    for rules in (frozenset[AclBinding](), frozenset({everything})):
        authorizer = AclAuthorizer(Rules(rules), Policy())
        broker = asked_by("__broker")
        assert not authorizer.denied(broker, CLUSTER_ACTION, CLUSTER, [CLUSTER_NAME])
        assert authorizer.denied(broker, ALTER, CLUSTER, [CLUSTER_NAME])
        assert authorizer.denied(broker, READ, TOPIC, ["a"])
        assert authorizer.denied(asked_by("ann"), CLUSTER_ACTION, CLUSTER, [CLUSTER_NAME])


def test_who_reads_the_metadata_log_must_be_allowed_to_see_all_configs() -> None:
    reads_all = allow("*")
    sees = AclBinding(CLUSTER, CLUSTER_NAME, LITERAL, "User:ann", "*", ALTER_CONFIGS, ALLOW)
    rules = Rules(frozenset({reads_all}))
    authorizer = AclAuthorizer(rules, Policy())
    names = ["a", METADATA_TOPIC]
    assert {*authorizer.denied(asked_by("ann"), READ, TOPIC, names)} == {METADATA_TOPIC}
    assert not authorizer.denied(asked_by("ann"), DESCRIBE, TOPIC, names)
    asked = Question("ann", "h", READ, TOPIC, METADATA_TOPIC)
    assert "DESCRIBE_CONFIGS" in decide(rules.now, Policy(), asked).why
    rules.now = frozenset({reads_all, sees})
    assert not authorizer.denied(asked_by("ann"), READ, TOPIC, names)
    rules.now = frozenset({sees})
    assert {*authorizer.denied(asked_by("ann"), READ, TOPIC, names)} == {*names}


def test_a_rule_that_goes_ends_an_answer_that_is_kept() -> None:
    rules = Rules(frozenset({allow("a"), allow("b")}))
    authorizer = AclAuthorizer(rules, Policy())
    assert not authorizer.denied(asked_by("ann"), READ, TOPIC, ["a", "b"])
    rules.now = frozenset({allow("b")})
    assert {*authorizer.denied(asked_by("ann"), READ, TOPIC, ["a", "b"])} == {"a"}
    rules.now = frozenset({allow("b"), allow("b", permission=DENY)})
    assert {*authorizer.denied(asked_by("ann"), READ, TOPIC, ["a", "b"])} == {"a", "b"}


def test_answers_that_are_too_many_to_keep_are_right_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acl_authorizer, "NAMES_KEPT_MAX", 3)
    monkeypatch.setattr(acl_authorizer, "ANSWERS_KEPT_MAX", 2)
    authorizer = AclAuthorizer(Rules(frozenset({allow("a", pattern_type=PREFIXED)})), Policy())
    for turn in range(10):
        names = [f"a{turn}", "a", "b"]
        for user in ("ann", "bob", "carl"):
            denied = {*authorizer.denied(asked_by(user), READ, TOPIC, names)}
            assert denied == ({"b"} if user == "ann" else {*names})


def test_a_super_user_reads_no_names() -> None:
    authorizer = AclAuthorizer(Rules(), Policy(frozenset({"ann"})))

    def names() -> list[str]:
        raise AssertionError("nobody needs them")

    assert not authorizer.denied(asked_by("ann"), READ, TOPIC, (name for name in iter(names, "")))


@pytest.mark.parametrize(
    ("rules", "policy", "can"),
    [
        ([], Policy(), False),
        ([], Policy(frozenset({"root"})), True),
        ([], Policy(allows_without_acl=True), True),
        ([("User:ann", "*", ALTER, ALLOW)], Policy(), True),
        ([("User:ann", "10.0.0.1", ALL, ALLOW)], Policy(), True),
        ([("User:*", "*", ALTER, ALLOW)], Policy(), True),
        ([("User:*", "*", ALTER, ALLOW), ("User:ann", "*", ALTER, DENY)], Policy(), True),
        ([("User:*", "*", ALTER, ALLOW), ("User:*", "*", ALL, DENY)], Policy(), False),
        ([("User:ann", "*", DESCRIBE, ALLOW)], Policy(), False),
        ([("User:ann", "*", DESCRIBE, ALLOW)], Policy(allows_without_acl=True), False),
    ],
)
def test_whether_anybody_may_change_the_rules(
    rules: Sequence[tuple[str, str, int, int]], policy: Policy, can: bool
) -> None:
    made = [AclBinding(CLUSTER, CLUSTER_NAME, LITERAL, *rule) for rule in rules]
    assert can_anybody_alter(made, policy) == can
