"""``halfmq``: the command line. The module of a command is imported only when the command runs.

So ``halfmq --help`` does not import the broker or the benchmarks. A command with missing dependencies is listed, and names the
extra to install when it runs.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.errors import EnvironmentFailed, UsageError


class Entry(NamedTuple):
    """``module`` has a ``typer.Typer`` named ``app``: a group or a single command."""

    module: str
    help: str


COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("halfmq.cli.serve", "Run the broker and its name server on one directory."),
    "config": Entry(
        "halfmq.cli.config", "Show the settings of a broker, running or to be started, and where each comes from."
    ),
    "backup": Entry("halfmq.cli.backup", "Back up a running broker: a verified copy of its log, incremental."),
    "restore": Entry("halfmq.cli.restore", "Make a new store from a backup, up to a position or a time."),
    "store": Entry("halfmq.cli.store", "Verify or dump the files of a store, read-only; also while the broker runs."),
    "tx": Entry("halfmq.cli.tx", "List, explain and settle undecided transactions; set limits of producer groups."),
    "pipeline": Entry(
        "halfmq.cli.pipeline", "Run jobs on Spark: tables of topics, reconciliation, archive, replay, report."
    ),
    "relay": Entry("halfmq.cli.relay", "Publish the outboxes of an application: run the relays that it registered."),
    "worker": Entry("halfmq.cli.worker", "Run the consumers of an application, and answer its checks."),
    "asyncapi": Entry("halfmq.cli.asyncapi", "Print the AsyncAPI document of an application."),
    "outbox": Entry("halfmq.cli.outbox", "State of an outbox; retry or skip messages that were set aside."),
    "db": Entry("halfmq.cli.db", "Create, upgrade and prune the tables of halfmq in a database; print their DDL."),
    "query": Entry("halfmq.cli.query", "List the queries whose batches the broker remembers; let it forget one."),
    "coordinator": Entry(
        "halfmq.cli.coordinator",
        "List other systems' coordinators that decide transactions here; let the broker forget one.",
    ),
    "user": Entry("halfmq.cli.user", "Make users, give them permissions and secrets; list and remove them."),
    "context": Entry("halfmq.cli.context", "Name brokers, and choose the one that commands talk to."),
    "diagnose": Entry("halfmq.cli.diagnose", "Write one archive for a bug report, without bodies and secrets."),
    "topic": Entry("halfmq.cli.topic", "List, show, create, change and delete topics."),
    "group": Entry(
        "halfmq.cli.group",
        "Consumer groups: list them, see their lag, reset or delete them; let retention wait for one.",
    ),
    "send": Entry("halfmq.cli.send", "Send one message, plainly or as a transaction."),
    "consume": Entry("halfmq.cli.consume", "Print the messages of a topic; without a group nothing is committed."),
    "peek": Entry("halfmq.cli.peek", "Look at stored messages by time, key or id."),
    "dead": Entry(
        "halfmq.cli.dead", "Dead letters of consumer groups: list them, see why, and send them to their group again."
    ),
    "client": Entry("halfmq.cli.client", "List who is connected to a broker; close the connections of a client."),
    "check-history": Entry(
        "halfmq.cli.check_history",
        "Check a recorded history for lost, phantom, duplicate or torn transactions, and more.",
    ),
    "bench": Entry("halfmq.cli.bench", "Measure a broker: transactions per second, latencies, CPU."),
}


class LazyCommand(TyperCommand):
    """Placeholder of a command; makes and runs the command when it is called. ``extra``: of halfmq, which it needs."""

    def __init__(self, name: str, help: str, make: Callable[[], Any], *, extra: str) -> None:  # noqa: A002
        super().__init__(name=name, help=help, callback=None)
        self._make = make
        self._extra = extra

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            real = self._make()
        except ModuleNotFoundError as error:
            if extra.get("resilient_parsing"):  # a shell completes the line
                return super().make_context(info_name, args, parent=parent, **extra)
            output.note(
                f"{parent.command_path} {self.name}: {error}. Install the missing extra: pip install 'halfmq[{self._extra}]'"
            )
            raise SystemExit(ExitStatus.FAILED) from error
        real.name = self.name
        return real.make_context(info_name, args, parent=parent, **extra)


def _imported(module: str) -> Any:
    return typer.main.get_command(importlib.import_module(module).app)


class LazyGroup(TyperGroup):
    """The commands in ``COMMANDS``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return LazyCommand(cmd_name, entry.help, lambda: _imported(entry.module), extra="server")


# With completion by Typer. While it completes a line, it makes the contexts of the commands in it, so a module is imported as when it runs.
app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    help="A message is visible if and only if the local database transaction that sent it committed.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from halfmq import __version__

        output.say(f"halfmq {__version__}")
        raise typer.Exit


#: Commands that talk to no broker that is running, or run one: a context means nothing to them.
_WITHOUT_CONTEXT: Final = frozenset({"serve", "store", "context", "check-history"})


@app.callback()
def _root(
    ctx: typer.Context,
    context: str = typer.Option(
        "", "--context", envvar="HALFMQ_CONTEXT", help="The broker to talk to, by its name: see halfmq context."
    ),
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    if ctx.invoked_subcommand in _WITHOUT_CONTEXT:
        return
    from halfmq.cli import contexts  # it costs 10 ms, and not every command needs it

    try:
        contexts.apply(context)
    except UsageError as error:
        output.note(f"halfmq: {error}")
        raise typer.Exit(ExitStatus.USAGE) from error
    except EnvironmentFailed as error:
        raise fail(error) from error


def with_options(run: Callable[..., None], options: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """``run`` with a keyword parameter for each option: its annotation and its default; ``...``: required."""
    run.__annotations__ = {**{name: hint for name, (hint, _) in options.items()}, "return": None}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=inspect.Parameter.empty if default is ... else default,
            )
            for name, (hint, default) in options.items()
        ]
    )
    return run


def path(text: str) -> Path:
    """``parser`` of path options: rejects an empty path (an unset shell variable), which would mean the current directory."""
    if not text:
        raise typer.BadParameter("an empty path; for the current directory use .")
    return Path(text)


def fail(error: BaseException) -> "typer.Exit":
    """Print the error on standard error; use as ``raise fail(error)``. Exit status ``ExitStatus.FAILED``."""
    output.note(f"halfmq: {error}")
    return typer.Exit(ExitStatus.FAILED)


main: Callable[[], None] = app

if __name__ == "__main__":
    sys.exit(app())
