"""SaslAuthenticate, key 36, versions 0-2: a token of a mechanism, answered by the server's.

- A log-in that fails is SASL_AUTHENTICATION_FAILED with one text for all causes, after a delay, and
  the connection is closed then. Without SaslHandshake before it is ILLEGAL_SASL_STATE.
- From version 1 on the answer says after how many milliseconds the client must log in again.
- What a log-in is made of: diskless/sasl/login.py.
"""

from datetime import timedelta
from typing import Final

from diskless.api.errors import kafka_code
from diskless.api.users.login_errors import LOGIN_ERRORS
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.sasl.login import FAILED_TEXT, SASL_AUTHENTICATE, Authenticated, LoginError
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request

KEY: Final = SASL_AUTHENTICATE

_NO_LOGIN: Final = Authenticated(error=LoginError.ILLEGAL_STATE)


def api() -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)

        def encode(answer: Authenticated) -> ReplySteps:
            error = None if answer.error is None else LOGIN_ERRORS[answer.error]()
            values = {
                "error_code": kafka_code(error),
                "error_message": None if error is None else FAILED_TEXT,
                "auth_bytes": answer.token,
                "session_lifetime": timedelta(milliseconds=answer.lifetime_ms),
            }
            return encode_response(KEY, request.version, values)

        if request.login is None:
            return (yield from encode(_NO_LOGIN))
        return Deferred(request.login.authenticate(asked.auth_bytes), encode, None)

    return Api(
        key=KEY,
        name="SaslAuthenticate",
        versions=range(3),
        flexible_from=2,
        handler=handle,
        starts_in_turn=True,
    )
