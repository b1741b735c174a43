"""What the answers of SaslHandshake and SaslAuthenticate call an error of a log-in."""

from collections.abc import Mapping
from typing import Final

from diskless.api.errors import (
    IllegalSaslState,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from diskless.sasl.login import LoginError
from wal.errors import DisklessError

LOGIN_ERRORS: Final[Mapping[LoginError, type[DisklessError]]] = {
    LoginError.UNSUPPORTED_MECHANISM: UnsupportedSaslMechanism,
    LoginError.ILLEGAL_STATE: IllegalSaslState,
    LoginError.FAILED: SaslAuthenticationFailed,
}
