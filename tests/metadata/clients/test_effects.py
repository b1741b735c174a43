"""When what was changed through another broker is to be seen at this one."""

from types import SimpleNamespace
from typing import Any

from metadata import operations as ops
from metadata.clients.effects import EFFECTS
from metadata.messages.brokers import ALTER_SCRAM_CREDENTIALS
from metadata.scram.credentials import ScramCredential
from wal.errors import PolicyViolation

CREDENTIAL = ScramCredential(salt=b"s", stored_key=b"k", server_key=b"v", iterations=4_096)


def adding(users: dict[tuple[str, int], ScramCredential], *, is_first: bool) -> Any:
    """The question that is asked after a user was to be added where these are known."""
    catalogue = SimpleNamespace(scram_credentials=lambda: dict(users))
    asked = ops.AlterScramCredential(
        user="admin", mechanism=1, credential=CREDENTIAL, is_first=is_first
    )
    return EFFECTS[ALTER_SCRAM_CREDENTIALS.key](catalogue, [asked])  # type: ignore[arg-type]


def test_who_was_not_the_first_user_waits_for_the_one_that_was() -> None:
    users: dict[tuple[str, int], ScramCredential] = {}
    is_visible = adding(users, is_first=True)
    assert not is_visible([PolicyViolation("the cluster has users")])
    users["admin", 1] = CREDENTIAL
    assert is_visible([PolicyViolation("the cluster has users")])


def test_a_user_that_was_refused_otherwise_is_not_waited_for() -> None:
    assert adding({}, is_first=False)([PolicyViolation("too many")])


def test_a_user_that_was_added_is_waited_for() -> None:
    users: dict[tuple[str, int], ScramCredential] = {}
    is_visible = adding(users, is_first=True)
    assert not is_visible([None])
    users["admin", 1] = CREDENTIAL
    assert is_visible([None])
