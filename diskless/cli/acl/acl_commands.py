"""The commands about rules of access control: `diskless acl add|list|remove|explain`."""

import argparse
from collections.abc import Sequence
from typing import Final

from diskless.cli.options import Commands, add_bootstrap, command, group
from metadata.acls import AclBinding, AclFilter
from wal.errors import InvalidSettings

_ABOUT: Final = """\
A rule lets a user do something, or forbids it:

  USER        a name, or '*' for everybody
  OPERATION   read, write, create, delete, alter, describe, describe_configs,
              alter_configs, cluster_action, idempotent_write, or all;
              several are separated by commas
  RESOURCE    topic:NAME, group:NAME or cluster; NAME* means every name that
              begins so, and * every name: topic:orders, topic:web-*, 'topic:*'

What no rule allows is refused, and a rule that denies wins over all that allow.
read, write, delete and alter allow describe as well.

"""
_ADD: Final = (
    _ABOUT
    + """\
  a producer:   diskless acl add shop write topic:orders
  a consumer:   diskless acl add billing read topic:orders group:billing
  an operator:  diskless acl add ops alter,describe cluster
  no exception: diskless acl add '*' delete topic:audit-* --deny
"""
)
_LIST: Final = """\
With --resource, the rules that speak about that resource, those for prefixes and
for all names among them:

  diskless acl list --resource topic:orders
  diskless acl list --user shop
"""
_REMOVE: Final = """\
Removes every rule that all the options fit; without any of them, nothing.

  diskless acl remove --user shop                           all of a user
  diskless acl remove --resource topic:orders --operation read
"""
_EXPLAIN: Final = """\
Says whether a user may do something, and which rule that is due to. The exit status
is 0 where the user may, and 1 where not.

  diskless acl explain billing read topic:orders
  diskless acl explain billing read topic:orders --host 10.0.0.7
"""
_MAY_NOT: Final = 1


def add_acl(commands: Commands) -> None:
    acls = group(commands, "acl", "add, list, remove or explain rules of who may do what")
    adding = command(acls, "add", _add, help="allow or deny a user an operation", examples=_ADD)
    adding.add_argument("--deny", action="store_true", help="forbid it; default: allow it")
    adding.add_argument("--host", default="*", metavar="ADDRESS", help="default: from anywhere")
    listing = command(acls, "list", _list, help="list rules", examples=_LIST)
    removing = command(acls, "remove", _remove, help="remove rules", examples=_REMOVE)
    explaining = command(
        acls, "explain", _explain, help="tell which rule decides", examples=_EXPLAIN
    )
    explaining.add_argument(
        "--host", default="", metavar="ADDRESS", help="default: one that no rule names"
    )
    for parser in (adding, explaining):
        parser.add_argument("user", metavar="USER")
        parser.add_argument("operation", metavar="OPERATION")
    adding.add_argument("resource", nargs="+", metavar="RESOURCE")
    explaining.add_argument("resource", metavar="RESOURCE")
    for parser in (listing, removing):
        parser.add_argument("--user", metavar="USER")
        parser.add_argument("--operation", metavar="OPERATION")
        parser.add_argument("--resource", metavar="RESOURCE")
        parser.add_argument("--host", metavar="ADDRESS")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--allow", action="store_true", help="only rules that allow")
        which.add_argument("--deny", action="store_true", help="only rules that deny")
    for parser in (adding, listing, removing, explaining):
        add_bootstrap(parser)


def _add(options: argparse.Namespace) -> int:
    from diskless.acls.acl_text import operations_of, principal_of, resource_of, rule_text
    from diskless.cli.acl.acl_client import AclClient
    from metadata.acls import Permission

    permission = Permission.DENY if options.deny else Permission.ALLOW
    rules = [
        AclBinding(
            *resource_of(resource),
            principal_of(options.user),
            options.host,
            operation,
            permission,
        )
        for resource in options.resource
        for operation in operations_of(options.operation)
    ]
    with AclClient.of(options) as client:
        client.add(rules)
    for rule in rules:
        print(rule_text(rule))
    return 0


def _list(options: argparse.Namespace) -> int:
    from diskless.acls.acl_text import operation_text, resource_text, user_text
    from diskless.cli.acl.acl_client import AclClient
    from diskless.cli.tables import print_tables, table
    from metadata.acls import Permission

    found: set[AclBinding] = set()
    with AclClient.of(options) as client:
        for wanted in _filters(options, matches=True):
            found.update(client.rules(wanted))
    rows = table("resource", "user", "operation", "permission", "host")
    for rule in sorted(found):
        rows.add_row(
            resource_text(rule),
            user_text(rule.principal),
            operation_text(rule.operation),
            Permission(rule.permission).name.lower(),
            rule.host,
        )
    print_tables(rows)
    return 0


def _remove(options: argparse.Namespace) -> int:
    from diskless.acls.acl_text import rule_text
    from diskless.cli.acl.acl_client import AclClient

    filters = _filters(options, matches=False)
    if filters == [AclFilter()]:
        raise InvalidSettings(
            "which rules? give --user, --operation, --resource, --host, --allow or --deny"
        )
    with AclClient.of(options) as client:
        gone = client.remove(filters)
    for rule in gone:
        print(f"removed: {rule_text(rule)}")
    if not gone:
        print("no such rules")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from diskless.acls.acl_meaning import Question, decide, names_resource
    from diskless.acls.acl_text import operations_of, principal_of, resource_of, rule_text
    from diskless.cli.acl.acl_client import AclClient
    from metadata.acls import WILDCARD, PatternType

    resource = resource_of(options.resource)
    operations = operations_of(options.operation)
    if len(operations) > 1 or resource.pattern_type != PatternType.LITERAL:
        raise InvalidSettings("one operation on one resource is explained, without a *")
    user = principal_of(options.user).removeprefix("User:")
    with AclClient.of(options) as client:
        rules = client.rules(AclFilter())
        policy = client.policy()
    asked = Question(user, options.host, operations[0], resource.resource_type, resource.name)
    decision = decide(rules, policy, asked)
    print(
        f"{user} {'may' if decision.is_allowed else 'may not'} {options.operation.upper()} "
        f"{options.resource}: {decision.why}"
    )
    if decision.rule is not None:
        print(f"  {rule_text(decision.rule)}")
    about = [rule for rule in rules if names_resource(rule, asked.resource_type, asked.name)]
    if not options.host and any(rule.host != WILDCARD for rule in about):
        print("there are rules for single hosts: --host asks about one of them")
    return 0 if decision.is_allowed else _MAY_NOT


def _filters(options: argparse.Namespace, *, matches: bool) -> Sequence[AclFilter]:
    """What the options ask for; see `filters_of`."""
    from diskless.acls.acl_text import filters_of
    from metadata.acls import Permission

    permission = Permission.ALLOW if options.allow else Permission.ANY
    return filters_of(
        user=options.user,
        operations=options.operation,
        resource=options.resource,
        host=options.host,
        permission=Permission.DENY if options.deny else permission,
        matches=matches,
    )
