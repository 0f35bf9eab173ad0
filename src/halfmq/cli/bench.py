"""`halfmq bench`: what a transaction costs, beside the bare sketch; what a start costs on a full store."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from halfmq.cli.main import fail, path
from halfmq.errors import HalfmqError

app = typer.Typer(no_args_is_help=True, help="Measure the broker from outside, and write JSON.")

Output = Annotated[Path | None, typer.Option(parser=path, help="Write all figures here as JSON.")]
Directory = Annotated[
    Path | None, typer.Option(parser=path, help="Where stores are made and removed; default: the system's.")
]


def _written(figures: dict[str, Any], output: Path | None) -> None:
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(figures, indent=1) + "\n")
        typer.echo(f"written: {output}")


@app.command()
def tx(
    threads: Annotated[int, typer.Option(help="Transactions that are open at a time.")] = 32,
    connections: Annotated[int, typer.Option(help="Connections that the threads share.")] = 1,
    body_bytes: Annotated[int, typer.Option(help="Size of each message body.")] = 1_024,
    durability: Annotated[list[str] | None, typer.Option(help="memory, fsync; again for both.")] = None,
    rollback_share: Annotated[float, typer.Option(help="Share of transactions that roll back, 0 to 1.")] = 0.0,
    unknown_share: Annotated[float, typer.Option(help="Share that a check settles, 0 to 1.")] = 0.0,
    acked: Annotated[
        bool, typer.Option(help="Wait for the answer of each end; else one-way, as stock clients.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Length of each measured window.")] = 10.0,
    rounds: Annotated[int, typer.Option(help="Sketch and broker in turn, so many times.")] = 3,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Committed transactions per second, latencies, and the broker's CPU for each, beside the sketch in the same run."""
    from halfmq.bench import tx as bench
    from halfmq.bench.load import Plan

    plan = Plan(
        threads=threads, connections=connections, body_bytes=body_bytes, rollback_share=rollback_share,
        unknown_share=unknown_share, acked_end=acked, seconds=seconds,
    )  # fmt: skip
    try:
        figures = bench.compare(plan, durability or ["memory", "fsync"], rounds, directory, typer.echo)
    except HalfmqError as error:
        raise fail(error) from error
    for line in bench.table(figures):
        typer.echo(line)
    _written(figures, output)


@app.command()
def restart(
    messages: Annotated[int, typer.Option(help="Committed messages in the store.")] = 1_000_000,
    undecided: Annotated[int, typer.Option(help="Undecided transactions in the store.")] = 100_000,
    body_bytes: Annotated[int, typer.Option(help="Size of each message body.")] = 100,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Start on an empty store; memory with everything undecided; start after kill -9, and with all snapshots deleted."""
    from halfmq.bench import restart as bench

    try:
        figures = bench.measure(messages, undecided, body_bytes, directory, typer.echo)
    except HalfmqError as error:
        raise fail(error) from error
    for name, value in figures.items():
        typer.echo(f"{name:32} {value}")
    _written(figures, output)
