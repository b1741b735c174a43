"""The configuration section of tokens, by Kafka's keys, and one of our own for the trust store.

Nothing here can be altered while the broker runs, and no client has a say in it: which keys are
trusted, and from where they come, is written where the broker is started.
"""

from dataclasses import dataclass
from typing import Final

from wal.settings import setting

JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
ISSUER: Final = "sasl.oauthbearer.expected.issuer"
TRUSTSTORE: Final = "sasl.oauthbearer.jwks.truststore.location"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """Whose tokens are taken."""

    jwks_url: str = setting(
        JWKS_URL,
        "",
        why="where the keys of the authorization server are, as a JSON Web Key Set: "
        "https://HOST/PATH, or file:PATH; empty: nobody logs in by a token of one",
    )
    truststore: str = setting(
        TRUSTSTORE,
        "",
        why="PEM file with the certificates that the one of that server is checked against; "
        "empty: whom the machine trusts",
    )
    audience: str = setting(
        AUDIENCE,
        "",
        why="separated by commas: one of them must be in the `aud` of a token, so that a token "
        "for another service is refused",
    )
    issuer: str = setting(ISSUER, "", why="what the `iss` of a token must be")
    scope_claim: str = setting(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        why="the claim with the scopes of a token: a text, or a list of texts, each once",
    )
    user_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        why="the claim with the name of the user; one that clients can choose themselves lets "
        "them be anybody",
    )
    clock_skew_s: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        minimum=0,
        maximum=3_600,
        why="by how much the clock of the authorization server may differ; more: tokens are taken "
        "for longer than they are good",
    )
    refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        minimum=1_000,
        maximum=7 * 24 * 3_600_000,
        why="after which the keys are asked for again; longer: one that was withdrawn is trusted "
        "for longer; a key that is not known is asked for at once, twice a minute at most",
    )

    @property
    def is_on(self) -> bool:
        """Whether tokens are taken."""
        return bool(self.jwks_url)
