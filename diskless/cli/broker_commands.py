"""The commands that ask a running broker: `diskless topic`, `diskless quota`."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from diskless.cli.options import (
    Commands,
    add_bootstrap,
    add_pairs,
    command,
    group,
    key_value,
    key_values,
)
from wal.errors import InvalidSettings


def add_topic(commands: Commands) -> None:
    topics = group(commands, "topic", "create, list, describe, alter or delete topics")
    create = command(topics, "create", _topic_create, help="create a topic")
    create.add_argument("name")
    create.add_argument("--partitions", type=int, default=-1, help="default: num.partitions")
    add_pairs(create, "--config", "topic configuration; @FILE as a value: what is in it", "--set")
    listing = command(topics, "list", _topic_list, help="list all topics")
    describe = command(
        topics,
        "describe",
        _topic_describe,
        help="id, segments, partitions and configuration",
    )
    describe.add_argument("name")
    alter = command(
        topics,
        "alter",
        _topic_alter,
        help="change configuration, add partitions",
        description="Change a topic while it is in use. A topic can grow but not shrink; records "
        "stay where they are.",
    )
    alter.add_argument("name")
    alter.add_argument(
        "--partitions", type=int, metavar="N", help="the number of partitions it gets in all"
    )
    add_pairs(alter, "--config", "set a topic config; @FILE as a value: what is in it", "--set")
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="let the topic follow the broker's default again",
    )
    delete = command(topics, "delete", _topic_delete, help="delete topics and their records")
    delete.add_argument("name", nargs="+")
    for parser in (create, listing, describe, alter, delete):
        add_bootstrap(parser)


def _topic_configs(pairs: Sequence[str]) -> Mapping[str, str]:
    """As `key_values`; a value `@PATH` is the text of a file. Raises InvalidSettings."""
    configs = key_values(pairs)
    for key, value in configs.items():
        if value.startswith("@"):
            try:
                configs[key] = Path(value[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSettings(f"{key}: cannot read {value[1:]}: {error}") from error
    return configs


def _topic_create(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    configs = _topic_configs(options.config)
    with TopicClient.of(options) as client:
        client.create(options.name, partitions=options.partitions, configs=configs)
        print(f"created {options.name}")
    return 0


def _topic_list(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.cli.topic_client import TopicClient

    with TopicClient.of(options) as client:
        rows = table("topic", "partitions", "records")
        for row in client.list():
            rows.add_row(row.name, str(row.partitions), f"{row.records:,}")
    print_tables(rows)
    return 0


def _topic_describe(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.cli.topic_client import TopicClient

    with TopicClient.of(options) as client:
        description = client.describe(options.name)
    topic = table("topic", options.name)
    topic.add_row("id", str(description.topic_id))
    topic.add_row("segments", description.segments)
    partitions = table(
        "partition",
        "leader",
        "log start offset",
        "log end offset",
        "last rolled offset",
        "not rolled",
    )
    for row in description.partitions:
        rolled = "-" if row.last_rolled < 0 else str(row.last_rolled)
        offsets = (str(row.log_start), str(row.log_end), rolled, f"{row.not_rolled:,}")
        partitions.add_row(str(row.partition), str(row.leader), *offsets)
    configs = table("configuration", "value", "set by")
    for name, value, source in description.configs:
        configs.add_row(name, value, source)
    print_tables(topic, partitions, configs)
    return 0


def _topic_alter(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    configs = _topic_configs(options.config)
    if not (configs or options.delete_config or options.partitions is not None):
        raise InvalidSettings(
            f"nothing to alter in {options.name}: give --config, --delete-config or --partitions"
        )
    with TopicClient.of(options) as client:
        if configs or options.delete_config:
            client.alter(options.name, configs=configs, delete=options.delete_config)
        if options.partitions is not None:
            client.grow(options.name, partitions=options.partitions)
        print(f"altered {options.name}")
    return 0


def _topic_delete(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    with TopicClient.of(options) as client:
        for name in options.name:
            client.delete(name)
            print(f"deleted {name}")
    return 0


def add_quota(commands: Commands) -> None:
    quotas = group(commands, "quota", "list, set or remove quotas of clients")
    listing = command(quotas, "list", _quota_list, help="list all quotas")
    change = command(
        quotas,
        "set",
        _quota_set,
        help="set quotas of a client id, a user, or both, or of an address",
        description="Keys are producer_byte_rate and consumer_byte_rate, in bytes a second, "
        "request_percentage and controller_mutation_rate; of an address connection_creation_rate. "
        "Each broker grants all of it.",
    )
    change.add_argument("quota", nargs="+", metavar="KEY=VALUE")
    remove = command(quotas, "remove", _quota_remove, help="remove quotas that were set")
    remove.add_argument("key", nargs="*", metavar="KEY", help="default: all it has")
    for parser in (change, remove):
        for name in ("client-id", "user", "ip"):
            which = parser.add_mutually_exclusive_group()
            which.add_argument(f"--{name}", metavar="NAME")
            which.add_argument(
                f"--default-{name}",
                action="store_true",
                help=f"every {name} that has no quotas of its own",
            )
    for parser in (listing, change, remove):
        add_bootstrap(parser)


def _quota_list(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient
    from diskless.cli.tables import print_tables, table

    with QuotaClient.of(options) as client:
        rows = table("client id", "user", "ip", "quota", "value")
        for row in client.list():
            parts = (row.client_id, row.user, row.ip)
            names = ["(default)" if name is None else name for name in parts]
            rows.add_row(*names, row.key, f"{row.value:,.2f}".removesuffix(".00"))
    print_tables(rows)
    return 0


def _quota_set(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient

    changes = {}
    for pair in options.quota:
        key, value = key_value(pair)
        try:
            changes[key] = float(value)
        except ValueError as error:
            raise InvalidSettings(f"{pair}: {value!r} is no number") from error
    entity = _quota_entity(options)
    with QuotaClient.of(options) as client:
        client.alter(entity, changes)
    return 0


def _quota_remove(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient

    entity = _quota_entity(options)
    with QuotaClient.of(options) as client:
        client.alter(entity, dict.fromkeys(options.key or client.keys_of(entity)))
    return 0


def _quota_entity(options: argparse.Namespace) -> Mapping[str, str | None]:
    """Raises InvalidSettings."""
    parts = {
        "client-id": (options.client_id, options.default_client_id),
        "user": (options.user, options.default_user),
        "ip": (options.ip, options.default_ip),
    }
    entity = {
        kind: name for kind, (name, is_default) in parts.items() if is_default or name is not None
    }
    if not entity:
        raise InvalidSettings("whose quotas? give --client-id, --user, --ip or one of --default-…")
    return entity
