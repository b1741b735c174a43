"""Where secrets and the settings of single listeners may be written."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from diskless.config_sources import (
    from_environment,
    from_options,
    from_properties,
    take_per_listener,
)
from wal.errors import InvalidSettings
from wal.security.secret import Secret
from wal.settings import section_from, setting, settings_of, with_values

MARKER = "nobody-may-see-this"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    mode: str = setting("a.mode", "none", choices=("none", "all"), is_per_listener=True, why="m")
    password: Secret = setting("a.password", Secret(), is_per_listener=True, why="p")
    count: int = setting("a.count", 1, why="c")


SETTINGS = {described.key: described for _, described in settings_of(Section)}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(MARKER + "\n")
    path.chmod(0o600)
    return f"file:{path}"


@pytest.mark.parametrize("key", ["a.password", "listener.name.outside.a.password"])
def test_a_secret_comes_from_its_file_or_from_the_environment(
    tmp_path: Path, file: str, key: str
) -> None:
    properties = tmp_path / "broker.properties"
    properties.write_text(f"{key}={file}\n")
    variable = "DISKLESS_" + key.upper().replace(".", "_")
    for values in (
        from_properties(properties, SETTINGS),
        from_options({key: file}, SETTINGS),
        from_environment({variable: file}, SETTINGS),
        from_environment({variable: MARKER}, SETTINGS),
    ):
        assert values == {key: MARKER}


@pytest.mark.parametrize("key", ["a.password", "listener.name.outside.a.password"])
def test_a_secret_in_the_open_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    properties = tmp_path / "broker.properties"
    properties.write_text(f"{key}={MARKER}\n")
    for read in (
        lambda: from_properties(properties, SETTINGS),
        lambda: from_options({key: MARKER}, SETTINGS),
    ):
        with pytest.raises(InvalidSettings, match=r"write .*=file:PATH, or set it") as refused:
            read()
        assert MARKER not in str(refused.value)


def test_a_section_with_a_secret_shows_none_of_it(file: str) -> None:
    values = dict(from_options({"a.password": file}, SETTINGS))
    section = section_from(Section, values)
    assert section.password.reveal() == MARKER
    assert MARKER not in repr(section)


def test_a_listener_has_some_settings_for_itself() -> None:
    values = {"a.mode": "none", "listener.name.Out-1.a.mode": "all"}
    own = take_per_listener(values, SETTINGS)
    assert values == {"a.mode": "none"}
    section = section_from(Section, values)
    assert with_values(section, own["OUT-1"]).mode == "all"
    assert with_values(section, own.get("INSIDE", {})).mode == "none"


def test_the_environment_names_listeners_too() -> None:
    found = from_environment({"DISKLESS_LISTENER_NAME_MY_OWN_A_MODE": "all"}, SETTINGS)
    assert take_per_listener(dict(found), SETTINGS) == {"MY_OWN": {"a.mode": "all"}}


@pytest.mark.parametrize("key", ["a.count", "a.nothing", ""])
def test_what_a_listener_cannot_have_for_itself_is_named(key: str) -> None:
    with pytest.raises(InvalidSettings, match="no key that a listener can have"):
        take_per_listener({f"listener.name.outside.{key}": "1"}, SETTINGS)
    name = f"DISKLESS_LISTENER_NAME_OUTSIDE_{key.upper().replace('.', '_')}"
    with pytest.raises(InvalidSettings, match="names no configuration key"):
        from_environment({name: "1"}, SETTINGS)
