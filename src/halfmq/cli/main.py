"""``halfmq``: the command line. The module of a command is imported only when the command runs.

So ``halfmq --help`` does not import the broker or the benchmarks. A command with missing dependencies is listed, and names the
extra to install when it runs.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """``module`` has a ``typer.Typer`` named ``app``: a group or a single command."""

    module: str
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("halfmq.cli.serve", "Run the broker and its name server on one directory."),
    "store": Entry("halfmq.cli.store", "Verify or dump the files of a store, read-only; also while the broker runs."),
    "tx": Entry("halfmq.cli.tx", "List, explain and settle undecided transactions; set limits of producer groups."),
    "group": Entry("halfmq.cli.group", "Let retention wait until a consumer group has read its topics."),
    "check-history": Entry(
        "halfmq.cli.check_history",
        "Check a recorded history for lost, phantom, duplicate or torn transactions, and more.",
    ),
    "bench": Entry("halfmq.cli.bench", "Measure a broker: transactions per second, latencies, CPU."),
}


class LazyCommand(TyperCommand):
    """Placeholder of a command; imports and runs the command when it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name=name, help=entry.help, callback=None)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            module = importlib.import_module(self._entry.module)
        except ModuleNotFoundError as error:
            typer.echo(
                f"halfmq {self.name}: {error}. Install the missing extra: pip install 'halfmq[server]'", err=True
            )
            raise SystemExit(1) from error
        real = typer.main.get_command(module.app)
        real.name = self.name
        return real.make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands in ``COMMANDS``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else LazyCommand(cmd_name, entry)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    help="A message is visible if and only if the local database transaction that sent it committed.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from halfmq import __version__

        typer.echo(f"halfmq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def path(text: str) -> Path:
    """``parser`` of path options: rejects an empty path (an unset shell variable), which would mean the current directory."""
    if not text:
        raise typer.BadParameter("an empty path; for the current directory use .")
    return Path(text)


def fail(error: BaseException) -> "typer.Exit":
    """Print the error on standard error; use as ``raise fail(error)``. Exit status 1."""
    typer.echo(f"halfmq: {error}", err=True)
    return typer.Exit(1)


main: Callable[[], None] = app

if __name__ == "__main__":
    sys.exit(app())
