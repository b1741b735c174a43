"""SaslHandshake, key 17, version 1: chooses the mechanism of a log-in.

- Version 0, after which tokens would come without a frame of their own, is advertised, for clients
  look for it, and closes the connection.
- A mechanism that the listener does not have is UNSUPPORTED_SASL_MECHANISM, with those that it has;
  the connection is closed then. On a listener without SASL, and in the middle of a log-in, it is
  ILLEGAL_SASL_STATE.
- What a log-in is made of: diskless/sasl/login.py.
"""

from typing import Final

from diskless.api.errors import kafka_code
from diskless.api.users.login_errors import LOGIN_ERRORS
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.sasl.login import SASL_HANDSHAKE, Handshaken, LoginError
from diskless.server.registry import Api, Outcome, Request

KEY: Final = SASL_HANDSHAKE

_NO_LOGIN: Final = Handshaken((), LoginError.ILLEGAL_STATE)


def api() -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        login = request.login
        answer = _NO_LOGIN if login is None else login.handshake(asked.mechanism)
        error = None if answer.error is None else LOGIN_ERRORS[answer.error]()
        values = {"error_code": kafka_code(error), "mechanisms": answer.mechanisms}
        return (yield from encode_response(KEY, request.version, values))

    return Api(
        key=KEY,
        name="SaslHandshake",
        versions=range(1, 2),
        flexible_from=None,
        handler=handle,
        advertised_min_version=0,
    )
