"""Asks a running broker what the `diskless user` commands want, through a stock Kafka client.

The broker never sees a password: what is sent is salted here (KIP-554).
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

from diskless.cli.admin_connection import AdminConnection, check_results
from metadata.scram.credentials import SALT_BYTES, ScramMechanism, salt_password
from wal.errors import Rejected


class UserClient(AdminConnection):
    """Users of one cluster."""

    def users(self) -> Mapping[str, Sequence[tuple[ScramMechanism, int]]]:
        """Mechanisms and iterations by user, in the order of names."""
        answer = self._ask(DescribeUserScramCredentialsRequest(users=None))
        check_results([answer.to_dict()])
        return {
            row.user: [
                (ScramMechanism(info.mechanism), info.iterations) for info in row.credential_infos
            ]
            for row in answer.results
        }

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[ScramMechanism],
        iterations: int,
        rng: random.Random,
    ) -> None:
        """Set the user's credentials of these mechanisms. Raises Rejected."""
        upsertions = []
        for mechanism in mechanisms:
            salt = rng.randbytes(SALT_BYTES)
            upsertions.append(
                AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                    name=user,
                    mechanism=int(mechanism),
                    iterations=iterations,
                    salt=salt,
                    salted_password=salt_password(mechanism, password, salt, iterations),
                )
            )
        self._alter(AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions))

    def remove(self, user: str) -> None:
        """Remove all credentials of the user. Raises Rejected."""
        known = self.users().get(user)
        if known is None:
            raise Rejected(f"there is no user {user} at {self._bootstrap}")
        deletions = [
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                name=user, mechanism=int(mechanism)
            )
            for mechanism, _ in known
        ]
        self._alter(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]))

    def _alter(self, request: Any) -> None:
        answer = self._ask(request)
        check_results([{**row.to_dict(), "name": row.user} for row in answer.results])
