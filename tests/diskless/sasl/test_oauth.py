"""OAUTHBEARER without a socket: which tokens are good, whose keys count, what a client is told."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from diskless.sasl.mechanisms import AuthenticationFailed, Step
from diskless.sasl.oauth.exchange import INVALID_TOKEN, OAuthBearerExchange, parse_first
from diskless.sasl.oauth.key_source import KEY_SET_BYTES_MAX, KeysUnavailable, key_source
from diskless.sasl.oauth.oauth_settings import OAuthSettings
from diskless.sasl.oauth.token_keys import ASK_INTERVAL_S, TokenKeys, read_key_set
from diskless.sasl.oauth.tokens import TOKEN_BYTES_MAX, Bearer, TokenCheck
from tests.support.samples.fuzzing import fuzzed
from tests.support.security.authorization_server import (
    AUDIENCE,
    ISSUER,
    AuthorizationServer,
    Issuer,
)
from tests.support.security.certificates import Certificates
from wal.clock import ManualClock, SystemClock
from wal.errors import InvalidSettings

ISSUED = Issuer()
RSA = Issuer("rsa", is_rsa=True)
SETTINGS = {"jwks_url": "file:unused", "issuer": ISSUER, "audience": AUDIENCE}


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


async def never(_: float) -> None:
    await asyncio.Event().wait()


class Rig:
    """A check, its clock, and an authorization server that counts who asks."""

    def __init__(self, *issuers: Issuer, **settings: Any) -> None:
        self.clock = ManualClock()
        self.issuers = issuers or (ISSUED,)
        self.fetched = 0
        self.is_away = False
        self.keys = TokenKeys(
            self._fetch, refresh_s=3_600, run=at_once, clock=self.clock, sleep=never
        )
        made = OAuthSettings(**{**SETTINGS, **settings})
        self.check = TokenCheck(made, self.keys, run=at_once, clock=self.clock)

    @property
    def now_s(self) -> int:
        return self.clock.now_ms() // 1_000

    def _fetch(self) -> bytes:
        self.fetched += 1
        if self.is_away:
            raise KeysUnavailable("away")
        return json.dumps({"keys": [one.public() for one in self.issuers]}).encode()

    def token(self, **claims: Any) -> str:
        return ISSUED.token(self.now_s, **claims)

    async def refused(self, token: str) -> str:
        """Why."""
        with pytest.raises(AuthenticationFailed) as error:
            await self.check.bearer(token)
        return str(error.value)


async def test_a_good_token_has_a_user_and_an_end() -> None:
    rig = Rig()
    assert await rig.check.bearer(rig.token()) == Bearer("ann", (rig.now_s + 3_600) * 1_000)
    many = rig.token(aud=["else", AUDIENCE], scope=["a", "b"])
    assert (await rig.check.bearer(many)).user == "ann"
    assert rig.fetched == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"iss": None},
        {"aud": None},
        {"sub": None},
        {"iss": "https://other.example"},
        {"aud": "other"},
        {"aud": []},
        {"sub": ""},
        {"sub": "  "},
        {"sub": 7},
        {"sub": ["ann"]},
        {"sub": "__broker"},
        {"sub": "__anything"},
        {"sub": "ann\n"},
        {"sub": "x" * 300},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": 2**70},
        {"nbf": "now"},
        {"iat": {}},
        {"scope": 1},
        {"scope": ["a", "a"]},
        {"scope": ["a", " "]},
        {"scope": [{}]},
    ],
    ids=str,
)
async def test_a_claim_that_is_wrong_or_missing_is_refused(claims: dict[str, Any]) -> None:
    rig = Rig()
    good = ISSUED.claims(rig.now_s)
    changed = {name: value for name, value in {**good, **claims}.items() if value is not None}
    # As JSON, for jwt.encode has an opinion about times.
    token = jwt.PyJWS().encode(
        json.dumps(changed).encode(), ISSUED.key, ISSUED.algorithm, headers={"kid": "k1"}
    )
    assert await rig.refused(token)


@pytest.mark.parametrize(
    ("seconds", "is_good"),
    [(3_599, True), (3_600, True), (3_629, True), (3_630, False), (-30, True), (-31, False)],
)
async def test_times_count_by_our_clock_give_or_take_the_skew(seconds: int, is_good: bool) -> None:
    rig = Rig()
    token = rig.token()
    rig.clock.step_wall(seconds)
    if not is_good:
        assert "time" in await rig.refused(token) or "ended" in await rig.refused(token)
        return
    bearer = await rig.check.bearer(token)
    assert bearer.ends_at_ms > rig.clock.now_ms(), "a session that is over at once is none"


async def test_a_token_before_its_time_is_refused() -> None:
    rig = Rig()
    assert "nbf" in await rig.refused(rig.token(nbf=rig.now_s + 31))


async def test_the_name_may_be_in_another_claim() -> None:
    rig = Rig(user_claim="preferred_username")
    assert (await rig.check.bearer(rig.token(preferred_username="bob"))).user == "bob"
    assert await rig.refused(rig.token())


def encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hs256(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    signed = f"{encoded(header)}.{encoded(claims)}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


async def test_a_token_does_not_choose_how_it_is_checked() -> None:
    """CVE-2015-9235, CVE-2016-5431, CVE-2018-0114 and their kin."""
    rig = Rig(ISSUED, RSA)
    claims = ISSUED.claims(rig.now_s)
    for name in ("none", "None", "NONE", "", "HS256", "RS256 "):
        header = {"alg": name, "kid": "k1"}
        assert "signed" in await rig.refused(f"{encoded(header)}.{encoded(claims)}.")
    for alg in (None, 1, ["ES256"], {"a": 1}):
        assert await rig.refused(f"{encoded({'alg': alg, 'kid': 'k1'})}.{encoded(claims)}.eA")
    # The public key, which everybody has, as if it were a secret of both sides.
    for form in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1):
        pem = RSA.key.public_key().public_bytes(Encoding.PEM, form)
        for secret in (pem, json.dumps(RSA.public()).encode(), b""):
            for alg in ("HS256", "HS384", "HS512"):
                assert await rig.refused(hs256({"alg": alg, "kid": "rsa"}, claims, secret))
    # A key of the sender's own, in the token or behind a URL in it.
    other = Issuer("k1")
    assert "along" in await rig.refused(other.signed(claims, jwk=other.public()))
    assert "along" in await rig.refused(other.signed(claims, x5c=["MII"]))
    with AuthorizationServer(other) as server:
        for name in ("jku", "x5u", "iss"):
            assert await rig.refused(other.signed(claims, **{name: f"{server.url}/jwks"}))
        assert not server.asked, "nothing that a token says is followed"
    # One key's name with another's kind of algorithm.
    assert "known" in await rig.refused(RSA.signed(claims, kid="k1"))
    assert "known" in await rig.refused(ISSUED.signed(claims, kid="rsa"))
    assert await rig.refused(ISSUED.signed(claims, crit=["exp"], exp=1))
    assert (await rig.check.bearer(RSA.signed(claims))).user == "ann"


async def test_a_changed_token_is_refused() -> None:
    rig = Rig()
    header, claims, signature = rig.token().split(".")
    changed = encoded({**ISSUED.claims(rig.now_s), "sub": "admin"})
    for token in (
        f"{header}.{changed}.{signature}",
        f"{header}.{claims}.",
        f"{header}.{claims}",
        f"{header}.{claims}.{signature}.{signature}",
        "",
        "..",
        f"{encoded(b'[' * 9_000)}.{claims}.{signature}",
        "a" * (TOKEN_BYTES_MAX + 1),
    ):
        assert await rig.refused(token)


async def test_without_a_name_the_only_key_for_it_counts() -> None:
    claims = ISSUED.claims(ManualClock().now_ms() / 1_000)
    nameless = jwt.encode(claims, ISSUED.key, ISSUED.algorithm)
    assert (await Rig(ISSUED, RSA).check.bearer(nameless)).user == "ann"
    assert await Rig(ISSUED, Issuer("k2")).refused(nameless)


# --- keys


async def test_a_new_key_is_asked_for_at_once_and_made_up_names_cause_no_traffic() -> None:
    rig = Rig()
    await rig.check.bearer(rig.token())
    new = Issuer("k2")
    rig.issuers = (ISSUED, new)
    rig.clock.advance(ASK_INTERVAL_S + 1)
    assert (await rig.check.bearer(new.token(rig.now_s, sub="bob"))).user == "bob"
    fetched = rig.fetched
    for number in range(20):
        assert await rig.refused(Issuer(f"made-up-{number}").token(rig.now_s))
    assert rig.fetched == fetched
    rig.clock.advance(ASK_INTERVAL_S + 1)
    for number in range(20):
        assert await rig.refused(Issuer(f"made-up-{number}").token(rig.now_s))
    assert rig.fetched == fetched + 1


async def test_the_last_good_keys_stay_while_the_server_is_away() -> None:
    rig = Rig()
    assert await rig.keys.load()
    rig.is_away = True
    assert not await rig.keys.load()
    assert (await rig.check.bearer(rig.token())).user == "ann"
    assert (rig.keys.loads, rig.keys.failed_loads) == (1, 1)


async def test_a_withdrawn_key_counts_until_the_set_is_read_again() -> None:
    rig = Rig()
    await rig.check.bearer(rig.token())
    rig.issuers = (Issuer("k2"),)
    await rig.keys.load()
    assert await rig.refused(rig.token())


async def test_all_who_wait_for_keys_share_one_answer() -> None:
    gate, is_asked = asyncio.Event(), asyncio.Event()
    fetched = []

    async def run(work: Callable[[], Any]) -> Any:
        fetched.append(1)
        is_asked.set()
        await gate.wait()
        return work()

    clock = ManualClock()
    keys = TokenKeys(ISSUED.key_set, refresh_s=1, run=run, clock=clock, sleep=never)
    asking = [asyncio.create_task(keys.find("k1", "ES256")) for _ in range(10)]
    await is_asked.wait()
    asking[0].cancel()
    gate.set()
    assert all(await asyncio.gather(*asking[1:]))
    assert len(fetched) == 1


def test_only_public_keys_for_signatures_are_taken() -> None:
    short = rsa.generate_private_key(65_537, 1_024)
    weak = jwt.algorithms.RSAAlgorithm.to_jwk(short.public_key(), as_dict=True)
    edwards = ed25519.Ed25519PrivateKey.generate()
    shown = jwt.algorithms.OKPAlgorithm.to_jwk(edwards.public_key(), as_dict=True)
    private = jwt.algorithms.ECAlgorithm.to_jwk(ISSUED.key, as_dict=True)
    entries = [
        ISSUED.public(),
        RSA.public(alg="PS256"),
        {**shown, "kid": "ed"},
        {"kty": "oct", "k": encoded(b"x" * 32), "kid": "shared", "alg": "HS256"},
        {**weak, "kid": "weak"},
        {**private, "kid": "private"},
        ISSUED.public(use="enc", kid="enc"),
        ISSUED.public(alg="HS256", kid="lies"),
        ISSUED.public(alg="none", kid="lies"),
        ISSUED.public(crv="secp256k1", kid="curve"),
        {**ISSUED.public(kid="point"), "x": encoded(b"\1" * 32)},
        {"kty": ["RSA"]},
        "key",
        None,
    ]
    keys = read_key_set(json.dumps({"keys": entries}).encode())
    assert {key.key_id: key.algorithms for key in keys} == {
        "k1": {"ES256"},
        "rsa": {"PS256"},
        "ed": {"EdDSA"},
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1]}',
        b"\xff",
        b"[" * 100_000,
        json.dumps({"keys": [ISSUED.public()] * 101}).encode(),
    ],
    ids=lambda content: repr(content[:12]),
)
def test_what_is_no_key_set_is_none(content: bytes) -> None:
    with pytest.raises(KeysUnavailable):
        read_key_set(content)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["keys", "kty", "crv", "x", "y", "n", "e", "kid", "use", "key_ops"]
                ),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_garbage_of_an_authorization_server_is_no_key_set(content: bytes) -> None:
    try:
        read_key_set(content)
    except KeysUnavailable:
        pass


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/jwks",
        "http://127.0.0.1/jwks",
        "ftp://issuer.example/jwks",
        "https:///jwks",
        "https://issuer.example:x/jwks",
        "https://user:secret@issuer.example/jwks",
        "file://elsewhere/etc/passwd",
        "file:",
        "ldap://issuer.example/x",
        "jar:file:/x",
        "issuer.example",
    ],
)
def test_keys_come_by_https_or_from_a_file(url: str) -> None:
    """CVE-2025-27817: a URL is one of two kinds, and none that a client can set."""
    with pytest.raises(InvalidSettings, match=r"sasl\.oauthbearer\.jwks") as error:
        key_source(OAuthSettings(jwks_url=url), SystemClock())
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("left_out", ["issuer", "audience"])
def test_whose_tokens_and_for_whom_must_be_said(left_out: str) -> None:
    with pytest.raises(InvalidSettings, match=left_out):
        Rig(**{left_out: " , " if left_out == "audience" else ""})


def test_a_file_of_keys_is_read_up_to_a_size(tmp_path: Path) -> None:
    file = tmp_path / "a set.json"
    fetch = key_source(OAuthSettings(jwks_url=f"file:{tmp_path}/a%20set.json"), SystemClock())
    with pytest.raises(KeysUnavailable, match="No such file"):
        fetch()
    file.write_bytes(ISSUED.key_set())
    assert fetch() == ISSUED.key_set()
    file.write_bytes(bytes(KEY_SET_BYTES_MAX + 1))
    with pytest.raises(KeysUnavailable, match="bytes of keys"):
        fetch()


def test_keys_are_fetched_over_tls_from_whom_is_trusted_and_nobody_else(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    with AuthorizationServer(ISSUED, context) as server:
        url = f"{server.url}/jwks"
        trusting = OAuthSettings(jwks_url=url, truststore=certificates.authority)
        fetch = key_source(trusting, SystemClock())
        assert fetch() == ISSUED.key_set()
        with pytest.raises(KeysUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            key_source(OAuthSettings(jwks_url=url), SystemClock())()
        server.content = bytes(KEY_SET_BYTES_MAX + 1)
        with pytest.raises(KeysUnavailable, match="bytes of keys"):
            fetch()
        asked = len(server.asked)
        server.redirect = f"{server.url}/elsewhere"
        with pytest.raises(KeysUnavailable, match="302"):
            fetch()
        assert server.asked[asked:] == ["/jwks"], "a redirect is not followed"
    with pytest.raises(KeysUnavailable):
        fetch()


# --- the exchange


def message(token: str, user: str = "", extensions: str = "") -> bytes:
    authorization = f"a={user}" if user else ""
    return f"n,{authorization},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


async def test_a_good_token_logs_in_with_one_message() -> None:
    rig = Rig()
    for sent in (
        message(rig.token()),
        message(rig.token(), "ann"),
        message(rig.token(), "", "traceId=1 2\x01"),
    ):
        step = await OAuthBearerExchange(rig.check.bearer).step(sent)
        assert step == Step(b"", "ann", (rig.now_s + 3_600) * 1_000)


@pytest.mark.parametrize("sent", ["expired", "somebody else"])
async def test_a_bad_token_is_told_so_and_the_next_message_ends_it(sent: str) -> None:
    rig = Rig()
    exchange = OAuthBearerExchange(rig.check.bearer)
    first = message(rig.token(exp=1)) if sent == "expired" else message(rig.token(), "bob")
    step = await exchange.step(first)
    assert (step.token, step.user) == (INVALID_TOKEN, None)
    assert step.refusal is not None
    # Whatever comes next, a good token too, there is no way back.
    for following in (b"\x01", message(rig.token()), b""):
        with pytest.raises(AuthenticationFailed, match=r"ended|else"):
            await exchange.step(following)


async def test_a_token_that_was_good_is_not_followed_by_another() -> None:
    rig = Rig()
    exchange = OAuthBearerExchange(rig.check.bearer)
    await exchange.step(message(rig.token()))
    with pytest.raises(AuthenticationFailed):
        await exchange.step(message(rig.token()))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"n,,\x01auth=Bearer abc.def.g-_\x01\x01", ("", "abc.def.g-_")),
        (b"n,a=ann,\x01auth=bearer abc\x01\x01", ("ann", "abc")),
        (b"y,a=a=2Cb=3Dc,\x01x=\x01auth=BEARER  abc==\x01\x01", ("a,b=c", "abc==")),
    ],
)
def test_messages_are_read(sent: bytes, expected: tuple[str, str]) -> None:
    assert parse_first(sent) == expected


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer abc def\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer abd\x01\x01",
        b"n,,\x01auth=Bearer abc\x01x=1\x01x=2\x01\x01",
        b"n,,\x01auth=Bearer abc\x01x1=1\x01\x01",
        b"n,,\x01auth=Bearer abc\x01x=\xc3\xa9\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer abc\x01\x01",
        b"n,a=,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * (TOKEN_BYTES_MAX * 2) + b"\x01\x01",
        b"{}",
    ],
)
def test_a_malformed_message_fails_at_once(sent: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_first(sent)


@fuzzed(
    st.binary() | st.text().map(lambda text: f"n,{text}\x01auth=Bearer {text}\x01\x01".encode()),
    share=0.15,
)
def test_garbage_is_refused_and_nothing_else_happens(sent: bytes) -> None:
    async def nobody(token: str) -> Bearer:
        raise AuthenticationFailed(token)

    step: Awaitable[Step] = OAuthBearerExchange(nobody).step(sent)
    try:
        assert asyncio.run(step) == Step(INVALID_TOKEN)  # type: ignore[arg-type]
    except AuthenticationFailed:
        pass


@fuzzed(st.text(st.sampled_from('abc.eyJ0XAiOi-_=~+/[{"')) | st.text(), share=0.15)
def test_a_garbage_token_is_refused(token: str) -> None:
    rig = Rig()
    with pytest.raises(AuthenticationFailed):
        asyncio.run(rig.check.bearer(token))
