"""The server's side of SCRAM: one exchange, two messages in, two out.

    exchange = ScramServer(mechanism, credential_for, nonce)
    answer = exchange.first(message)          # client first -> server first
    answer, user = exchange.final(message)    # client final -> server final; proven

Invariants: the nonce of the last message is that of this exchange, so no recorded message is of
use again; the channel binding repeats the header that the client began with;
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
        self.credential: ScramCredential
        """What is proven, from the first message on."""
        self._client_first: ClientFirst | None = None
        self._server_first = ""
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        return self._client_first is not None

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message."""
        first = read_client_first(message)
        if first.authorization_id not in ("", first.user):
            raise InvalidScramMessage("nobody may act as somebody else")
        self.credential = self._credential_for(first.user)
        self._nonce = first.nonce + self._nonce
        self._server_first = server_first(
            self._nonce, self.credential.salt, self.credential.iterations
        )
        self._client_first = first
        return self._server_first.encode()

    def final(self, message: bytes) -> tuple[bytes, str]:
        """Check the proof. Returns the server's, and whose password the client has."""
        first, mechanism, credential = self._client_first, self._mechanism, self.credential
        assert first is not None
        if self._is_over:
            raise InvalidScramMessage("a third message")
        self._is_over = True
        final = read_client_final(message)
        # librdkafka before 2.6 writes its own nonce twice. What it sends is as determined by this
        # exchange, so no other's is taken for it.
        nonces = (self._nonce, first.nonce + self._nonce)
        if not any(hmac.compare_digest(final.nonce.encode(), nonce.encode()) for nonce in nonces):
            raise InvalidScramMessage("a nonce of another exchange")
        if final.channel_binding != first.gs2_header.encode():
            raise InvalidScramMessage("another header than at the beginning")
        if len(final.proof) != mechanism.key_bytes:
            raise InvalidScramMessage("a proof of another length")
        signed = ",".join((first.bare, self._server_first, final.unproven)).encode()
        client_key = combined(final.proof, keyed(mechanism, credential.stored_key, signed))
        if not hmac.compare_digest(hashed(mechanism, client_key), credential.stored_key):
            raise InvalidScramMessage("a wrong password, or an unknown user")
        signature = keyed(mechanism, credential.server_key, signed)
        return f"v={base64_text(signature)}".encode(), first.user
