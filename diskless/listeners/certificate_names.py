"""Says who a client is by its certificate: its subject as text, and rules that make a name of that.

The text is that of RFC 2253 as Java writes it (`X500Principal.getName`), because rules and lists of
rights are written for it: the last part first, nine types of attributes by their keywords, others
as their OID with the bytes in hexadecimal, special characters behind a backslash.

Rules are Kafka's, in `ssl.principal.mapping.rules`:

    RULE:^CN=(.*?),OU=Users.*$/$1/L, RULE:^CN=([^,]*).*$/$1/, DEFAULT

The first whose pattern matches the whole text gives the name: the replacement, in which `$1` is a
group, in lower (L) or upper case (U). DEFAULT is the text itself. A slash within a pattern or a
replacement stands behind a backslash. Patterns run in re2, whose time is bounded by the length of
the text; what it does not have (looking around, references back) is refused at start.

Failure cases: InvalidSettings for a rule that is none; a text that no rule matches has no name.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import re2
from cryptography import x509
from cryptography.x509.oid import NameOID

from wal.errors import InvalidSettings

DEFAULT: Final = "DEFAULT"

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.COUNTRY_NAME: "C",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_RULE: Final = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)"
)
_REPLACED: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_PATTERN_MEMORY_BYTES: Final = 1 << 20


def subject_text(certificate: bytes) -> str:
    """The subject of a certificate in DER, as RFC 2253 text. Raises ValueError."""
    return name_text(x509.load_der_x509_certificate(certificate).subject)


def name_text(name: x509.Name) -> str:
    """A name as RFC 2253 text."""
    return ",".join("+".join(map(_attribute_text, part)) for part in reversed(name.rdns))


class PrincipalRules:
    """The rules of one listener."""

    def __init__(self, text: str, key: str) -> None:
        """Raises InvalidSettings naming `key`."""
        self._rules = _parse(text, key)

    def name(self, subject: str) -> str | None:
        """Who has this subject; None when no rule is about it."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            match = rule.pattern.fullmatch(subject)
            if match is not None:
                return rule.named(match)
        return None


class _Rule(NamedTuple):
    pattern: Any | None
    """What re2 compiled. The rule DEFAULT has None."""
    replacement: str = ""
    case: str = ""

    def named(self, match: Any) -> str:
        groups = match.groups()

        def part(found: re.Match[str]) -> str:
            escaped, number = found.groups()
            if escaped is not None:
                return str(escaped)
            index = int(number)
            if index > len(groups):
                return found.group()
            return str(match.group(index) or "")

        name = _REPLACED.sub(part, self.replacement)
        return {"L": name.lower, "U": name.upper}.get(self.case, lambda: name)()


def _parse(text: str, key: str) -> Sequence[_Rule]:
    rules = []
    position = 0
    text = text.strip() or DEFAULT
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise InvalidSettings(
                f"{key}: {text[position:]!r} does not begin with DEFAULT or "
                "RULE:pattern/replacement/[LU]"
            )
        position = match.end()
        default, pattern, replacement, case = match.groups()
        rules.append(_Rule(None) if default else _rule(pattern, replacement, case, key))
    return rules


def _rule(pattern: str, replacement: str, case: str, key: str) -> _Rule:
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return _Rule(re2.compile(pattern, options), replacement, case)
    except re2.error as error:
        raise InvalidSettings(f"{key}: pattern {pattern!r}: {error}") from error


# --- text -----------------------------------------------------------------------------------------


def _attribute_text(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or not isinstance(attribute.value, str):
        return f"{keyword or attribute.oid.dotted_string}=#{_der_value(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    escaped = _ESCAPED.sub(lambda found: "\\" + found.group(), value).replace("\0", "\\00")
    inner = escaped.strip(" \r")
    if not inner:
        return "".join("\\" + space for space in escaped)
    before, after = escaped.split(inner, 1) if escaped != inner else ("", "")
    return "".join((*("\\" + one for one in before), inner, *("\\" + one for one in after)))


def _der_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Its value in DER, with tag and length: the last element of a name that has nothing else."""
    name = x509.Name([x509.RelativeDistinguishedName([attribute])]).public_bytes()
    encoded = _content(_content(_content(name)))
    return encoded[_content_span(encoded, 0)[1] :]


def _content(element: bytes) -> bytes:
    start, end = _content_span(element, 0)
    return element[start:end]


def _content_span(encoded: bytes, position: int) -> tuple[int, int]:
    """Where the content of the element at `position` begins and ends."""
    length = encoded[position + 1]
    start = position + 2
    if length >= 0x80:
        size = length & 0x7F
        length = int.from_bytes(encoded[start : start + size], "big")
        start += size
    return start, start + length
