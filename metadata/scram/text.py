"""The four messages of SCRAM, to values and back.

    client first   n,a=AUTHZID,n=USER,r=CLIENT-NONCE[,EXTENSIONS]
    server first   r=CLIENT-NONCE SERVER-NONCE,s=SALT,i=ITERATIONS
    client final   c=CHANNEL-BINDING,r=BOTH-NONCES[,EXTENSIONS],p=PROOF
    server final   v=SIGNATURE, or e=ERROR

Names write "," as =2C and "=" as =3D. Salt, proof, signature and channel binding are base64. What
stands before the user's name in the first message is the GS2 header; the channel binding of the
last one repeats it. Channel binding itself is not offered: a client that requires it (`p=`), or an
extension that must be understood (`m=`), is refused.

Whatever is wrong with a message is one InvalidScramMessage, which does not repeat the message.

Source: RFC 5802, sections 5.1 and 7.
"""

import base64
import re
from typing import Final, NamedTuple

from metadata.scram.credentials import ITERATIONS_MIN, SALT_BYTES_MAX
from wal.errors import Rejected

NONCE_CHARACTERS_MAX: Final = 1_024
CLIENT_ITERATIONS_MAX: Final = 1 << 20
"""A client computes no more for a server that it does not know yet."""

_GS2: Final = re.compile(r"(?:n|y),(?:a=(?P<authzid>[^\x00,]+))?,")
_FIRST: Final = re.compile(
    r"n=(?P<user>[^\x00,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?", re.S
)
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,.*)?",
    re.S,
)
_FINAL: Final = re.compile(
    r"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.S,
)
_ESCAPE: Final = re.compile(r"=(?!2C|3D)")


class InvalidScramMessage(Rejected):
    """A message that is none, or asks for what is not served."""


class ClientFirst(NamedTuple):
    """What a client begins with."""

    gs2_header: str
    authorization_id: str
    """As whom it wants to act; empty: as the user."""
    user: str
    nonce: str
    bare: str
    """The message without its header: a part of what is signed."""


class ServerFirst(NamedTuple):
    """What a server answers with."""

    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(NamedTuple):
    """A client's proof."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    unproven: str
    """The message without the proof: a part of what is signed."""


def read_client_first(data: bytes) -> ClientFirst:
    """Raises InvalidScramMessage."""
    text = _text(data)
    header = _GS2.match(text)
    if header is None:
        raise InvalidScramMessage("no client-first-message, or one that asks for channel binding")
    bare = text[header.end() :]
    match = _FIRST.fullmatch(bare)
    if match is None or len(match["nonce"]) > NONCE_CHARACTERS_MAX:
        raise InvalidScramMessage("no client-first-message")
    return ClientFirst(
        header[0], _name(header["authzid"] or ""), _name(match["user"]), match["nonce"], bare
    )


def read_client_final(data: bytes) -> ClientFinal:
    """Raises InvalidScramMessage."""
    match = _FINAL.fullmatch(_text(data))
    if match is None:
        raise InvalidScramMessage("no client-final-message")
    return ClientFinal(
        _binary(match["binding"]), match["nonce"], _binary(match["proof"]), match["unproven"]
    )


def read_server_first(data: bytes) -> ServerFirst:
    """Raises InvalidScramMessage, also for what a client should not compute."""
    match = _SERVER_FIRST.fullmatch(_text(data))
    if match is None:
        raise InvalidScramMessage("no server-first-message")
    salt, iterations = _binary(match["salt"]), int(match["iterations"])
    if len(salt) > SALT_BYTES_MAX or not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
        raise InvalidScramMessage(f"a salt of {len(salt)} bytes and {iterations} iterations")
    return ServerFirst(match["nonce"], salt, iterations)


def read_server_final(data: bytes) -> bytes:
    """The server's signature. Raises InvalidScramMessage, also where the server names an error."""
    text = _text(data)
    if not text.startswith("v="):
        raise InvalidScramMessage("the server refused the proof")
    return _binary(text.removeprefix("v=").partition(",")[0])


def client_first(user: str, nonce: str) -> str:
    """Writes the bare message, which follows the header `n,,`."""
    return f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def server_first(nonce: str, salt: bytes, iterations: int) -> str:
    """Writes what `read_server_first` reads."""
    return f"r={nonce},s={base64_text(salt)},i={iterations}"


def base64_text(data: bytes) -> str:
    """Writes binary values as they stand in messages."""
    return base64.b64encode(data).decode("ascii")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidScramMessage("a message that is not UTF-8") from error


def _name(text: str) -> str:
    if _ESCAPE.search(text):
        raise InvalidScramMessage("a name with an = that is not =2C or =3D")
    return text.replace("=2C", ",").replace("=3D", "=")


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidScramMessage("a value that is not base64") from error
