"""How a suite's clients connect where the broker asks who they are: `make conformance SECURITY=…`.

The broker has one listener with SASL_SSL and an authorizer. The suite is an ordinary user, so that
rules are asked at every request. There are none to begin with, and what has no rule is allowed, as
suites start Kafka: their tests of rules count those that fit, and expect none but their own.
`open_to_suite` makes the user, as the super user that the broker began with.
Certificates and passwords are below the suite's work directory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from demo.broker_process import BrokerProcess
from tests.support.security.certificates import Certificates

SASL_SSL: Final = "sasl_ssl"
SUITE_USER: Final = "suite"
ADMIN: Final = "admin"
PASSWORD: Final = "pass, word=1"
TIMEOUT_S: Final = 60.0
_ITERATIONS: Final = 4_096


class SaslSsl:
    """SASL_SSL with rules, for the broker and for clients."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        certificates = Certificates(work / "certificates")
        self._keys = certificates.listener()
        self._password = work / "password"
        self._password.touch(mode=0o600)
        self._password.write_text(PASSWORD, encoding="utf-8")
        self.librdkafka: Final[Mapping[str, str]] = {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": certificates.authority,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": SUITE_USER,
            "sasl.password": PASSWORD,
        }
        self.kafka_python: Final[Mapping[str, str]] = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": certificates.authority,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": SUITE_USER,
            "sasl_plain_password": PASSWORD,
        }

    def broker_settings(self) -> Mapping[str, str]:
        """Of a broker with a port of its own."""
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{BrokerProcess.new_port()}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer": "acl",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": f"User:{ADMIN}",
            "bootstrap.admin": ADMIN,
            "bootstrap.admin.password": f"file:{self._password}",
            **self._keys,
        }

    def open_to_suite(self, bootstrap: str) -> None:
        """Add the suite's user to a broker that runs."""
        told: dict[str, Any] = {
            **self.librdkafka,
            "bootstrap.servers": bootstrap,
            "sasl.username": ADMIN,
        }
        admin = AdminClient(told)
        user = UserScramCredentialUpsertion(
            SUITE_USER,
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS),
            PASSWORD.encode(),
        )
        admin.alter_user_scram_credentials([user])[SUITE_USER].result(TIMEOUT_S)
