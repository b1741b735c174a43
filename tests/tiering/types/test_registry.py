"""The client of a schema registry: what it believes, and what it does not."""

from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore

import pytest

from tests.support.clients.schema_registry import SchemaRegistry
from tiering.types.registry import (
    ANSWER_BYTES_MAX,
    REGISTRY_AUTH,
    REGISTRY_URL,
    HttpRegistry,
    RegistrySettings,
    RegistryUnavailable,
    registry_settings,
)
from tiering.types.shapes import SchemaError
from wal.clock import ManualClock, SystemClock
from wal.errors import InvalidSettings


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def client(registry: SchemaRegistry, **settings: str) -> HttpRegistry:
    return HttpRegistry(RegistrySettings(url=registry.url, **settings), SystemClock())


def test_schemas_and_versions_are_found_and_asked_for_once(registry: SchemaRegistry) -> None:
    first = registry.register("a/b-value", '"int"')
    registry.register("a/b-value", {"type": "object"}, "JSON")
    asks = client(registry)
    assert asks.schema(first) == asks.schema(first) == '"int"'
    assert asks.schema(99) is None
    assert registry.asked.count(f"/schemas/ids/{first}") == 1
    registry.subjects["a%2Fb-value"] = registry.subjects["a/b-value"]
    assert asks.versions("a/b-value") == [1, 2]
    assert asks.versions("other") == ()
    assert asks.registered("a/b-value", 2)[2:] == ("json", '{"type": "object"}')


def test_a_schema_with_references_gives_no_columns(registry: SchemaRegistry) -> None:
    references = [{"name": "x", "subject": "y", "version": 1}]
    schema_id = registry.register("t-value", '"X"', references=references)
    assert client(registry).schema(schema_id) is None
    with pytest.raises(SchemaError, match="references"):
        client(registry).registered("t-value", 1)


def test_credentials_are_sent_and_not_shown(registry: SchemaRegistry) -> None:
    registry.credentials = "me:very secret"
    registry.register("t-value", '"int"')
    settings = RegistrySettings(url=registry.url, user="me", password="very secret")
    assert "very secret" not in repr(settings)
    assert HttpRegistry(settings, SystemClock()).versions("t-value") == [1]
    with pytest.raises(RegistryUnavailable, match="status 401"):
        client(registry).versions("t-value")


def test_a_registry_that_cannot_be_reached_is_asked_once() -> None:
    registry = SchemaRegistry()
    asks = client(registry)
    registry._server.server_close()
    with pytest.raises(RegistryUnavailable) as first:
        asks.versions("t-value")
    with SchemaRegistry() as other:
        asks._url = other.url
        with pytest.raises(RegistryUnavailable) as second:
            asks.versions("other-value")
        assert other.asked == []
    assert str(first.value) == str(second.value)


@pytest.mark.parametrize(
    "answer",
    [
        (302, {"Location": "/schemas/ids/2"}, b""),
        (500, {}, b"{}"),
        (200, {}, b"{"),
        (200, {}, b'"' + b"x" * ANSWER_BYTES_MAX + b'"'),
        (200, {}, b'{"schema": 7}'),
        (200, {"Content-Encoding": "gzip"}, b"no gzip"),
    ],
)
def test_what_a_registry_should_not_answer_is_no_schema(
    registry: SchemaRegistry, answer: tuple[int, dict[str, str], bytes]
) -> None:
    registry.register("t-value", '"int"')
    registry.register("t-value", '"long"')
    registry.answers["/schemas/ids/1"] = answer
    asks = client(registry)
    with pytest.raises(RegistryUnavailable):
        asks.schema(1)
    assert asks.schema(2) == '"long"', "the next answer is another one"
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/2"], "redirects are not followed"


def test_a_registry_that_drips_gets_its_seconds_and_no_more(registry: SchemaRegistry) -> None:
    """A byte comes whenever the clock was asked, which moves on by a second each time."""
    registry.drips = Semaphore(0)

    class Dripping(ManualClock):
        def monotonic(self) -> float:
            self.advance(1)
            registry.drips.release()
            return super().monotonic()

    schema_id = registry.register("t-value", '"int"')
    asks = HttpRegistry(RegistrySettings(url=registry.url), Dripping())
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="no answer within 5 s"):
            asks.schema(schema_id)
    assert len(registry.asked) == 1, "it is not asked again"


def test_nobody_there_is_unavailable() -> None:
    with SchemaRegistry() as registry:
        url = registry.url
    with pytest.raises(RegistryUnavailable):
        HttpRegistry(RegistrySettings(url=url), SystemClock()).versions("t")


@pytest.mark.parametrize("url", ["", "ftp://x", "registry:8081", "http://", "http://me:pw@x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"schema\.registry\.url"):
        RegistrySettings(url=url)


def test_credentials_are_in_a_file_of_its_owner_or_in_the_environment(tmp_path: Path) -> None:
    url = "https://registry:8081"
    path = tmp_path / "registry"
    path.write_text("me:very:secret\n")
    path.chmod(0o600)
    wanted = RegistrySettings(url=url, user="me", password="very:secret")
    assert registry_settings(None, f"file:{path}", {}) is None
    assert registry_settings(url, f"file:{path}", {}) == wanted
    assert (
        registry_settings(None, None, {REGISTRY_URL: url, REGISTRY_AUTH: f"file:{path}"}) == wanted
    )
    assert registry_settings(url, None, {REGISTRY_AUTH: "me:very:secret"}) == wanted
    other = {REGISTRY_URL: "http://other", REGISTRY_AUTH: "other:one"}
    assert registry_settings(url, f"file:{path}", other) == wanted, "what is given counts"
    assert registry_settings(url, None, {}) == RegistrySettings(url=url)
    with pytest.raises(InvalidSettings, match="others see them; give file:PATH") as refused:
        registry_settings(url, "me:very:secret", {})
    assert "very" not in str(refused.value)
    path.chmod(0o644)
    with pytest.raises(InvalidSettings, match="the schema registry's credentials: others may read"):
        registry_settings(url, f"file:{path}", {})
