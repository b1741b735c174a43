"""Who a certificate is about: its subject as text, and the rules that make a name of it.

The texts are those of Java 17's X500Principal.getName(), which Kafka uses.
"""

import pytest
from cryptography.x509 import Name, NameAttribute, ObjectIdentifier, RelativeDistinguishedName
from cryptography.x509.oid import NameOID

from diskless.listeners.certificate_names import PrincipalRules, name_text
from wal.errors import InvalidSettings

CN, OU, O, C = (  # noqa: E741
    NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME,
    NameOID.COUNTRY_NAME,
)  # fmt: skip


def name(*parts: list[tuple[ObjectIdentifier, str]]) -> Name:
    return Name(
        [RelativeDistinguishedName([NameAttribute(*one) for one in part]) for part in parts]
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ([], ""),
        ([[(C, "DE")], [(O, "A, b")], [(CN, "kafka.example.com")]],
         r"CN=kafka.example.com,O=A\, b,C=DE"),
        ([[(CN, "a"), (NameOID.USER_ID, "b")], [(NameOID.DOMAIN_COMPONENT, "com")]],
         "DC=com,CN=a+UID=b"),
        ([[(CN, " both  ")]], r"CN=\ both\ \ "),
        ([[(CN, " ")]], r"CN=\ "),
        ([[(CN, "a  b")]], "CN=a  b"),
        ([[(CN, "#a#b")]], r"CN=\#a\#b"),
        ([[(CN, 'a=b+c"d\\e<f>;')]], r"CN=a\=b\+c\"d\\e\<f\>\;"),
        ([[(CN, "a\0b")]], r"CN=a\00b"),
        ([[(CN, "ü 日本\t")]], "CN=ü 日本\t"),
        ([[(CN, "x")], [(NameOID.EMAIL_ADDRESS, "me@example.com")]],
         "1.2.840.113549.1.9.1=#160e6d65406578616d706c652e636f6d,CN=x"),
        ([[(NameOID.SURNAME, "Ä" * 32), (CN, "x")]], "2.5.4.4=#0c40" + "c384" * 32 + "+CN=x"),
    ],
)  # fmt: skip
def test_a_subject_is_written_as_java_writes_it(
    written: list[list[tuple[ObjectIdentifier, str]]], text: str
) -> None:
    assert name_text(name(*written)) == text


ALICE = "CN=Alice Smith,OU=Service Users,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "found"),
    [
        ("", ALICE, ALICE),
        ("DEFAULT", ALICE, ALICE),
        ("RULE:^CN=(.*?),OU=Service Users.*$/$1/", ALICE, "Alice Smith"),
        ("RULE:^CN=(.*?),OU=Service Users.*$/$1/L", ALICE, "alice smith"),
        ("RULE:^CN=(.*?),OU=Service Users.*$/$1/U", ALICE, "ALICE SMITH"),
        ("RULE:^CN=(.*?), OU=(.*?), O=.*$/$1@$2/, DEFAULT", ALICE, ALICE),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*)$/$1@$2.$3.$4/L , DEFAULT", ALICE,
         "alice smith@service users.org.us"),
        ("RULE:CN=nobody/x/,RULE:CN=(.*?),.*/first-$1/,RULE:.*/second/", ALICE,
         "first-Alice Smith"),
        ("RULE:CN=Alice/x/", ALICE, None),
        ("RULE:.*/x/", "", "x"),
        (r"RULE:^cn=([^,]+)\/([^,]+).*$/$2\/$1/,DEFAULT", "cn=a/b,ou=c", "b/a"),
        (r"RULE:^CN=(.*?),.*$/\$1 $1 $2/", "CN=a,O=b", "$1 a $2"),
        (r"RULE:^CN=([^,]*)(,OU=x)?,.*$/$1$2./", "CN=a,O=b", "a."),
        (r"RULE:^CN=a\,b,.*$/comma/", "CN=a,b,O=c", "comma"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "O=o,CN=Host.Example", "host.example"),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_the_whole_gives_the_name(
    rules: str, subject: str, found: str | None
) -> None:
    assert PrincipalRules(rules, "a.key").name(subject) == found


@pytest.mark.parametrize(
    "rules",
    [
        "default", "DEFAUL", "DEFAULT/L", "DEFAULTX", "DEFAULT,rule:a/b/", "RULE", "RULE:a",
        "RULE:a/",
        "RULE:a/b", "RULE:a/b/X", "RULE:a/b/LU", "RULE:a/b/ L", "RULE:a/b/L DEFAULT", "RULE:(/x/",
        "RULE:(?=a)b/x/", r"RULE:(a)\1/x/", ",DEFAULT",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_name(rules: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^a\.key: "):
        PrincipalRules(rules, "a.key")
