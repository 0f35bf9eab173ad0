"""``halfmq serve``: runs the broker and its name server in one process, until SIGTERM or SIGINT.

``_HELP`` is the table of its settings, for `halfmq config` as well.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from halfmq import limits
from halfmq.broker.config import RETENTION_MS, BrokerConfig, retention_ms_of
from halfmq.broker.log_output import LogFormat
from halfmq.cli.exit_status import exit_text
from halfmq.cli.main import path, with_options
from halfmq.cli.setting_sources import ConfiguredCommand, config_option, shown
from halfmq.errors import UsageError
from halfmq.model.settings import BrokerSettings

# No rich markup: its boxes truncate long option names at 80 columns.
app = typer.Typer(add_completion=False, rich_markup_mode=None)

#: By option, in the order of the help. Its type and default are those of the field with this name in ``BrokerConfig`` or
#: ``BrokerSettings``, if it is not in ``_OWN``.
_HELP: Final = {
    "data": "Directory of the store. On first start it must be empty or not exist.",
    "host": (
        "Address or name to listen on; may be repeated. IPv6 without brackets, link-local ones with their interface (fe80::1%eth0). :: is"
        " every address, also IPv4; 0.0.0.0 every IPv4 address. Default: 127.0.0.1."
    ),
    "port": "Port of the broker; 0: any free port.",
    "name_port": "Port of the name server; 0: any free port.",
    "http_port": "Port for GET /metrics, /healthz, /readyz and /transactions/undecided; 0: any free port. Default: no HTTP.",
    "metrics_names_max": "Topics, groups and queries, of each kind, that have series of their own in /metrics; others are summed as _other.",
    "http_host_name": (
        "Further name under which clients address the HTTP port, such as a proxy's or a service's; may be repeated. Addresses, localhost,"
        " the machine's name, and the names in --host and --advertise-host need none."
    ),
    "vip_channel": "Also listen on --port minus 2, which old Java clients use; skipped if that port is taken.",
    "advertise_host": (
        "Host name or address that clients connect to. Default: the first --host that other machines can reach; with :: or 0.0.0.0 alone "
        "it is 127.0.0.1, so remote clients fail."
    ),
    "durability": "Acknowledge after fsync, or after the write to the page cache (memory): a power loss then loses messages.",
    "store_group": (
        "Group, name or number, whose members may read the store: for Spark with `path`, and `halfmq store`, under another account. "
        "Default: only the broker's account."
    ),
    "segment_bytes": "Size of a log segment, bytes; fixed when the store is created.",
    "checkpoint_interval_ms": "Interval of checkpoints; a restart replays the log after the last one.",
    "retention_hours": "Remove log segments older than this; 0: no limit.",
    "retention_bytes": "Approximate maximum size of the log, bytes; at least one segment; 0: no limit.",
    "retention_check_ms": "Interval at which retention removes segments.",
    "hold_bytes": (
        "No consumer group holds more of the log than this, bytes; 0: until the disk is nearly full. See `halfmq group`. By default half "
        "of the file system, at least four segments."
    ),
    "trust_clock": "Accept a clock far ahead of the log, because the broker was down for long. For this start only.",
    "dedup_window_ms": "Deduplication window: a message that is sent again within it is stored once. Retention keeps at least this much.",
    "disk_reserve_bytes": "Reject new messages when less disk space is free; verdicts are still accepted.",
    "connections_max": "Maximum connections; fewer if the limit of open files requires it.",
    "connections_per_address_max": "Maximum connections from one address. Default: three quarters of --connections-max.",
    "unfinished_bytes_max": "Memory for partially received requests, all connections together; near the limit, senders get back-pressure.",
    "outgoing_bytes_max": (
        "Memory for unread responses, all connections together; near the limit, connections that read nothing are closed."
    ),
    "check_immunity_ms": "Grace period: time between the prepare and the first check.",
    "check_interval_ms": (
        "Time from a check answered UNKNOWN to the next check; doubles each time. Without an answer: at least --check-answer-ms."
    ),
    "check_interval_max_ms": "Maximum interval between two checks of a transaction.",
    "check_answer_ms": "Time for the answer to a check; then another producer is checked. Also the lease of fetched checks.",
    "checks_in_flight_max": "Maximum unanswered checks of a producer group.",
    "undecided_max": "Maximum undecided transactions of a producer group; 0: no transactions. See also halfmq tx limits.",
    "undecided_bytes_max": "Maximum bytes of undecided messages of a producer group.",
    "undecided_total_max": "Maximum undecided transactions of all producer groups; of a user without a limit: three quarters.",
    "undecided_total_bytes_max": "Maximum bytes of undecided messages of all producer groups; of a user: three quarters.",
    "undecided_groups_max": "Maximum producer groups with undecided transactions.",
    "delayed_total_max": "Maximum delayed messages waiting in all topics; 0: reject delayed messages.",
    "topics_max": f"Maximum topics, retry topics included. Default: {limits.TOPICS_MAX}, fewer with small segments.",
    "groups_max": f"Maximum consumer groups. Default: {limits.GROUPS_MAX}, fewer with small segments.",
    "queries_max": "Maximum queries, such as Spark streams, whose decided batches the broker remembers.",
    "auto_create_topics": "Create topics on first use.",
    "auto_create_groups": "Create consumer groups on first use.",
    "tls_cert": "Certificate of every port, with its chain, PEM: they speak TLS. Files are read again when they change.",
    "tls_key": "Key of --tls-cert, PEM, without password.",
    "tls_client_ca": "CAs of clients, PEM: every client needs a certificate of one of them (mutual TLS).",
    "tls_mode": "With --tls-cert, serve connections without TLS as well (permissive), as while clients are being changed, or close them.",
    "secrets_key_file": (
        "The broker has users, whose secrets it keeps with the key in this file, outside of --data. Created, with mode 600, at the first"
        " start; keep a backup of it apart from those of the store. Default: no users, everybody may do everything."
    ),
    "insecure": "Let other machines connect though there are no users or no TLS: a firewall or a private network has to decide who does.",
    "audit_log": (
        "Append refusals, logins and what administrators and operators do to this file, as lines of JSON. Default: audit.jsonl in --data if"
        " there are users, else none."
    ),
    "audit_log_bytes": "Size of a file of the audit log, bytes; a full one is renamed.",
    "audit_log_files": "Number of full files of the audit log that are kept.",
    "ports_file": "Write the ports to this file as JSON once the broker listens.",
    "log_format": "Log lines as text, or each as a JSON object: time, level, logger, text, and fields such as group and tx_id.",
    "verbose": "Verbose logging.",
}


class _Own(NamedTuple):
    """The type and the default of an option, and how it is written."""

    kind: Any
    default: Any
    declarations: tuple[str, ...] = ()
    parser: Any = None
    shows_default: bool = True


_OWN: Final = {
    "data": _Own(Path, ..., parser=path),
    "host": _Own(list[str] | None, None, shows_default=False),
    "http_host_name": _Own(list[str] | None, None),
    "retention_hours": _Own(float, RETENTION_MS / 3_600_000),
    "hold_bytes": _Own(int | None, None, shows_default=False),
    "trust_clock": _Own(bool, False, ("--trust-clock",)),
    "topics_max": _Own(int | None, None),
    "groups_max": _Own(int | None, None),
    "secrets_key_file": _Own(Path | None, None, parser=path),
    "insecure": _Own(bool, False, ("--insecure",)),
    "audit_log": _Own(Path | None, None, parser=path),
    "ports_file": _Own(Path | None, None, parser=path),
    "log_format": _Own(LogFormat, LogFormat.TEXT),
    "verbose": _Own(bool, False, ("--verbose", "-v")),
}
_FIELDS: Final = {
    field.name: _Own(field.type, field.default) for field in (*fields(BrokerConfig), *fields(BrokerSettings))
}


def serve(ctx: typer.Context, **given: Any) -> None:
    """Run the broker and its name server on one directory.

    On SIGTERM or SIGINT it completes accepted requests, writes a checkpoint and exits with 0. Each option can also be set by a variable
    of the environment (HALFMQ_RETENTION_HOURS) or in the file of --config (retention_hours).
    """
    from halfmq.broker.process import run

    config = configuration(given)
    config = replace(config, given=shown(ctx, {**given, "host": list(config.hosts)}, KINDS))
    raise typer.Exit(
        run(config, ports_file=given["ports_file"], verbose=given["verbose"], log_format=given["log_format"])
    )


def configuration(given: dict[str, Any]) -> BrokerConfig:
    """What the options say, by name.

    Raises:
        typer.BadParameter: no such retention is possible. Other values are checked by ``BrokerConfig.checked``.
    """
    try:
        retention_ms = retention_ms_of(given["retention_hours"])
    except UsageError as error:
        raise typer.BadParameter(str(error), param_hint="--retention-hours") from error
    limits_ = {name: -1 if given[name] is None else given[name] for name in ("topics_max", "groups_max")}
    return BrokerConfig(
        hosts=tuple(dict.fromkeys(given["host"] or ("127.0.0.1",))),
        http_host_names=tuple(given["http_host_name"] or ()),
        retention_ms=retention_ms,
        settings=BrokerSettings(**_those_of(BrokerSettings, given | limits_)),
        **_those_of(BrokerConfig, given),
    )


def converted(name: str, text: str) -> Any:
    """The value of option ``name`` that ``text`` means.

    Raises:
        typer.BadParameter: it means none; in the words in which `halfmq serve` refuses it.
    """
    command = typer.main.get_command(app)
    context = typer.Context(command)
    option = next(one for one in command.get_params(context) if one.name == name)
    return option.process_value(context, text)


def _those_of(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options that have the name of a field of the dataclass ``kind``, which is most of them."""
    return {field.name: given[field.name] for field in fields(kind) if field.name in given}


def _definition(name: str) -> _Own:
    return _OWN.get(name) or _FIELDS[name]


def _option(name: str, help_: str) -> tuple[Any, Any]:
    kind, default, declarations, parser, shows_default = _definition(name)
    return Annotated[kind, typer.Option(*declarations, help=help_, parser=parser, show_default=shows_default)], default


#: The type of each setting.
KINDS: Final[dict[str, Any]] = {name: _definition(name).kind for name in _HELP}
#: Annotation and default of each option, for ``with_options``.
OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "config": config_option(KINDS),
    **{name: _option(name, text) for name, text in _HELP.items()},
}

app.command(cls=ConfiguredCommand, epilog=exit_text("halfmq serve"))(
    with_options(serve, {"ctx": (typer.Context, ...), **OPTIONS})
)
