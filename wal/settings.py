"""Sections of the configuration: frozen dataclasses whose fields know their key, bounds and reason.

A package declares a section beside the code that uses it:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class WalSettings:
        chunk_max_bytes: int = setting(
            "wal.chunk.max.bytes", 8 << 20, minimum=64 << 10, maximum=1 << 30,
            why="smaller: more PUTs; larger: more to upload again after a crash",
        )

`diskless.config` alone reads files and the environment; it fills the sections through
`section_from`, which fails by key name on anything it does not know or that is out of bounds.

A setting whose default is a `Secret` is one: its value is shown nowhere, and `diskless.config` says
where it may be written.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from wal.errors import InvalidSettings
from wal.security.secret import Secret

_METADATA_KEY: Final = "setting"

SettingValue = int | float | bool | str | Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of one configuration key."""

    key: str
    default: SettingValue
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    is_per_listener: bool
    """Whether `listener.name.<name>.` and the key sets it for the listener of this name alone."""
    why: str

    @property
    def is_secret(self) -> bool:
        return isinstance(self.default, Secret)


def setting(
    key: str,
    default: SettingValue,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    is_per_listener: bool = False,
    why: str,
) -> Any:
    """A dataclass field that is read from the configuration key `key`; the default's type rules."""
    described = Setting(
        key=key,
        default=default,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        is_per_listener=is_per_listener,
        why=why,
    )
    return field(default=default, metadata={_METADATA_KEY: described})


def settings_of(section: type[Any]) -> Iterator[tuple[str, Setting]]:
    """(field name, setting) of every field of a section, in declaration order."""
    for item in fields(section):
        if _METADATA_KEY in item.metadata:
            yield item.name, item.metadata[_METADATA_KEY]


_Section = TypeVar("_Section")


def section_from(section: type[_Section], values: MutableMapping[str, str]) -> _Section:
    """Build `section`, taking (popping) its keys out of `values`; the rest is not its own.

    Raises InvalidSettings naming the key, the value and what is allowed.
    """
    arguments: dict[str, SettingValue] = {}
    for name, described in settings_of(section):
        if described.key in values:
            arguments[name] = parse_setting(described, values.pop(described.key))
    return section(**arguments)


def with_values(section: _Section, values: Mapping[str, SettingValue]) -> _Section:
    """`section` with the values that are among `values`, by key, in place of its own."""
    return replace(  # type: ignore[type-var]
        section,
        **{
            name: values[described.key]
            for name, described in settings_of(type(section))
            if described.key in values
        },
    )


def parse_setting(described: Setting, text: str) -> SettingValue:
    """The value that `text` means for this setting. Raises InvalidSettings."""
    wanted = type(described.default)
    text = text.strip()
    value: SettingValue
    if wanted is Secret:
        return Secret(text)
    if wanted is bool:
        if text.lower() not in {"true", "false"}:
            raise InvalidSettings(f"{described.key}={text!r}: must be true or false")
        return text.lower() == "true"
    try:
        value = wanted(text)
    except ValueError as error:
        raise InvalidSettings(
            f"{described.key}={text!r}: must be {'an integer' if wanted is int else 'a number'}"
        ) from error
    if described.choices and value not in described.choices:
        raise InvalidSettings(
            f"{described.key}={text!r}: must be one of {', '.join(described.choices)}"
        )
    if isinstance(value, int | float):
        too_low = described.minimum is not None and value < described.minimum
        too_high = described.maximum is not None and value > described.maximum
        if too_low or too_high:
            raise InvalidSettings(
                f"{described.key}={text}: must be between {described.minimum} and "
                f"{described.maximum}"
            )
    return value


def explain(section: type[Any]) -> Iterator[tuple[str, SettingValue, str]]:
    """(key, default, why) of every setting of a section, for `--help` and the docs."""
    for _, described in settings_of(section):
        yield described.key, described.default, described.why


def as_mapping(section: object) -> Mapping[str, SettingValue]:
    """The section's values under their configuration keys, for DescribeConfigs."""
    return {described.key: getattr(section, name) for name, described in settings_of(type(section))}
