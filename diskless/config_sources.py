"""Reads the sources of the configuration: how each of them writes keys, and where secrets may be.

`diskless.config` calls it, and makes values of what it gives. A key is one that a section declares,
or `listener.name.<name>.` and one that a listener can have for itself. In the environment it is
`DISKLESS_` and the key in capitals with `_` for `.`.

A secret is written out in the environment only: who lists processes sees command lines, and a file
of properties is read by many. Elsewhere, and in the environment too, its value is `file:PATH`.

Failure case: InvalidSettings names the key and what to write; never what was written, if it is a
secret.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from wal.errors import InvalidSettings
from wal.security.secret import read_private
from wal.settings import Setting, SettingValue, parse_setting

ENVIRONMENT_PREFIX: Final = "DISKLESS_"
LISTENER_PREFIX: Final = "listener.name."
_FILE_PREFIX: Final = "file:"
_NOT_SETTINGS: Final = frozenset({"DISKLESS_FAILPOINTS"})

Settings = Mapping[str, Setting]
"""All that there are, by key."""


def from_properties(path: Path, settings: Settings) -> Mapping[str, str]:
    """Values by key. Raises InvalidSettings."""
    return from_options(dict(_read_properties(path)), settings)


def from_options(values: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """Values by key, secrets as they are in their files. Raises InvalidSettings."""
    return {
        key: _from_file(key, value) if _is_secret(key, settings) else value
        for key, value in values.items()
    }


def from_environment(environment: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """Values by key. Raises InvalidSettings also for a variable that names no key."""
    keys = {_environment_name(key): key for key in settings}
    values = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _NOT_SETTINGS:
            continue
        key = keys.get(name) or _key_of_listener(name, settings)
        if key is None:
            raise InvalidSettings(f"environment variable {name} names no configuration key")
        if _is_secret(key, settings) and value.startswith(_FILE_PREFIX):
            value = _from_file(key, value)
        values[key] = value
    return values


def take_per_listener(
    values: MutableMapping[str, str], settings: Settings
) -> Mapping[str, Mapping[str, SettingValue]]:
    """What listeners have for themselves, by name in capitals, by key; taken out of `values`.

    Raises InvalidSettings.
    """
    found: dict[str, dict[str, SettingValue]] = {}
    for key in [key for key in values if key.startswith(LISTENER_PREFIX)]:
        name, own = _of_listener(key)
        described = settings.get(own)
        if described is None or not described.is_per_listener:
            raise InvalidSettings(f"{key}: {own or 'nothing'} is no key that a listener can have")
        found.setdefault(name, {})[own] = parse_setting(described, values.pop(key))
    return found


def _of_listener(key: str) -> tuple[str, str]:
    """(name in capitals, key) of `listener.name.<name>.<key>`."""
    name, _, own = key.removeprefix(LISTENER_PREFIX).partition(".")
    return name.upper(), own


def _is_secret(key: str, settings: Settings) -> bool:
    described = settings.get(_of_listener(key)[1] if key.startswith(LISTENER_PREFIX) else key)
    return described is not None and described.is_secret


def _environment_name(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def _key_of_listener(variable: str, settings: Settings) -> str | None:
    """The key that a variable such as DISKLESS_LISTENER_NAME_OUTSIDE_SSL_CLIENT_AUTH means."""
    rest = variable.removeprefix(_environment_name(LISTENER_PREFIX))
    if rest == variable:
        return None
    for described in settings.values():
        name = rest.removesuffix("_" + described.key.upper().replace(".", "_"))
        if described.is_per_listener and name and name != rest:
            return f"{LISTENER_PREFIX}{name.lower()}.{described.key}"
    return None


def _from_file(key: str, value: str) -> str:
    """What the file of a secret holds, without the end of its line. Raises InvalidSettings."""
    value = value.strip()
    if not value:
        return ""
    if not value.startswith(_FILE_PREFIX):
        raise InvalidSettings(
            f"{key}: a secret is not written here, where others see it; write {key}=file:PATH, or "
            f"set it in the environment as {_environment_name(key)}"
        )
    path = Path(value.removeprefix(_FILE_PREFIX))
    try:
        return read_private(path, key).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{key}: {path} is not text") from error


def _read_properties(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"configuration file {path}: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise InvalidSettings(f"{path}, line {number}: {stripped!r} is not key=value")
        yield key.strip(), value.strip()
