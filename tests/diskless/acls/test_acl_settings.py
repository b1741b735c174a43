"""The settings of the authorizer: Kafka's syntax, and what is refused."""

from collections.abc import Mapping

import pytest

from diskless.acls.acl_meaning import Policy
from diskless.acls.acl_settings import AuthorizerSettings, check_chosen, check_not_locked_out
from diskless.config import load_config
from wal.errors import InvalidSettings


def settings(values: Mapping[str, str]) -> AuthorizerSettings:
    return load_config(overrides=values).authorizer


def test_nobody_is_asked_unless_that_is_said() -> None:
    assert not settings({}).is_on
    assert not settings({"authorizer": "none"}).is_on
    assert settings({"authorizer": "acl"}).is_on


def test_super_users_are_separated_by_semicolons() -> None:
    users = settings({"super.users": "User:ann; User:CN=b,O=c;"}).policy().super_users
    assert users == {"ann", "CN=b,O=c"}
    assert settings({"allow.everyone.if.no.acl.found": "true"}).policy() == Policy(
        frozenset(), allows_without_acl=True
    )


@pytest.mark.parametrize("users", ["ann", "User:", "Group:g", "User:ann,ann;bob", "User:*"])
def test_what_is_no_list_of_users_is_refused(users: str) -> None:
    with pytest.raises(InvalidSettings, match=r"super\.users"):
        settings({"super.users": users}).policy()


def test_class_names_are_no_setting() -> None:
    with pytest.raises(InvalidSettings, match=r"authorizer\.class\.name"):
        settings({"authorizer.class.name": "org.example.Authorizer"})
    with pytest.raises(InvalidSettings, match="must be one of"):
        settings({"authorizer": "org.example.Authorizer"})


@pytest.mark.parametrize("authorizer", ["", "acl", "none"])
@pytest.mark.parametrize("is_asked_who", [True, False])
def test_who_asks_for_names_says_what_follows(authorizer: str, is_asked_who: bool) -> None:
    chosen = settings({"authorizer": authorizer})
    if is_asked_who and not authorizer:
        with pytest.raises(InvalidSettings, match=r"authorizer=acl and super\.users"):
            check_chosen(chosen, is_asked_who=True)
    else:
        check_chosen(chosen, is_asked_who=is_asked_who)


def test_who_locks_everybody_out_is_told_what_to_write() -> None:
    with pytest.raises(InvalidSettings, match=r"super\.users=User:NAME"):
        check_not_locked_out(settings({"authorizer": "acl"}), [])
    check_not_locked_out(settings({"authorizer": "acl", "super.users": "User:ann"}), [])
