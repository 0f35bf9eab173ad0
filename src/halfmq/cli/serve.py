"""``halfmq serve``: runs the broker and its name server in one process, until SIGTERM or SIGINT."""

from pathlib import Path
from typing import Annotated, Final

import typer

from halfmq import limits
from halfmq.broker import config as defaults
from halfmq.broker.config import BrokerConfig
from halfmq.cli.exit_status import exit_text
from halfmq.cli.main import path
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability

#: A hundred years; for unlimited retention use 0.
_RETENTION_HOURS_MAX: Final = 876_600

# No rich markup: its boxes truncate long option names at 80 columns.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=exit_text("halfmq serve"))
def serve(
    data: Annotated[
        Path, typer.Option(parser=path, help="Directory of the store. On first start it must be empty or not exist.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or name to listen on; may be repeated. IPv6 without brackets, link-local ones with their interface (fe80::1%eth0). :: is every address, also IPv4; 0.0.0.0 every IPv4 address. Default: 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the broker; 0: any free port.")] = defaults.BROKER_PORT,
    name_port: Annotated[int, typer.Option(help="Port of the name server; 0: any free port.")] = defaults.NAME_PORT,
    http_port: Annotated[
        int | None,
        typer.Option(help="Port for GET /health and GET /transactions/undecided; 0: any free port. Default: no HTTP."),
    ] = None,
    http_host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Further name under which clients address the HTTP port, such as a proxy's or a service's; may be repeated. Addresses, localhost, the machine's name, and the names in --host and --advertise-host need none."
        ),
    ] = None,
    vip_channel: Annotated[
        bool,
        typer.Option(help="Also listen on --port minus 2, which old Java clients use; skipped if that port is taken."),
    ] = True,
    advertise_host: Annotated[
        str | None,
        typer.Option(
            help="Host name or address that clients connect to. Default: the first --host that other machines can reach; with :: or 0.0.0.0 alone it is 127.0.0.1, so remote clients fail."
        ),
    ] = None,
    durability: Annotated[
        Durability,
        typer.Option(
            help="Acknowledge after fsync, or after the write to the page cache (memory): a power loss then loses messages."
        ),
    ] = Durability.FSYNC,
    store_group: Annotated[
        str | None,
        typer.Option(
            help="Group, name or number, whose members may read the store: for Spark with `path`, and `halfmq store`, under another account. Default: only the broker's account."
        ),
    ] = None,
    segment_bytes: Annotated[
        int, typer.Option(help="Size of a log segment, bytes; fixed when the store is created.")
    ] = SEGMENT_BYTES_DEFAULT,
    checkpoint_interval_ms: Annotated[
        int, typer.Option(help="Interval of checkpoints; a restart replays the log after the last one.")
    ] = defaults.CHECKPOINT_INTERVAL_MS,
    retention_hours: Annotated[float, typer.Option(help="Remove log segments older than this; 0: no limit.")] = (
        defaults.RETENTION_MS / 3_600_000
    ),
    retention_bytes: Annotated[
        int, typer.Option(help="Approximate maximum size of the log, bytes; at least one segment; 0: no limit.")
    ] = 0,
    retention_check_ms: Annotated[
        int, typer.Option(help="Interval at which retention removes segments.")
    ] = defaults.RETENTION_CHECK_MS,
    hold_bytes: Annotated[
        int | None,
        typer.Option(
            help="No consumer group holds more of the log than this, bytes; 0: until the disk is nearly full. See `halfmq group`. "
            "By default half of the file system, at least four segments.",
            show_default=False,
        ),
    ] = None,
    trust_clock: Annotated[
        bool,
        typer.Option(
            "--trust-clock",
            help="Accept a clock far ahead of the log, because the broker was down for long. For this start only.",
        ),
    ] = False,
    dedup_window_ms: Annotated[
        int,
        typer.Option(
            help="Deduplication window: a message that is sent again within it is stored once. Retention keeps at least this much."
        ),
    ] = limits.DEDUP_WINDOW_MS,
    disk_reserve_bytes: Annotated[
        int, typer.Option(help="Reject new messages when less disk space is free; verdicts are still accepted.")
    ] = limits.DISK_RESERVE_BYTES,
    connections_max: Annotated[
        int,
        typer.Option(help="Maximum connections; fewer if the limit of open files requires it."),
    ] = limits.CONNECTIONS_MAX,
    connections_per_address_max: Annotated[
        int | None,
        typer.Option(help="Maximum connections from one address. Default: three quarters of --connections-max."),
    ] = None,
    unfinished_bytes_max: Annotated[
        int,
        typer.Option(
            help="Memory for partially received requests, all connections together; near the limit, senders get back-pressure."
        ),
    ] = limits.UNFINISHED_BYTES_MAX,
    outgoing_bytes_max: Annotated[
        int,
        typer.Option(
            help="Memory for unread responses, all connections together; near the limit, connections that read nothing are closed."
        ),
    ] = limits.OUTGOING_BYTES_MAX,
    check_immunity_ms: Annotated[
        int, typer.Option(help="Grace period: time between the prepare and the first check.")
    ] = limits.CHECK_IMMUNITY_MS,
    check_interval_ms: Annotated[
        int,
        typer.Option(
            help="Time from a check answered UNKNOWN to the next check; doubles each time. Without an answer: at least --check-answer-ms."
        ),
    ] = limits.CHECK_INTERVAL_MS,
    check_interval_max_ms: Annotated[
        int, typer.Option(help="Maximum interval between two checks of a transaction.")
    ] = limits.CHECK_INTERVAL_MAX_MS,
    check_answer_ms: Annotated[
        int,
        typer.Option(
            help="Time for the answer to a check; then another producer is checked. Also the lease of fetched checks."
        ),
    ] = limits.CHECK_ANSWER_MS,
    checks_in_flight_max: Annotated[
        int, typer.Option(help="Maximum unanswered checks of a producer group.")
    ] = limits.CHECKS_IN_FLIGHT_MAX,
    undecided_max: Annotated[
        int,
        typer.Option(
            help="Maximum undecided transactions of a producer group; 0: no transactions. See also halfmq tx limits."
        ),
    ] = limits.UNDECIDED_MAX,
    undecided_bytes_max: Annotated[
        int, typer.Option(help="Maximum bytes of undecided messages of a producer group.")
    ] = limits.UNDECIDED_BYTES_MAX,
    undecided_total_max: Annotated[
        int, typer.Option(help="Maximum undecided transactions of all producer groups.")
    ] = limits.UNDECIDED_TOTAL_MAX,
    undecided_total_bytes_max: Annotated[
        int, typer.Option(help="Maximum bytes of undecided messages of all producer groups.")
    ] = limits.UNDECIDED_TOTAL_BYTES_MAX,
    undecided_groups_max: Annotated[
        int, typer.Option(help="Maximum producer groups with undecided transactions.")
    ] = limits.UNDECIDED_GROUPS_MAX,
    delayed_total_max: Annotated[
        int, typer.Option(help="Maximum delayed messages waiting in all topics; 0: reject delayed messages.")
    ] = limits.DELAYED_TOTAL_MAX,
    topics_max: Annotated[
        int | None,
        typer.Option(
            help=f"Maximum topics, retry topics included. Default: {limits.TOPICS_MAX}, fewer with small segments."
        ),
    ] = None,
    groups_max: Annotated[
        int | None,
        typer.Option(help=f"Maximum consumer groups. Default: {limits.GROUPS_MAX}, fewer with small segments."),
    ] = None,
    queries_max: Annotated[
        int, typer.Option(help="Maximum queries, such as Spark streams, whose decided batches the broker remembers.")
    ] = limits.QUERIES_MAX,
    auto_create_topics: Annotated[bool, typer.Option(help="Create topics on first use.")] = True,
    auto_create_groups: Annotated[bool, typer.Option(help="Create consumer groups on first use.")] = True,
    ports_file: Annotated[
        Path | None,
        typer.Option(parser=path, help="Write the ports to this file as JSON once the broker listens."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose logging.")] = False,
) -> None:
    """Run the broker and its name server on one directory.

    On SIGTERM or SIGINT it completes accepted requests, writes a checkpoint and exits with 0.
    """
    from halfmq.broker.process import run

    if not 0 <= retention_hours <= _RETENTION_HOURS_MAX:  # also true for NaN
        text = f"0 to {_RETENTION_HOURS_MAX:,} hours; 0: no limit"
        raise typer.BadParameter(text, param_hint="--retention-hours")
    config = BrokerConfig(
        data=data,
        hosts=tuple(dict.fromkeys(host or ("127.0.0.1",))),
        port=port,
        name_port=name_port,
        http_port=http_port,
        http_host_names=tuple(http_host_name or ()),
        vip_channel=vip_channel,
        advertise_host=advertise_host,
        durability=durability,
        store_group=store_group,
        segment_bytes=segment_bytes,
        checkpoint_interval_ms=checkpoint_interval_ms,
        retention_ms=round(retention_hours * 3_600_000),
        retention_bytes=retention_bytes,
        retention_check_ms=retention_check_ms,
        hold_bytes=hold_bytes,
        trust_clock=trust_clock,
        disk_reserve_bytes=disk_reserve_bytes,
        connections_max=connections_max,
        connections_per_address_max=connections_per_address_max,
        unfinished_bytes_max=unfinished_bytes_max,
        outgoing_bytes_max=outgoing_bytes_max,
        settings=BrokerSettings(
            auto_create_topics=auto_create_topics,
            auto_create_groups=auto_create_groups,
            topics_max=-1 if topics_max is None else topics_max,
            groups_max=-1 if groups_max is None else groups_max,
            queries_max=queries_max,
            check_immunity_ms=check_immunity_ms,
            check_interval_ms=check_interval_ms,
            check_interval_max_ms=check_interval_max_ms,
            check_answer_ms=check_answer_ms,
            checks_in_flight_max=checks_in_flight_max,
            undecided_max=undecided_max,
            dedup_window_ms=dedup_window_ms,
            undecided_bytes_max=undecided_bytes_max,
            undecided_total_max=undecided_total_max,
            undecided_total_bytes_max=undecided_total_bytes_max,
            undecided_groups_max=undecided_groups_max,
            delayed_total_max=delayed_total_max,
        ),
    )
    raise typer.Exit(run(config, ports_file=ports_file, verbose=verbose))
