"""A stock Kafka admin client as the commands use it: one cluster, deadlines, errors for people.

`diskless topic`, `diskless quota` and `diskless acl` derive from `AdminConnection`; whatever else
speaks to a running broker translates errors with `translated_errors`.
"""

import argparse
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, for_code

from wal.errors import CommitFailed, DisklessError, Rejected
from wal.security.client_security import PLAINTEXT, ClientSecurity, read_client_security

REQUEST_TIMEOUT_MS: Final = 30_000
BOOTSTRAP_TIMEOUT_MS: Final = 5_000
"""For whom nobody listens: a broker that was started a moment ago listens soon."""
_AGAIN_S: Final = 0.2


class BrokerUnreachable(DisklessError):
    """No broker answered at the bootstrap address."""


class AdminConnection:
    """A context manager around a connection to one cluster. Errors are DisklessError."""

    def __init__(self, bootstrap: str, security: ClientSecurity = PLAINTEXT) -> None:
        """Raises BrokerUnreachable, LoginRefused, InvalidSettings."""
        self._bootstrap = bootstrap
        check_login(bootstrap, security)
        with translated_errors(bootstrap):
            self._admin = KafkaAdminClient(
                bootstrap_servers=bootstrap,
                client_id="diskless-cli",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
                **security.kafka_python(),
            )

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """As `options` of a command say; see `options.add_bootstrap`. Raises the same."""
        return cls(options.bootstrap, client_security(options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def _ask(self, request: Any) -> Any:
        """The answer to a message that kafka-python has, and no method that sends it."""
        # The way in which its own methods send; it is the one private thing of it used here.
        manager = self._admin._manager

        async def answer() -> Any:
            return await manager.send(request)

        with translated_errors(self._bootstrap):
            return manager.run(answer)


def client_security(options: argparse.Namespace) -> ClientSecurity:
    """What `--command-config` says. Raises InvalidSettings."""
    if options.command_config is None:
        return PLAINTEXT
    return read_client_security(options.command_config)


def check_login(bootstrap: str, security: ClientSecurity) -> None:
    """Log in once with a client of our own. Raises BrokerUnreachable, LoginRefused.

    Kafka's client tries again and again what was refused, and does not tell why in the end.
    """
    if security.login is None:
        return
    from tiering.coordinator_client import CoordinatorClient

    deadline = time.monotonic() + BOOTSTRAP_TIMEOUT_MS / 1000
    while True:
        try:
            CoordinatorClient(bootstrap, security).connect()
            return
        except CommitFailed as error:
            if not _is_nobody_there(error) or time.monotonic() > deadline:
                raise BrokerUnreachable(
                    f"{error}; is a broker running there (`diskless serve`), with SASL on that "
                    "listener?"
                ) from error
        time.sleep(_AGAIN_S)


def _is_nobody_there(error: BaseException) -> bool:
    """Whether the address was reached, and nobody listened."""
    while error.__cause__ is not None:
        error = error.__cause__
    others = (ssl.SSLError, socket.gaierror, TimeoutError)
    return isinstance(error, OSError) and not isinstance(error, others)


def check_results(results: Sequence[Mapping[str, Any]]) -> None:
    """Raises Rejected with the broker's own words for the first result that is an error."""
    for result in results:
        if result["error_code"]:
            known = for_code(result["error_code"])
            raise Rejected(result.get("error_message") or f"{result['name']}: {known.description}")


@contextmanager
def translated_errors(bootstrap: str) -> Iterator[None]:
    """Errors of the client as BrokerUnreachable and Rejected; `bootstrap` is what was asked."""
    try:
        yield
    except KafkaError as error:
        if not getattr(error, "errno", None):
            raise BrokerUnreachable(
                f"{bootstrap}: {error}; is a broker running there (`diskless serve`)?"
            ) from error
        raise Rejected(f"{type(error).__name__}: {error}") from error
