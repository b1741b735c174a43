"""The keys that an authorization server signs tokens with, as far as this broker knows them.

A key set is what its JSON says of public keys for signatures: RSA from 2,048 to 8,192 bits, the
curves P-256, P-384, P-521 and Ed25519. What is in it besides (keys to encrypt with, secrets shared
by both sides, private keys) is passed over. Each key is good for the algorithms of its kind alone,
and where it names one, for that one; so no token chooses how it is checked.

The set is read at the start, after `refresh.ms`, and when a token names a key that is not in it:
then at once, but only every ASK_INTERVAL_S, so that made-up names cause no traffic. All who wait
for it wait for the same answer.

Invariants: a set that was read stays in use until another one was read; one without a key that can
be used is none.

Failure cases: KeysUnavailable. While it lasts the log says so, once for each attempt, and the keys
that are known stay good.
"""

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from diskless.sasl.oauth.key_source import FETCH_MAX_S, Fetch, KeysUnavailable
from wal.clock import Clock, Sleep
from wal.worker_threads import RunInThread

ASK_INTERVAL_S: Final = 30.0
RETRY_S: Final = 30.0
KEYS_MAX: Final = 100
_RSA_BITS: Final = range(2_048, 8_193)
_WAIT_MAX_S: Final = FETCH_MAX_S * 2

_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_ALGORITHMS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""By `kty` and `crv`. Neither `none` nor an algorithm with a shared secret is among them."""

ALGORITHMS: Final = frozenset().union(*_ALGORITHMS.values())
"""All that a token may be signed by."""

_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")

_log = structlog.get_logger(__name__)


class TokenKey(NamedTuple):
    """A public key, and the algorithms that it is good for."""

    key_id: str
    algorithms: frozenset[str]
    key: Any
    """As PyJWT's algorithms take it."""


class TokenKeys:
    """The keys in use; lives on one event loop."""

    def __init__(
        self, fetch: Fetch, *, refresh_s: float, run: RunInThread, clock: Clock, sleep: Sleep
    ) -> None:
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._run = run
        self._clock = clock
        self._sleep = sleep
        self._keys: Sequence[TokenKey] = ()
        self._loading: asyncio.Task[bool] | None = None
        self._ask_again_at: float | None = None
        self.loads = 0
        """How often a set was read."""
        self.failed_loads = 0

    async def run(self) -> None:
        """Read the set again and again, until cancelled."""
        try:
            while True:
                is_read = await self.load()
                await self._sleep(self._refresh_s if is_read else min(RETRY_S, self._refresh_s))
        finally:
            if self._loading is not None:
                self._loading.cancel()

    async def load(self) -> bool:
        """Read the set now, or wait for whoever does; whether another one is in use."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="token-keys")
        return await asyncio.shield(self._loading)

    async def find(self, key_id: str, algorithm: str) -> TokenKey | None:
        """The key of that name for that algorithm; an empty name is that of the only one there is.

        One that is not known is asked for.
        """
        found = self._known(key_id, algorithm)
        if found is not None or (key_id and self._is_named(key_id)):
            return found
        now = self._clock.monotonic()
        if self._loading is None:
            if self._ask_again_at is not None and now < self._ask_again_at:
                return None
            self._ask_again_at = now + ASK_INTERVAL_S
        try:
            async with asyncio.timeout(_WAIT_MAX_S):
                await self.load()
        except TimeoutError:
            return None
        return self._known(key_id, algorithm)

    def _known(self, key_id: str, algorithm: str) -> TokenKey | None:
        keys = [key for key in self._keys if key.key_id == key_id] if key_id else self._keys
        fitting = [key for key in keys if algorithm in key.algorithms]
        return fitting[0] if len(fitting) == 1 else None

    def _is_named(self, key_id: str) -> bool:
        return any(key.key_id == key_id for key in self._keys)

    async def _load(self) -> bool:
        try:
            self._keys = await self._run(functools.partial(_fetched_keys, self._fetch))
        except KeysUnavailable as error:
            self.failed_loads += 1
            _log.error(
                "the keys of tokens cannot be read, those before stay in use",
                keys=len(self._keys),
                error=str(error),
            )
            return False
        finally:
            self._loading = None
        self.loads += 1
        return True


def _fetched_keys(fetch: Fetch) -> Sequence[TokenKey]:
    return read_key_set(fetch())


def read_key_set(content: bytes) -> Sequence[TokenKey]:
    """The keys that can be used. Raises KeysUnavailable."""
    try:
        listed = json.loads(content)["keys"]
        is_list = isinstance(listed, list) and len(listed) <= KEYS_MAX
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeysUnavailable(f"this is no JSON Web Key Set: {error!r}") from error
    if not is_list:
        raise KeysUnavailable(f"a JSON Web Key Set has a list of at most {KEYS_MAX} keys")
    keys = [key for entry in listed for key in _usable(entry)]
    if not keys:
        raise KeysUnavailable("there is no public key for signatures in the JSON Web Key Set")
    return keys


def _usable(entry: Any) -> Iterator[TokenKey]:
    if not isinstance(entry, dict) or "d" in entry or entry.get("use", "sig") != "sig":
        return
    if "verify" not in entry.get("key_ops", ("verify",)):
        return
    kind, curve, key_id = entry.get("kty"), entry.get("crv", ""), entry.get("kid", "")
    if not isinstance(key_id, str) or not isinstance(kind, str) or not isinstance(curve, str):
        return
    algorithms = _ALGORITHMS.get((kind, "" if kind == "RSA" else curve), frozenset())
    if "alg" in entry:
        algorithms &= {str(entry["alg"])}
    if not algorithms:
        return
    public = {name: entry[name] for name in _PUBLIC if name in entry}
    try:
        key = jwt.PyJWK(public, min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        _log.warning("a key of the set cannot be used", kid=key_id, error=str(error))
        return
    if isinstance(key, RSAPublicKey) and key.key_size not in _RSA_BITS:
        _log.warning("a key of the set cannot be used", kid=key_id, bits=key.key_size)
        return
    yield TokenKey(key_id, algorithms, key)
