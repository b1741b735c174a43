"""SCRAM: the vectors of the RFCs, another implementation as oracle, and what must be refused."""

import base64
import contextlib
from collections.abc import Callable

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from metadata.scram.client import ScramClient
from metadata.scram.credentials import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    combined,
    credential_of,
    is_password_of,
    keyed,
    salt_password,
)
from metadata.scram.server import ScramServer
from metadata.scram.text import (
    InvalidScramMessage,
    client_first,
    read_client_final,
    read_client_first,
    read_server_final,
    read_server_first,
)
from tests.support.profiles import examples
from tests.support.samples.fuzzing import fuzzed

SALT = b"0123456789abcdef"
MECHANISMS = pytest.mark.parametrize("mechanism", ScramMechanism)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1)


def stored(mechanism: ScramMechanism, password: str, iterations: int = 4_096) -> ScramCredential:
    salted = salt_password(mechanism, password, SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


def server(
    mechanism: ScramMechanism, password: str = "pencil", nonce: str = "server"
) -> ScramServer:
    credential = stored(mechanism, password)
    return ScramServer(mechanism, lambda user: credential, nonce)


def test_the_exchange_of_rfc_7677_is_byte_for_byte_the_same() -> None:
    mechanism = ScramMechanism.SHA_256
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salt_password(mechanism, "pencil", salt, 4_096)
    credential = credential_of(mechanism, salted, salt, 4_096)
    exchange = ScramServer(mechanism, lambda user: credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ScramClient(mechanism, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    first = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.first() == first
    assert exchange.first(first) == server_first
    assert client.final(server_first) == final
    server_final, user = exchange.final(final)
    assert server_final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert user == "user"
    client.verify(server_final)


@MECHANISMS
@given(user=NAMES, password=NAMES)
@examples(0.2)
def test_client_and_server_agree_on_any_name_and_password(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    exchange = server(mechanism, password)
    client = ScramClient(mechanism, user, password, "client")
    answer, proven = exchange.final(client.final(exchange.first(client.first())))
    client.verify(answer)
    assert proven == user


@MECHANISMS
def test_another_implementation_logs_in_and_is_logged_in(mechanism: ScramMechanism) -> None:
    oracle = scramp.ScramMechanism(mechanism.sasl_name)
    exchange = server(mechanism)
    client = scramp.ScramClient([mechanism.sasl_name], "u=s,er", "pencil", c_nonce="oracle")
    client.set_server_first(exchange.first(client.get_client_first().encode()).decode())
    answer, user = exchange.final(client.get_client_final().encode())
    client.set_server_final(answer.decode())
    assert user == "u=s,er"

    info = oracle.make_auth_info("pencil", salt=SALT, iteration_count=4_096)
    credential = stored(mechanism, "pencil")
    assert (info[1], info[2]) == (credential.stored_key, credential.server_key)
    theirs = oracle.make_server(lambda user: info, s_nonce="oracle")
    ours = ScramClient(mechanism, "user", "pencil", "client")
    theirs.set_client_first(ours.first().decode())
    theirs.set_client_final(ours.final(theirs.get_server_first().encode()).decode())
    ours.verify(theirs.get_server_final().encode())


@MECHANISMS
def test_a_wrong_password_is_refused_at_the_end(mechanism: ScramMechanism) -> None:
    exchange = server(mechanism)
    client = ScramClient(mechanism, "user", "pencils", "client")
    final = client.final(exchange.first(client.first()))
    with pytest.raises(InvalidScramMessage, match="wrong password"):
        exchange.final(final)


def test_a_client_that_writes_its_nonce_twice_is_understood() -> None:
    """As librdkafka before 2.6 does."""
    mechanism = ScramMechanism.SHA_256
    exchange = server(mechanism)
    client = ScramClient(mechanism, "user", "pencil", "client")
    challenge = exchange.first(client.first())
    credential = stored(mechanism, "pencil")
    unproven = "c=biws,r=clientclientserver"
    signed = f"n=user,r=client,{challenge.decode()},{unproven}".encode()
    salted = salt_password(mechanism, "pencil", SALT, 4_096)
    key = keyed(mechanism, salted, b"Client Key")
    proof = combined(key, keyed(mechanism, credential.stored_key, signed))
    final = f"{unproven},p={base64.b64encode(proof).decode()}".encode()
    assert exchange.final(final)[1] == "user"


def test_a_recorded_exchange_is_of_no_use_again() -> None:
    mechanism = ScramMechanism.SHA_256
    recorded = server(mechanism, nonce="one")
    client = ScramClient(mechanism, "user", "pencil", "client")
    final = client.final(recorded.first(client.first()))
    recorded.final(final)
    with pytest.raises(InvalidScramMessage, match="third"):
        recorded.final(final)
    again = server(mechanism, nonce="another")
    again.first(client.first())
    with pytest.raises(InvalidScramMessage, match="nonce"):
        again.final(final)


@pytest.mark.parametrize(
    "altered",
    [
        # The client's part alone, and the nonce with something behind it.
        lambda text: text.replace("r=clientserver", "r=client"),
        lambda text: text.replace("r=clientserver", "r=clientserverx"),
        # Another header than the client began with.
        lambda text: text.replace("c=biws", "c=eSws"),
        lambda text: text.replace(",p=", ",x=y,p="),
        lambda text: text[:-8] + "AAAAAAA=",
        lambda text: text + ",p=AAAA",
    ],
)
def test_a_last_message_that_was_altered_is_refused(altered: Callable[[str], str]) -> None:
    exchange = server(ScramMechanism.SHA_256)
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "client")
    final = client.final(exchange.first(client.first()))
    with pytest.raises(InvalidScramMessage):
        exchange.final(altered(final.decode()).encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,n=user",
        b"n,,r=nonce,n=user",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,,m=ext,n=user,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=nonce",
        b"n,,n=us\0er,r=nonce",
        b"n,,n=us\xffer,r=nonce",
        b"n,a=other,n=user,r=nonce",
        b"n,,n=user,r=" + b"x" * 1_025,
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidScramMessage):
        server(ScramMechanism.SHA_256).first(message)


def test_a_user_may_name_itself_and_extensions_are_passed_over() -> None:
    exchange = server(ScramMechanism.SHA_256)
    assert exchange.first(b"y,a=user,n=user,r=nonce,tokenauth=true").startswith(b"r=nonceserver,")


@pytest.mark.parametrize(
    "answer",
    [
        b"r=clientserver,s=c2FsdA==,i=4095",
        b"r=clientserver,s=c2FsdA==,i=999999999",
        b"r=client,s=c2FsdA==,i=4096",
        b"r=somebody,s=c2FsdA==,i=4096",
        b"r=clientserver,s=c2Fsd,i=4096",
        b"e=other-error",
    ],
)
def test_a_client_computes_nothing_for_a_server_that_is_none(answer: bytes) -> None:
    with pytest.raises(InvalidScramMessage):
        ScramClient(ScramMechanism.SHA_256, "user", "pencil", "client").final(answer)


def test_a_client_notices_a_server_that_does_not_know_the_password() -> None:
    exchange = server(ScramMechanism.SHA_256)
    client = ScramClient(ScramMechanism.SHA_256, "user", "pencil", "client")
    client.final(exchange.first(client.first()))
    for answer in (b"v=" + base64.b64encode(bytes(32)), b"e=invalid-proof", b""):
        with pytest.raises(InvalidScramMessage):
            client.verify(answer)


GOOD = st.sampled_from(["biws", "QUJD", "4096", "fyko", "=2C"])
VALUES = GOOD | GOOD | st.sampled_from(["", "=2", "\0", "\n"]) | st.text()
HEADERS = st.sampled_from(["", "n,,", "y,,", "n,a=u,", "n,a=,", "p=tls-unique,,", "\ufeffn,,"])
SHAPES = st.sampled_from([("n,,", "nr"), ("n,a=u,", "nrf"), ("", "crp"), ("", "rsi"), ("", "v")])
MESSAGES = st.binary() | st.builds(
    lambda shape, values: message_of(*shape, values),
    SHAPES | SHAPES | st.tuples(HEADERS, st.text("nrcsipvem")),
    st.lists(VALUES, min_size=4),
)


def message_of(header: str, keys: str, values: list[str]) -> bytes:
    fields = [f"{key}={value}" for key, value in zip(keys, values, strict=False)]
    return (header + ",".join(fields)).encode()


@fuzzed(MESSAGES, share=0.35)
def test_any_bytes_are_refused_or_read_as_what_they_say(data: bytes) -> None:
    for read in (read_server_first, read_server_final):
        with contextlib.suppress(InvalidScramMessage):
            read(data)
    with contextlib.suppress(InvalidScramMessage):
        first = read_client_first(data)
        assert (first.gs2_header + first.bare).encode() == data
        assert first.bare.startswith(client_first(first.user, first.nonce))
        assert "\0" not in first.user + first.authorization_id
    with contextlib.suppress(InvalidScramMessage):
        final = read_client_final(data)
        assert data.startswith(final.unproven.encode() + b",p=")


def test_a_credential_shows_no_secret() -> None:
    credential = stored(ScramMechanism.SHA_256, "pencil")
    assert repr(credential) == f"ScramCredential(iterations={ITERATIONS_MIN})"
    assert is_password_of(ScramMechanism.SHA_256, credential, "pencil")
    assert not is_password_of(ScramMechanism.SHA_256, credential, "Pencil")
