"""Decides SCRAM credentials of users; pure functions over the speculative view.

They are the catalogue's. A user is whoever has a credential, and is gone with the last of them.
"""

from collections.abc import Sequence
from typing import Final

from metadata.operations import AlterScramCredential
from metadata.records.users import (
    ScramCredentialRemovedRecord,
    ScramCredentialSetRecord,
    UserRecord,
)
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import DisklessError, PolicyViolation, UnknownCredential

SCRAM_CREDENTIALS_MAX: Final = 20_000
"""Every broker keeps all of them in memory, and a copy is made at every change."""


def decide_alter_scram_credentials(
    view: SpeculativeView, requests: Sequence[AlterScramCredential]
) -> Decision[Sequence[DisklessError | None]]:
    """A record for each credential that is another afterwards."""
    records: list[UserRecord] = []
    answer: list[DisklessError | None] = []
    count = before_all = view.scram_count()
    for request in requests:
        user, mechanism, wanted = request.user, request.mechanism, request.credential
        before = view.scram(user, mechanism)
        error: DisklessError | None = None
        if request.is_first and before_all:
            error = PolicyViolation("the cluster has users already")
        elif wanted is None and before is None:
            error = UnknownCredential("the user has no credential of this mechanism")
        elif before is None and count >= SCRAM_CREDENTIALS_MAX:
            error = PolicyViolation(f"there are {SCRAM_CREDENTIALS_MAX} SCRAM credentials already")
        elif wanted != before:
            count += (before is None) - (wanted is None)
            view.put_scram(user, mechanism, wanted)
            records.append(
                ScramCredentialRemovedRecord(user=user, mechanism=mechanism)
                if wanted is None
                else ScramCredentialSetRecord(user=user, mechanism=mechanism, credential=wanted)
            )
        answer.append(error)
    return Decision(records, answer)
