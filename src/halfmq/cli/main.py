"""``halfmq``: the command line. Each command lives in a module of its own, imported when it is called.

``halfmq --help`` must not pay for the broker, Spark or a database driver, so the list below holds names and one line
of help; ``LazyCommand`` fetches the real command when its turn comes. A command whose module or extra is missing is
listed all the same and says what to install.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """Where a command is: ``module`` has a ``typer.Typer`` named ``app``, a group or a single command."""

    module: str
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("halfmq.cli.serve", "Run the broker and its name service on one directory."),
    "store": Entry(
        "halfmq.cli.store", "Verify or dump a store's files; changes nothing, also beside a running broker."
    ),
    "tx": Entry("halfmq.cli.tx", "See undecided transactions, and settle one by hand."),
    "check-history": Entry(
        "halfmq.cli.check_history", "Check a recorded run against the promises: lost, phantom, duplicate, torn, ..."
    ),
    "bench": Entry("halfmq.cli.bench", "Measure a broker: transactions per second, latencies, CPU."),
}


class LazyCommand(TyperCommand):
    """Stands for a command that is not imported yet; becomes it when it is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name=name, help=entry.help, callback=None)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            module = importlib.import_module(self._entry.module)
        except ModuleNotFoundError as error:
            typer.echo(f"halfmq {self.name}: {error}. Is the extra installed? pip install 'halfmq[server]'", err=True)
            raise SystemExit(1) from error
        real = typer.main.get_command(module.app)
        real.name = self.name
        return real.make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
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
    """``parser`` of options and arguments: an empty one, of a variable that is not set, is not the current directory."""
    if not text:
        raise typer.BadParameter("an empty path; the current directory is .")
    return Path(text)


def fail(error: BaseException) -> "typer.Exit":
    """One line on standard error, and the exit that goes with it: ``raise fail(error)``."""
    typer.echo(f"halfmq: {error}", err=True)
    return typer.Exit(1)


main: Callable[[], None] = app

if __name__ == "__main__":
    sys.exit(app())
