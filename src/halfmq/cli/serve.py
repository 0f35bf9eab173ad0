"""``halfmq serve``: the broker and its name service, one process on one directory, until SIGTERM."""

from pathlib import Path
from typing import Annotated, Final

import typer

from halfmq import limits
from halfmq.broker import config as defaults
from halfmq.broker.config import BrokerConfig
from halfmq.cli.main import path
from halfmq.model.placement import SEGMENT_BYTES_DEFAULT
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability

# Plain: the boxes cut long names of flags at 80 columns.
#: A hundred years. Who means for ever says 0.
_RETENTION_HOURS_MAX: Final = 876_600

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    data: Annotated[Path, typer.Option(parser=path, help="Directory of the store; made when it does not exist.")],
    host: Annotated[str, typer.Option(help="Address to listen on; IPv6 without brackets.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the broker; 0: any free one.")] = defaults.BROKER_PORT,
    name_port: Annotated[int, typer.Option(help="Port of the name service; 0: any free one.")] = defaults.NAME_PORT,
    http_port: Annotated[
        int | None,
        typer.Option(help="Port for GET /health and GET /transactions/undecided; 0: any free one; default: none."),
    ] = None,
    vip_channel: Annotated[
        bool,
        typer.Option(help="Listen on --port minus 2 as well, where old Java clients send; left out when it is taken."),
    ] = True,
    advertise_host: Annotated[
        str | None,
        typer.Option(help="Host that clients are told to connect to; needed with a --host for all addresses."),
    ] = None,
    durability: Annotated[
        Durability, typer.Option(help="Answer after the write (memory) or after the sync (fsync).")
    ] = Durability.FSYNC,
    segment_bytes: Annotated[
        int, typer.Option(help="Size of one log file; of a new store only.")
    ] = SEGMENT_BYTES_DEFAULT,
    checkpoint_interval_ms: Annotated[
        int, typer.Option(help="Time between checkpoints; a restart redoes what came after the last.")
    ] = defaults.CHECKPOINT_INTERVAL_MS,
    retention_hours: Annotated[float, typer.Option(help="Trim log files older than this; 0: never by age.")] = (
        defaults.RETENTION_MS / 3_600_000
    ),
    retention_bytes: Annotated[int, typer.Option(help="Trim the log to about this size; 0: never by size.")] = 0,
    retention_check_ms: Annotated[
        int, typer.Option(help="Time between looks at retention.")
    ] = defaults.RETENTION_CHECK_MS,
    trust_clock: Annotated[
        bool,
        typer.Option(
            "--trust-clock",
            help="The clock is right, although it is far ahead of the log: the broker was down. For one start.",
        ),
    ] = False,
    dedup_window_ms: Annotated[
        int,
        typer.Option(
            help="Deduplication window: a message that is sent again within it is stored once; what is younger is not trimmed."
        ),
    ] = limits.DEDUP_WINDOW_MS,
    disk_reserve_bytes: Annotated[
        int, typer.Option(help="Refuse new messages when less is free; verdicts go on.")
    ] = limits.DISK_RESERVE_BYTES,
    connections_max: Annotated[
        int,
        typer.Option(help="Close connections beyond this many; fewer where the limit of open files leaves less room."),
    ] = limits.CONNECTIONS_MAX,
    connections_per_address_max: Annotated[
        int | None,
        typer.Option(help="Close connections of one address beyond this many; default: three quarters of all."),
    ] = None,
    unfinished_bytes_max: Annotated[
        int,
        typer.Option(help="Bytes of requests that have come in part, over all connections; more have to wait."),
    ] = limits.UNFINISHED_BYTES_MAX,
    outgoing_bytes_max: Annotated[
        int,
        typer.Option(help="Bytes of answers that clients do not take, over all; near it, who takes nothing is closed."),
    ] = limits.OUTGOING_BYTES_MAX,
    check_immunity_ms: Annotated[
        int, typer.Option(help="How long a half message rests before its producer is asked.")
    ] = limits.CHECK_IMMUNITY_MS,
    check_interval_ms: Annotated[
        int,
        typer.Option(
            help="From a check answered UNKNOWN to the next; doubles from there. Without answer: --check-answer-ms at least."
        ),
    ] = limits.CHECK_INTERVAL_MS,
    check_interval_max_ms: Annotated[
        int, typer.Option(help="The longest interval between two checks of one transaction.")
    ] = limits.CHECK_INTERVAL_MAX_MS,
    check_answer_ms: Annotated[
        int, typer.Option(help="How long a check may be answered before somebody else is asked; also the lease.")
    ] = limits.CHECK_ANSWER_MS,
    checks_in_flight_max: Annotated[
        int, typer.Option(help="Checks of one producer group that may wait for answers at once.")
    ] = limits.CHECKS_IN_FLIGHT_MAX,
    undecided_max: Annotated[
        int,
        typer.Option(help="Undecided transactions of one producer group; 0: no transactions. See halfmq tx limits."),
    ] = limits.UNDECIDED_MAX,
    undecided_bytes_max: Annotated[
        int, typer.Option(help="Bytes of the undecided messages of one producer group.")
    ] = limits.UNDECIDED_BYTES_MAX,
    undecided_total_max: Annotated[
        int, typer.Option(help="Undecided transactions of all producer groups.")
    ] = limits.UNDECIDED_TOTAL_MAX,
    undecided_total_bytes_max: Annotated[
        int, typer.Option(help="Bytes of the undecided messages of all producer groups.")
    ] = limits.UNDECIDED_TOTAL_BYTES_MAX,
    undecided_groups_max: Annotated[
        int, typer.Option(help="Producer groups that may have undecided transactions at once.")
    ] = limits.UNDECIDED_GROUPS_MAX,
    delayed_total_max: Annotated[
        int, typer.Option(help="Messages of all topics that wait for their delay; 0: none.")
    ] = limits.DELAYED_TOTAL_MAX,
    topics_max: Annotated[
        int | None,
        typer.Option(
            help=f"Topics, those of retries among them; without it {limits.TOPICS_MAX}, fewer with small log files."
        ),
    ] = None,
    groups_max: Annotated[
        int | None,
        typer.Option(help=f"Consumer groups; without it {limits.GROUPS_MAX}, fewer with small log files."),
    ] = None,
    auto_create_topics: Annotated[bool, typer.Option(help="Make a topic when it is first used.")] = True,
    auto_create_groups: Annotated[bool, typer.Option(help="Make a consumer group when it is first named.")] = True,
    ports_file: Annotated[
        Path | None,
        typer.Option(parser=path, help="Write the ports here as JSON when listening (for tests and scripts)."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the broker and its name service on one directory.

    SIGTERM or SIGINT: finish what was accepted, write a checkpoint, exit with 0.
    """
    from halfmq.broker.process import run

    if not 0 <= retention_hours <= _RETENTION_HOURS_MAX:  # also what is not a number
        text = f"0 to {_RETENTION_HOURS_MAX:,} hours; 0: never by age"
        raise typer.BadParameter(text, param_hint="--retention-hours")
    config = BrokerConfig(
        data=data,
        host=host,
        port=port,
        name_port=name_port,
        http_port=http_port,
        vip_channel=vip_channel,
        advertise_host=advertise_host,
        durability=durability,
        segment_bytes=segment_bytes,
        checkpoint_interval_ms=checkpoint_interval_ms,
        retention_ms=round(retention_hours * 3_600_000),
        retention_bytes=retention_bytes,
        retention_check_ms=retention_check_ms,
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
