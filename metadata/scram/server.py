"""The server's side of SCRAM: one exchange, two messages in, two out.

    exchange = ScramServer(mechanism, credential_for, nonce)
    answer = exchange.first(message)      # client first -> server first
    answer = exchange.final(message)      # client final -> server final
    exchange.user                         # proven from here on

Invariants: the nonce of the last message is the whole nonce of this exchange, so no recorded
message is of use again; the channel binding repeats the header that the client began with;
keys are compared in constant time. Who is unknown is given a credential like everybody else by
`credential_for`, and fails at the end as a wrong password does.
"""

import hmac
from collections.abc import Callable

from metadata.scram.credentials import ScramCredential, ScramMechanism, combined, hashed, keyed
from metadata.scram.text import (
    ClientFirst,
    InvalidScramMessage,
    base64_text,
    read_client_final,
    read_client_first,
    server_first,
)


class ScramServer:
    """One exchange. Every method raises InvalidScramMessage, and the exchange is over then."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_for: Callable[[str], ScramCredential],
        nonce: str,
    ) -> None:
        """`nonce` is random and printable; the client's goes before it."""
        self._mechanism = mechanism
        self._credential_for = credential_for
        self._nonce = nonce
        self._client_first: ClientFirst | None = None
        self._server_first = ""
        self.user: str | None = None
        """Whose password the client has; None until it was proven."""

    @property
    def has_begun(self) -> bool:
        return self._client_first is not None

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message."""
        first = read_client_first(message)
        if first.authorization_id not in ("", first.user):
            raise InvalidScramMessage("nobody may act as somebody else")
        self._credential = self._credential_for(first.user)
        self._nonce = first.nonce + self._nonce
        self._server_first = server_first(
            self._nonce, self._credential.salt, self._credential.iterations
        )
        self._client_first = first
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Check the proof, and answer with the server's."""
        first, mechanism, credential = self._client_first, self._mechanism, self._credential
        assert first is not None
        final = read_client_final(message)
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            raise InvalidScramMessage("a nonce of another exchange")
        if final.channel_binding != first.gs2_header.encode():
            raise InvalidScramMessage("another header than at the beginning")
        if len(final.proof) != mechanism.key_bytes:
            raise InvalidScramMessage("a proof of another length")
        signed = ",".join((first.bare, self._server_first, final.unproven)).encode()
        client_key = combined(final.proof, keyed(mechanism, credential.stored_key, signed))
        if not hmac.compare_digest(hashed(mechanism, client_key), credential.stored_key):
            raise InvalidScramMessage("a wrong password, or an unknown user")
        self.user = first.user
        return f"v={base64_text(keyed(mechanism, credential.server_key, signed))}".encode()
