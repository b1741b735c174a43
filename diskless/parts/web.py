"""Opens the HTTP port to those who have rights there, once users and rules are known."""

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from diskless.authorization import Authorizer
from diskless.parts.coordination import Coordination
from diskless.parts.foundation import Foundation
from diskless.parts.tokens import Tokens
from diskless.sasl.cluster_secret import local_secret
from diskless.sasl.failure_delay import FailureDelay
from diskless.sasl.plain import PasswordCheck
from diskless.sasl.scram_users import ScramUsers
from diskless.web.http_logins import HttpLogins
from diskless.web.issued_tokens import IssuedTokens
from wal.worker_threads import WorkerThreads

_PURPOSE: Final = "http tokens"
_PASSWORD_CHECKS_MAX: Final = 2
"""At once, each in a thread; beside those of Kafka's listeners."""


async def open_web(
    stack: AsyncExitStack,
    base: Foundation,
    coordination: Coordination,
    tokens: Tokens,
    authorizer: Authorizer,
) -> None:
    """Nothing where the port asks nobody. Raises CorruptObject, OSError."""
    gate = base.gate
    if gate is None:
        return
    rng = random.SystemRandom()
    keys: Callable[[], Sequence[bytes]]
    shared = coordination.secrets
    if shared is not None:
        keys = functools.partial(shared.derived, _PURPOSE)
        decoys = shared.decoys
    else:
        own = await asyncio.to_thread(local_secret, base.data.path, base.clock, rng)
        mine = (own.derived(_PURPOSE),)
        keys, decoys = lambda: mine, own.decoys
    users = ScramUsers(coordination.client.scram_credentials, decoy_key=decoys)
    threads = WorkerThreads("http-password", _PASSWORD_CHECKS_MAX)
    stack.push_async_callback(threads.close)
    logins = HttpLogins(
        passwords=PasswordCheck(users, run=threads.run, clock=base.clock, rng=rng),
        issued=IssuedTokens(
            users,
            keys,
            lifetime_ms=base.config.http.token_lifetime_ms,
            clock=base.clock,
        ),
        tokens=tokens.check,
        stored=coordination.client.access_tokens,
        certificates=None if base.http_keys is None else base.http_keys.principals,
        delay=FailureDelay(base.config.sasl.failure_delay_ms, base.clock),
        audit=base.audit,
        clock=base.clock,
        sleep=asyncio.sleep,
    )
    gate.open(logins, authorizer, base.audit)
    stack.callback(gate.close)
