"""Opens object stores by URL: the one place that knows which implementation a URL means.

| URL | store |
|---|---|
| `file:///dir` | a directory (`wal.stores.file_store`) |
| `s3://bucket/prefix?endpoint_url=http://…&region=…` | S3, MinIO, LocalStack
(`wal.stores.s3_store`); `encryption` and `kms_key_id` are `s3.server.side.encryption` and
`s3.sse.kms.key.id` for whoever has a URL and no settings, as Spark tasks |
| `memory://name` | this process's memory, for tests (`wal.stores.memory_store`) |

Credentials never are in a URL; they come from the usual AWS settings (environment, shared files,
instance role), and so do endpoint and region unless the URL or an argument gives them.

aioboto3 takes a third of a second to import, so only an `s3://` URL does it.
"""

import random
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.stores.file_store import FileStore, FileStoreSettings
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectStore
from wal.stores.s3_settings import ENCRYPTIONS, S3Settings

ALLOWED: Final = "allowed are file:///dir, s3://bucket/prefix and memory://name"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """A parsed store URL."""

    scheme: Literal["file", "s3", "memory"]
    place: str
    """The absolute directory, the bucket, or the name."""
    prefix: str = ""
    """Within the bucket, without slashes at the ends."""
    endpoint_url: str | None = None
    region: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None

    def s3_settings(self, settings: S3Settings | None) -> S3Settings:
        """Returns these settings, or the defaults, with what the URL says in place of theirs."""
        settings = settings or S3Settings()
        if self.encryption is not None:
            settings = replace(settings, encryption=self.encryption)
        if self.kms_key_id is not None:
            settings = replace(settings, kms_key_id=self.kms_key_id)
        return settings


def parse_store_url(url: str) -> StoreLocation:
    """Returns what `url` names. Raises InvalidSettings saying what is allowed."""

    def invalid(reason: str) -> InvalidSettings:
        return InvalidSettings(f"object store {url!r}: {reason}; {ALLOWED}")

    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else ())
    except ValueError as error:
        raise invalid(str(error)) from error
    if parts.username is not None or parts.password is not None:
        # Not repeated: it may be a secret.
        raise InvalidSettings("object store: a URL must not hold credentials; use the AWS settings")
    if parts.fragment or (options and parts.scheme != "s3"):
        raise invalid("it has options that its scheme does not know")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise invalid("a directory must be absolute")
        return StoreLocation(scheme="file", place=unquote(parts.path))
    if parts.scheme == "memory":
        if parts.path.strip("/"):
            raise invalid("a memory store has a name and no path")
        return StoreLocation(scheme="memory", place=parts.netloc)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise invalid("the bucket is missing")
        unknown = options.keys() - {"endpoint_url", "region", "encryption", "kms_key_id"}
        if unknown:
            raise invalid(f"unknown option {', '.join(sorted(unknown))}")
        if options.get("encryption", "") not in ENCRYPTIONS:
            raise invalid(f"unknown encryption {options['encryption']!r}")
        return StoreLocation(
            scheme="s3",
            place=parts.netloc,
            prefix=unquote(parts.path).strip("/"),
            endpoint_url=options.get("endpoint_url"),
            region=options.get("region"),
            encryption=options.get("encryption"),
            kms_key_id=options.get("kms_key_id"),
        )
    raise invalid(f"unknown scheme {parts.scheme!r}")


def base_uri(url: str) -> str:
    """What the URIs of all objects of the store that `url` names start with; then `/` and the key.

    By these URIs programs that are not ours read objects: other readers of Parquet and of tables.
    Raises InvalidSettings.
    """
    location = parse_store_url(url)
    place = f"{location.scheme}://{location.place.rstrip('/')}"
    return f"{place}/{location.prefix}" if location.prefix else place


def open_store(
    url: str,
    *,
    clock: Clock,
    rng: random.Random,
    endpoint_url: str | None = None,
    region: str | None = None,
    sync: bool = True,
    file_settings: FileStoreSettings | None = None,
    s3_settings: S3Settings | None = None,
) -> ObjectStore:
    """The store that `url` names; enter it with `async with` before use.

    `endpoint_url` and `region` are used when the URL does not say. `sync` is for directories only:
    without it a put survives a crash of the process but not of the machine.
    Raises InvalidSettings saying what is allowed.
    """
    location = parse_store_url(url)
    if location.scheme == "file":
        return FileStore(location.place, clock=clock, rng=rng, sync=sync, settings=file_settings)
    if location.scheme == "memory":
        return MemoryStore(location.place, clock=clock)
    from wal.stores.s3_store import S3Store

    return S3Store(
        location.place,
        location.prefix,
        endpoint_url=location.endpoint_url or endpoint_url,
        region=location.region or region,
        clock=clock,
        rng=rng,
        settings=location.s3_settings(s3_settings),
    )
