"""Makes the contexts of TLS: what a listener offers, and what a client of one asks for.

TLS 1.2 and 1.3, OpenSSL's own suites, no compression, no renegotiation. Sessions are not resumed:
each connection shows its certificate, so that what was true of it when an earlier connection was
made is not taken on trust, and a replaced or expired one counts from the next connection on.

A certificate that is trusted is an anchor, whether it is a root or not, as in a Java trust store.

Failure cases: InvalidSettings, with the setting and the file in it, for a key that does not belong
to its certificate, a password that does not open it, and a file that changes while it is read.
"""

import ssl
from typing import Final

from wal.errors import InvalidSettings
from wal.security.pem_files import KeyStore

_MISMATCH: Final = "KEY_VALUES_MISMATCH"

CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""What `ssl.client.auth` may be."""


def server_context(keys: KeyStore, trusted: str | None, client_auth: str) -> ssl.SSLContext:
    """For the side that listens. Raises InvalidSettings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0
    _use_keys(context, keys)
    if trusted is not None:
        context.load_verify_locations(cadata=trusted)
    context.verify_mode = CLIENT_AUTH[client_auth]
    return context


def client_context(
    trusted: str | None, keys: KeyStore | None, *, checks_host: bool
) -> ssl.SSLContext:
    """For the side that connects; without `trusted`, whom the machine trusts.

    Raises InvalidSettings.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = checks_host
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=trusted)
    if keys is not None:
        _use_keys(context, keys)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _use_keys(context: ssl.SSLContext, keys: KeyStore) -> None:
    def refuse(reason: str) -> InvalidSettings:
        return InvalidSettings(f"{keys.what}: {keys.path}: {reason}")

    try:
        # A callback, because OpenSSL asks the terminal where it is given nothing.
        context.load_cert_chain(keys.path, password=keys.password.reveal)
    except ssl.SSLError as error:
        if _MISMATCH in str(error):
            raise refuse("the key does not belong to the first certificate") from error
        if "ENCRYPTED" in keys.content.decode("ascii", "replace"):
            raise refuse("the password (ssl.key.password) does not open the key") from error
        raise refuse(f"cannot be used: {error.reason or error}") from error
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be used: {error}") from error
    if keys.path.read_bytes() != keys.content:
        raise refuse("it changes while it is read; try again when it is complete")
