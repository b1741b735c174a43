"""Knows S3 for the S3 stores: its requests, and what an answer means.

Plain functions of single requests and answers; `wal.stores.s3_operations` puts them together, and
the two clients, `wal.stores.s3_store` (aioboto3) and `wal.stores.blocking_s3_store` (boto3), send
and wait.

How a put stays exact although answers get lost:

- `If-None-Match: *` makes S3 refuse (412) when the key exists; a race is decided by S3, sometimes
  by a 409 that asks for another attempt.
- Every put carries a random put-id in the object's metadata. After a 412 the stored put-id is
  looked at: ours means that an earlier attempt of this very put arrived and only its answer was
  lost. Otherwise the stored bytes are compared: equal ones are a success too
  (`wal.stores.object_store`).
- Our CRC32C of the body, known before the first attempt, goes along as the object's checksum.
  S3 refuses a body that does not have it, so what a 200 confirms is what we meant to store.

What a failed attempt means (`Failure`) matters only for puts, where "may have been stored" and
"certainly was not" lead to different errors once the retries are used up. Whatever is not known to
be harmless counts as possibly stored: a timeout, a reset connection, and *every* 5xx, also one that
says SlowDown. Between us and the store may be a proxy that sent the request on, waited too long,
and asked another server, which answers that; or that answers so itself. Some stores say SlowDown
when too few of their disks have written the object. So a put that comes to its end that way is
looked for before it is given up (`wal.stores.s3_operations`).

botocore's own retries are off: they would hide from us which attempts may have been applied.
"""

import base64
import enum
import functools
import random
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.handlers import (
    add_expect_header,
    set_list_objects_encoding_type_url,
    validate_bucket_name,
)
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session

from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptObject, InvalidSettings
from wal.stores.object_store import ChecksummedBody, ObjectBody
from wal.stores.s3_settings import KMS, S3Settings

PUT_ID_METADATA: Final = "diskless-put-id"
DELETE_KEYS_MAX: Final = 1000
"""S3's limit of keys in one DeleteObjects request."""

PIECE_BYTES: Final = 256 * 1024
"""A body goes to the socket in pieces of this size."""

COMPARE_BYTES: Final = 8 * 1024 * 1024
"""A stored object is compared with a body in ranges of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A prefix of a bucket, and where to reach it. Make it with `of`."""

    bucket: str
    prefix: str
    """Before each key: empty, or with a slash at its end only."""
    endpoint_url: str | None
    region: str | None
    encryption: str = ""
    """What puts ask for, one of ENCRYPTIONS."""
    kms_key_id: str = ""

    @classmethod
    def of(
        cls,
        bucket: str,
        prefix: str,
        endpoint_url: str | None,
        region: str | None,
        settings: S3Settings,
    ) -> Self:
        """Raises InvalidSettings for a key of the key service that nothing is encrypted with."""
        if settings.kms_key_id and not settings.encryption.startswith(KMS):
            raise InvalidSettings(
                f"s3.sse.kms.key.id={settings.kms_key_id}: write s3.server.side.encryption={KMS}"
            )
        return cls(
            bucket=bucket,
            prefix=f"{prefix.strip('/')}/" if prefix.strip("/") else "",
            endpoint_url=endpoint_url,
            region=region,
            encryption=settings.encryption,
            kms_key_id=settings.kms_key_id,
        )

    @property
    def url(self) -> str:
        """The URL that opens the same store again, and has jobs encrypt as the broker does."""
        options = {
            "endpoint_url": self.endpoint_url,
            "region": self.region,
            "encryption": self.encryption,
            "kms_key_id": self.kms_key_id,
        }
        query = urlencode({name: value for name, value in options.items() if value})
        path = quote(self.prefix.rstrip("/"))
        return f"s3://{self.bucket}/{path}{'?' if query else ''}{query}"

    def name_of(self, key: str) -> str:
        """Returns what the bucket calls the object `key`, or the keys that start so."""
        return self.prefix + key

    def key_of(self, entry: Mapping[str, Any]) -> ObjectKey:
        """The key of an object that an answer tells of."""
        return ObjectKey(str(entry["Key"])[len(self.prefix) :])


class Failure(enum.Enum):
    """What a failed request means for its caller."""

    NOT_FOUND = "no such object"
    EXISTS = "a conditional put met an object"
    OUT_OF_RANGE = "the object is shorter than the range asked for"
    NOT_APPLIED = "certainly had no effect; may work later"
    MAYBE_APPLIED = "may have had its effect, or may still have it; may work later"
    REFUSED = "certainly had no effect and will not work later"


# Answers below 500 by which S3 itself says that nothing happened and that trying again makes sense.
_NOT_APPLIED_CODES: Final = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InvalidDigest",
        "KMS.ThrottlingException",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
# Before a connection stood.
_NEVER_SENT: Final = (ConnectTimeoutError, ProxyConnectionError)
# Before a request could be signed.
_NEVER_SIGNED: Final = (
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
TRANSPORT_ERRORS: Final = (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseParserError,
    ResponseStreamingError,
    SSLError,
    *_NEVER_SENT,
    *_NEVER_SIGNED,
)
"""What a client call may raise; anything else is a bug and is not translated."""


def failure_of(error: BaseException) -> Failure:
    """Returns what `error`, raised by a client call or by our own timeout around it, means."""
    if isinstance(error, ClientError):
        return _failure_of_answer(error.response)
    if isinstance(error, _NEVER_SIGNED):
        return Failure.REFUSED
    if isinstance(error, _NEVER_SENT) or _is_bad_certificate(error):
        return Failure.NOT_APPLIED
    return Failure.MAYBE_APPLIED


def _is_bad_certificate(error: BaseException | None) -> bool:
    """Whether the handshake failed. Other TLS errors may come while an answer is read."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _failure_of_answer(response: Mapping[str, Any]) -> Failure:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return Failure.REFUSED
    if status >= 500 and status != 501:
        return Failure.MAYBE_APPLIED
    if code.lower().startswith("kms") and code not in _NOT_APPLIED_CODES:
        # The object is not the one that is missing.
        return Failure.REFUSED
    if status == 404:
        return Failure.NOT_FOUND
    if status == 412:
        return Failure.EXISTS
    if status == 416:
        return Failure.OUT_OF_RANGE
    if code in _NOT_APPLIED_CODES or status in (409, 429):
        return Failure.NOT_APPLIED
    return Failure.REFUSED


def client_configuration(settings: S3Settings, *, endpoint_url: str | None) -> dict[str, Any]:
    """Arguments of botocore's `Config` for an endpoint (None: AWS itself)."""
    s3: dict[str, object] = {}
    if endpoint_url is not None and "amazonaws.com" not in endpoint_url:
        # MinIO, LocalStack and moto have no DNS name per bucket.
        s3["addressing_style"] = "path"
    has_tls = endpoint_url is None or endpoint_url.startswith("https:")
    # TLS and our CRC32C protect the body; hashing it once more for the signature costs more than
    # twice what everything else of an 8 MiB put does.
    s3["payload_signing_enabled"] = settings.payload_signed and not has_tls
    return {
        "connect_timeout": settings.connect_timeout_ms / 1000,
        "read_timeout": settings.read_timeout_ms / 1000,
        "max_pool_connections": settings.connections_max,
        "retries": {"total_max_attempts": 1},
        # Only our own CRC32C; some S3 servers reject the default trailing checksums.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "s3": s3,
    }


def endpoint_to_reopen_with(client: Any, settings: S3Settings) -> str | None:
    """For a client made without an endpoint: where it goes, when it has the wrong options for that.

    Only botocore knows where its settings point to; when that is not AWS, the client needs other
    options, which cannot be changed afterwards. None: keep the client.
    """
    resolved = str(client.meta.endpoint_url)
    configured = client_configuration(settings, endpoint_url=resolved)
    return None if configured == client_configuration(settings, endpoint_url=None) else resolved


def share_models(session: Session) -> None:
    """Have a session take from all others what they have read of botocore's JSON files.

    Each store has a session of its own, since these are for one thread; what is parsed is only
    read. boto3 adds a directory to the loader of the session that it is given: give it that before.
    """
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Keeps what it has parsed: 80 ms of processor time for S3, in each task that opens a store."""
    return create_loader(data_path)


def drop_unwanted_work(client: Any) -> None:
    """Turn off what botocore would do besides what it is asked for."""
    # botocore keeps the endpoints that its rules gave, by all that these may look at. They look at
    # no key, but know of it: so each request of another key would be 0.13 ms more.
    parameters = client._ruleset_resolver._provider.ruleset.parameters
    for name in ("Key", "Prefix", "CopySource"):
        parameters.pop(name, None)
    # botocore would put its User-Agent together twice for each request: 0.1 ms of a put's 1.2.
    agent = client._user_agent_creator.to_string()
    client._user_agent_creator.to_string = lambda: agent
    # "Expect: 100-continue" before each body would cost a round trip per put, and spares
    # nothing but the rare refused one.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    # Our keys need no encoding in XML, and LocalStack compares StartAfter with encoded ones.
    client.meta.events.unregister(
        "before-parameter-build.s3.ListObjectsV2", set_list_objects_encoding_type_url
    )
    if "amazonaws.com" not in client.meta.endpoint_url:
        client.meta.events.register("before-call.s3", _stay_at_this_endpoint)


def _stay_at_this_endpoint(params: Mapping[str, Any], **_: object) -> None:
    """Keep botocore from looking for the bucket's region after a redirect.

    It asks the same endpoint, and again for each answer that is a redirect too, as from a proxy
    that sends everybody from http to https: that ends in a RecursionError.
    """
    if "s3_redirect" in params["context"]:
        params["context"]["s3_redirect"]["redirected"] = True


def check_bucket_name(bucket: str) -> None:
    """Raise botocore's ParamValidationError, before any request is made with such a name."""
    validate_bucket_name({"Bucket": bucket})


def new_put_id(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def encryption_arguments(location: S3Location) -> dict[str, Any]:
    """Returns the arguments by which a PutObject asks to be encrypted."""
    if not location.encryption:
        return {}
    arguments: dict[str, Any] = {"ServerSideEncryption": location.encryption}
    if location.encryption == KMS:
        # The other one of the key service takes no keys of the bucket.
        arguments["BucketKeyEnabled"] = True
    if location.kms_key_id:
        arguments["SSEKMSKeyId"] = location.kms_key_id
    return arguments


def put_arguments(location: S3Location, checksum: str, put_id: str) -> dict[str, Any]:
    """Returns the arguments that make a PutObject conditional, checked, encrypted, recognisable."""
    return {
        **encryption_arguments(location),
        "IfNoneMatch": "*",
        "ChecksumAlgorithm": "CRC32C",
        "ChecksumCRC32C": checksum,
        "Metadata": {PUT_ID_METADATA: put_id},
    }


def encoded_checksum(checksum: int) -> str:
    """A CRC32C as S3 writes it: base64 of four big-endian bytes."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def body_checksum(key: str, body: ObjectBody) -> str:
    """The body's CRC32C as S3 writes it. Reads the whole body unless it knows; may block.

    Raises: CorruptObject when the body is not as long as it says, CorruptChunk from the body.
    """
    if isinstance(body, ChecksummedBody):
        return encoded_checksum(body.crc32c())
    checksum = 0
    length = 0
    for fragment in body.fragments():
        view = memoryview(fragment).cast("B")
        checksum = crc32c(view, checksum)
        length += len(view)
    if length != body.length_bytes:
        raise CorruptObject(f"{key}: the body says {body.length_bytes} bytes and has {length}")
    return encoded_checksum(checksum)


def full_checksum(response: Mapping[str, Any]) -> str | None:
    """The CRC32C of a whole object in an answer, if there is one.

    An object that was uploaded in parts has a checksum of checksums, which ends in `-<parts>`.
    """
    checksum = response.get("ChecksumCRC32C")
    return checksum if isinstance(checksum, str) and "-" not in checksum else None


def check_stored(key: str, response: Mapping[str, Any], length: int, checksum: str) -> None:
    """Raise CorruptObject unless a HEAD answer describes what was put."""
    stored_checksum = full_checksum(response)
    stored_length = int(response["ContentLength"])
    if stored_length != length or stored_checksum not in (None, checksum):
        raise CorruptObject(
            f"{key}: put {length} bytes with CRC32C {checksum},"
            f" stored are {stored_length} with {stored_checksum}"
        )


def check_whole(key: str, response: Mapping[str, Any], data: bytes) -> None:
    """Raise CorruptObject unless `data` is the object that a GET answer announced."""
    length = int(response["ContentLength"])
    if len(data) != length:
        raise CorruptObject(f"{key}: got {len(data)} bytes of {length}")
    checksum = full_checksum(response)
    if checksum is not None and checksum != encoded_checksum(crc32c(data)):
        raise CorruptObject(f"{key}: {length} bytes do not have their CRC32C {checksum}")


def check_range(
    key: str, response: Mapping[str, Any], data: bytes, start: int, length: int
) -> None:
    """Raise CorruptObject unless `data` is the range that was asked for.

    A server that does not know ranges answers with the whole object and without Content-Range.
    """
    wanted = f"bytes {start}-{start + length - 1}/"
    content_range = str(response.get("ContentRange", ""))
    if len(data) != length or not content_range.startswith(wanted):
        raise CorruptObject(
            f"{key}: asked for bytes [{start}, {start + length}), got {len(data)}"
            f" as {content_range or 'no range at all'!r}"
        )


def last_modified_ms(response: Mapping[str, Any]) -> int:
    return int(response["LastModified"].timestamp() * 1000)


def pieces(body: ObjectBody) -> Iterator[bytes]:
    """The body as immutable pieces of PIECE_BYTES (the last is shorter). May block.

    Copies: what is handed to a transport stays in its queue after the fragment is no longer valid.
    """
    piece = bytearray()
    for fragment in body.fragments():
        view = memoryview(fragment).cast("B")
        while view:
            taken = view[: PIECE_BYTES - len(piece)]
            piece += taken
            view = view[len(taken) :]
            if len(piece) == PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


class BodyReader:
    """A body as the seekable file that botocore wants, without joining it.

    botocore asks for its length, reads it through where it must sign it, and seeks back to the
    start; then the HTTP client reads it again.
    """

    def __init__(self, body: ObjectBody) -> None:
        self._body = body
        self._position = 0
        self._pieces: Iterator[bytes] = iter(())
        self._piece = b""
        self._taken = 0
        self.seek(0)

    def __len__(self) -> int:
        return self._body.length_bytes

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """To the start or to the end: the only places anybody needs."""
        if (position, whence) == (0, 0):
            self._pieces = pieces(self._body)
            self._position = 0
        elif (position, whence) == (0, 2):
            self._pieces = iter(())
            self._position = len(self)
        else:
            raise ValueError(f"cannot seek to {position} from {whence}")
        self._piece = b""
        self._taken = 0
        return self._position

    def read(self, length: int | None = -1) -> bytes:
        """At most `length` bytes, empty at the end; all that is left when negative or None."""
        if length is None or length < 0:
            data = self._piece[self._taken :] + b"".join(self._pieces)
            self._piece = b""
            self._taken = 0
        else:
            if self._taken == len(self._piece):
                self._piece = next(self._pieces, b"")
                self._taken = 0
            # urllib3 reads 16 KiB at a time: only those are copied, not what is left of the piece.
            data = self._piece[self._taken : self._taken + length]
            self._taken += len(data)
        self._position += len(data)
        return data

    def continues_with(self, expected: bytes) -> bool:
        """Whether the next bytes are `expected`; the position is behind them if so. May block."""
        position = 0
        while position < len(expected):
            piece = self.read(len(expected) - position)
            if not piece or not expected.startswith(piece, position):
                return False
            position += len(piece)
        return True
