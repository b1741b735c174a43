"""The client's side of SCRAM: one exchange.

    exchange = ScramClient(mechanism, user, password, nonce)
    first = exchange.first()
    final = exchange.final(server_first)   # takes milliseconds: the password is salted here
    exchange.verify(server_final)          # the server knows the password, too

Every method raises InvalidScramMessage for what no honest server sends.
"""

import hmac

from metadata.scram.credentials import (
    ScramMechanism,
    combined,
    credential_of,
    keyed,
    salt_password,
)
from metadata.scram.text import (
    InvalidScramMessage,
    base64_text,
    client_first,
    read_server_final,
    read_server_first,
)

_GS2_HEADER = "n,,"


class ScramClient:
    """One exchange."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        """`nonce` is random and printable, without a comma."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = client_first(user, nonce)
        self._signature = b""

    @staticmethod
    def opening(user: str, nonce: str) -> bytes:
        """Returns the first message of whoever will know the password by then."""
        return f"{_GS2_HEADER}{client_first(user, nonce)}".encode()

    def first(self) -> bytes:
        """Returns the client's first message."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def final(self, message: bytes) -> bytes:
        """Returns the client's proof, for the server's first message."""
        mechanism = self._mechanism
        nonce, salt, iterations = read_server_first(message)
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise InvalidScramMessage("a nonce of another exchange")
        salted = salt_password(mechanism, self._password, salt, iterations)
        credential = credential_of(mechanism, salted, salt, iterations)
        unproven = f"c={base64_text(_GS2_HEADER.encode())},r={nonce}"
        signed = ",".join((self._bare, message.decode(), unproven)).encode()
        client_key = keyed(mechanism, salted, b"Client Key")
        proof = combined(client_key, keyed(mechanism, credential.stored_key, signed))
        self._signature = keyed(mechanism, credential.server_key, signed)
        return f"{unproven},p={base64_text(proof)}".encode()

    def verify(self, message: bytes) -> None:
        """Check that the server knows the password."""
        if not hmac.compare_digest(read_server_final(message), self._signature):
            raise InvalidScramMessage("a server that does not know the password")
