"""``halfmq bench``: throughput, latency and CPU of transactions, and restart times."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from halfmq import limits
from halfmq.cli.exit_status import exit_text
from halfmq.cli.main import fail, path
from halfmq.cli.output import say
from halfmq.errors import HalfmqError
from halfmq.store.store import Durability

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Benchmark a broker that the command starts itself.",
    epilog=exit_text("halfmq bench"),
)

#: Measured without `--durability`. Named, so that a new durability does not lengthen every run.
_DURABILITIES: Final = (Durability.MEMORY, Durability.FSYNC)
#: The load generator derives request ids from the thread number; its own start at a million.
_THREADS_MAX: Final = 100_000
#: The restart benchmark keeps this many transactions open.
_RESTART_MIN: Final = 64
#: CPU time has a resolution of 10 ms, so a shorter run would measure noise.
_SECONDS_MIN: Final = 0.1
_SECONDS_MAX: Final = 86_400


def _existing(text: str) -> Path:
    directory = path(text)
    if not directory.is_dir():
        raise typer.BadParameter(f"{text} is not a directory")
    return directory


def _number(value: float) -> float:
    """Reject NaN, which no bound excludes."""
    if math.isnan(value):
        raise typer.BadParameter("not a number")
    return value


def _check_writable(output: Path | None) -> None:
    """Fail before the benchmark runs for minutes, not after it."""
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.open("a").close()
        except OSError as error:
            raise typer.BadParameter(f"{output} cannot be written: {error.strerror}", param_hint="--output") from error


Output = Annotated[Path | None, typer.Option(parser=path, help="Write all figures to this file as JSON.")]
Directory = Annotated[
    Path | None,
    typer.Option(
        parser=_existing, help="Parent of the temporary stores. Default: the system's directory for temporary files."
    ),
]
BodyBytes = Annotated[int, typer.Option(min=1, max=limits.BODY_BYTES_MAX, help="Size of a message body, bytes.")]


def _written(figures: dict[str, Any], output: Path | None) -> None:
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n")
        say(f"written: {output}")


@app.command()
def tx(
    threads: Annotated[int, typer.Option(min=1, max=_THREADS_MAX, help="Concurrent transactions.")] = 32,
    connections: Annotated[int, typer.Option(min=1, help="Connections that the threads share.")] = 1,
    body_bytes: BodyBytes = 1_024,
    durability: Annotated[
        list[Durability] | None, typer.Option(help="May be repeated. Default: memory and fsync.")
    ] = None,
    rollback_share: Annotated[
        float, typer.Option(min=0, max=1, callback=_number, help="Share of transactions that roll back, 0 to 1.")
    ] = 0.0,
    unknown_share: Annotated[
        float, typer.Option(min=0, max=1, callback=_number, help="Share of transactions that a check settles, 0 to 1.")
    ] = 0.0,
    acked: Annotated[
        bool,
        typer.Option(help="Wait for the response to END_TRANSACTION. Default: one-way, as RocketMQ clients send it."),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(min=_SECONDS_MIN, max=_SECONDS_MAX, callback=_number, help="Length of each measurement, seconds."),
    ] = 10.0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of rounds; each measures the baseline and the broker.")
    ] = 3,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Measure committed transactions per second, latencies, and the CPU of a transaction.

    The baseline is a server that only decodes and encodes; the ratio to it is comparable across machines.
    """
    from halfmq.bench import tx as bench
    from halfmq.bench.load import Plan

    if connections > threads:
        raise typer.BadParameter(f"1 to {threads}: each connection needs a thread", param_hint="--connections")
    if rollback_share + unknown_share > 1:
        raise typer.BadParameter("the sum must be at most 1", param_hint="--rollback-share and --unknown-share")
    _check_writable(output)
    plan = Plan(
        threads=threads, connections=connections, body_bytes=body_bytes, rollback_share=rollback_share,
        unknown_share=unknown_share, acked_end=acked, seconds=seconds,
    )  # fmt: skip
    durabilities = list(dict.fromkeys(one.value for one in durability or _DURABILITIES))
    try:
        figures = bench.compare(plan, durabilities, rounds, directory, say)
    except HalfmqError as error:
        raise fail(error) from error
    for line in bench.table(figures):
        say(line)
    _written(figures, output)


@app.command()
def restart(
    messages: Annotated[int, typer.Option(min=_RESTART_MIN, help="Committed messages to store.")] = 1_000_000,
    undecided: Annotated[
        int,
        typer.Option(min=_RESTART_MIN, max=limits.UNDECIDED_MAX, help="Undecided transactions to store."),
    ] = 100_000,
    body_bytes: BodyBytes = 100,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Measure start times with an empty store, after kill -9, and without snapshots; and memory of undecided transactions."""
    from halfmq.bench import restart as bench

    _check_writable(output)
    try:
        figures = bench.measure(messages, undecided, body_bytes, directory, say)
    except HalfmqError as error:
        raise fail(error) from error
    for name, value in figures.items():
        say(f"{name:32} {value}")
    _written(figures, output)
