"""The tokens that this broker takes: those of the authorization server that is configured.

Failure case: InvalidSettings for settings that do not go together, and for a file of keys that
cannot be read. An authorization server that does not answer does not keep a broker from starting:
users with passwords can log in meanwhile.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, Protocol

from diskless.config import Config
from diskless.parts.background import run_until_stop
from diskless.sasl.oauth.key_source import KeysUnavailable, key_source
from diskless.sasl.oauth.oauth_settings import JWKS_URL
from diskless.sasl.oauth.token_keys import TokenKeys, read_key_set
from diskless.sasl.oauth.tokens import TokenCheck
from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.worker_threads import WorkerThreads

TOKEN_CHECKS_MAX: Final = 2
"""At once, each in a thread; one more thread is for reading keys."""

_FILE: Final = "file:"


class Tokens(NamedTuple):
    """Nothing where no tokens are taken."""

    check: TokenCheck | None = None
    keys: TokenKeys | None = None


class _Ground(Protocol):
    @property
    def config(self) -> Config: ...
    @property
    def clock(self) -> Clock: ...


async def open_tokens(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: _Ground,
    *,
    checks_max: int = TOKEN_CHECKS_MAX,
    is_checked: bool = True,
) -> Tokens:
    """Reads keys until the stop. Without `is_checked` a file of keys that cannot be read is one
    that cannot be read yet. Raises InvalidSettings.
    """
    settings = base.config.tokens
    if not settings.is_on:
        return Tokens()
    fetch = key_source(settings, base.clock)
    checking, fetching = WorkerThreads("token", checks_max), WorkerThreads("token-keys", 1)
    stack.push_async_callback(checking.close)
    stack.push_async_callback(fetching.close)
    keys = TokenKeys(
        fetch,
        refresh_s=settings.refresh_ms / 1000,
        run=fetching.run,
        clock=base.clock,
        sleep=asyncio.sleep,
    )
    check = TokenCheck(settings, keys, run=checking.run, clock=base.clock)
    if is_checked and settings.jwks_url.startswith(_FILE):
        try:
            await fetching.run(lambda: read_key_set(fetch()))
        except KeysUnavailable as error:
            raise InvalidSettings(f"{JWKS_URL}={settings.jwks_url}: {error}") from error
    run_until_stop(stack, tasks, keys.run(), "token-keys")
    return Tokens(check, keys)
