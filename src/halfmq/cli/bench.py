"""`halfmq bench`: what a transaction costs, beside the bare sketch; what a start costs on a full store."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from halfmq import limits
from halfmq.cli.main import fail, path
from halfmq.errors import HalfmqError
from halfmq.store.store import Durability

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Measure the broker from outside, and write JSON.")

#: The driver numbers its requests by thread, and its own from a million on.
_THREADS_MAX: Final = 100_000
#: The restart benchmark keeps so many transactions open at a time, so it cannot end with fewer.
_RESTART_MIN: Final = 64
#: A run's CPU is read in ticks of 10 ms: in less than ten of them it would be chance, or zero.
_SECONDS_MIN: Final = 0.1
_SECONDS_MAX: Final = 86_400


def _existing(text: str) -> Path:
    directory = path(text)
    if not directory.is_dir():
        raise typer.BadParameter(f"{text} is not a directory")
    return directory


def _number(value: float) -> float:
    """``nan`` is neither below nor above any bound."""
    if math.isnan(value):
        raise typer.BadParameter("not a number")
    return value


def _check_writable(output: Path | None) -> None:
    """Before a run that takes minutes, whose figures would be lost."""
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.open("a").close()
        except OSError as error:
            raise typer.BadParameter(f"{output} cannot be written: {error.strerror}", param_hint="--output") from error


Output = Annotated[Path | None, typer.Option(parser=path, help="Write all figures here as JSON.")]
Directory = Annotated[
    Path | None, typer.Option(parser=_existing, help="Where stores are made and removed; default: the system's.")
]
BodyBytes = Annotated[int, typer.Option(min=1, max=limits.BODY_BYTES_MAX, help="Size of each message body.")]


def _written(figures: dict[str, Any], output: Path | None) -> None:
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n")
        typer.echo(f"written: {output}")


@app.command()
def tx(
    threads: Annotated[int, typer.Option(min=1, max=_THREADS_MAX, help="Transactions that are open at a time.")] = 32,
    connections: Annotated[int, typer.Option(min=1, help="Connections that the threads share.")] = 1,
    body_bytes: BodyBytes = 1_024,
    durability: Annotated[
        list[Durability] | None, typer.Option(help="Both, if none is given; may be repeated.")
    ] = None,
    rollback_share: Annotated[
        float, typer.Option(min=0, max=1, callback=_number, help="Share of transactions that roll back.")
    ] = 0.0,
    unknown_share: Annotated[
        float, typer.Option(min=0, max=1, callback=_number, help="Share that a check settles.")
    ] = 0.0,
    acked: Annotated[
        bool, typer.Option(help="Wait for the answer of each end; else one-way, as stock clients.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(min=_SECONDS_MIN, max=_SECONDS_MAX, callback=_number, help="Length of each measured window."),
    ] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Sketch and broker in turn, so many times.")] = 3,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Committed transactions per second, latencies, and the broker's CPU for each, beside the sketch in the same run."""
    from halfmq.bench import tx as bench
    from halfmq.bench.load import Plan

    if connections > threads:
        raise typer.BadParameter(f"1 to {threads}: each needs a thread", param_hint="--connections")
    if rollback_share + unknown_share > 1:
        raise typer.BadParameter("together at most 1", param_hint="--rollback-share and --unknown-share")
    _check_writable(output)
    plan = Plan(
        threads=threads, connections=connections, body_bytes=body_bytes, rollback_share=rollback_share,
        unknown_share=unknown_share, acked_end=acked, seconds=seconds,
    )  # fmt: skip
    durabilities = list(dict.fromkeys(one.value for one in durability or Durability))
    try:
        figures = bench.compare(plan, durabilities, rounds, directory, typer.echo)
    except HalfmqError as error:
        raise fail(error) from error
    for line in bench.table(figures):
        typer.echo(line)
    _written(figures, output)


@app.command()
def restart(
    messages: Annotated[int, typer.Option(min=_RESTART_MIN, help="Committed messages in the store.")] = 1_000_000,
    undecided: Annotated[
        int,
        typer.Option(min=_RESTART_MIN, max=limits.UNDECIDED_MAX, help="Undecided transactions in the store."),
    ] = 100_000,
    body_bytes: BodyBytes = 100,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Start on an empty store; memory with everything undecided; start after kill -9, and with all snapshots deleted."""
    from halfmq.bench import restart as bench

    _check_writable(output)
    try:
        figures = bench.measure(messages, undecided, body_bytes, directory, typer.echo)
    except HalfmqError as error:
        raise fail(error) from error
    for name, value in figures.items():
        typer.echo(f"{name:32} {value}")
    _written(figures, output)
