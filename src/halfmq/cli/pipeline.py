"""``halfmq pipeline``: the jobs of ``halfmq.spark.jobs``, on this machine or a cluster.

Options of a job are the fields of its settings; a file (``--config``) may set them as well. This file is also the program for spark-submit:

    spark-submit --master spark://master:7077 "$(halfmq pipeline script)" ingest --config pipeline.toml
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from halfmq.cli import output
from halfmq.cli.exit_status import MEANINGS, ExitStatus, exit_text
from halfmq.cli.main import LazyCommand, path, with_options
from halfmq.errors import HalfmqError, UsageError


class Job(NamedTuple):
    """``halfmq.spark.jobs.NAME`` has a struct ``Settings``, and ``run(settings, spark, say) -> int``, which returns the exit status."""

    help: str
    #: After an error; another one where this is a result.
    failed: ExitStatus = ExitStatus.FAILED


JOBS: Final[dict[str, Job]] = {
    "ingest": Job("Topics to tables: everything, parsed rows, and rejected rows with reasons."),
    "transactions": Job("A table with one row for each transaction."),
    "reconcile": Job(
        "Compare a business table with messages: missing, phantom, duplicated, different.", failed=ExitStatus.USAGE
    ),
    "archive": Job("Topics to tables that outlive retention, exactly once."),
    "replay": Job("Messages of an archive or a topic into a topic, exactly once."),
    "report": Job("One HTML page: rates, latencies, undecided transactions, reconciliation."),
}


class JobGroup(TyperGroup):
    """A job's module is imported when the job runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*JOBS, "script"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        job = JOBS.get(cmd_name)
        if job is None:
            return super().get_command(ctx, cmd_name)
        return LazyCommand(cmd_name, job.help, lambda: _command(cmd_name), extra="pipeline")


app = typer.Typer(
    cls=JobGroup,
    help="Jobs on Spark: tables of topics, transactions, reconciliation, archive and replay.",
    epilog=exit_text("halfmq pipeline"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_Config = Annotated[Path | None, typer.Option(parser=path, help="TOML file with a table for each job, and [spark].")]
_Master = Annotated[str | None, typer.Option(help="Spark master; default: that of spark-submit, else this machine.")]
_Conf = Annotated[list[str] | None, typer.Option(help="Spark configuration NAME=VALUE; may be repeated.")]
_COMMON: Final = {"config": _Config, "master": _Master, "conf": _Conf}


@app.callback()
def _root() -> None:  # with a callback it is a group, though it has one command of its own
    pass


@app.command()
def script() -> None:
    """Print the path of the program for spark-submit: the same commands as `halfmq pipeline`."""
    output.say(__file__)


def _command(name: str) -> Any:
    module = importlib.import_module(f"halfmq.spark.jobs.{name}")
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    command = f"halfmq pipeline {name}"
    one.command(name, help=module.run.__doc__, epilog=exit_text(command if command in MEANINGS else "halfmq pipeline"))(
        _with_options(module.Settings, _runner(name, module))
    )
    return typer.main.get_command(one)


def _runner(name: str, module: Any) -> Callable[..., None]:
    def run(**given: Any) -> None:
        from halfmq.spark.jobs import settings as s

        file, master, conf = (given.pop(one) for one in _COMMON)
        try:
            values = {
                field.name: _value(field.type, given[field.name])
                for field in s.fields_of(module.Settings)
                if given[field.name] is not None
            }
            if file is not None:
                s.check_tables(file, JOBS)
            settings = s.load(module.Settings, name, file=file, given=values)
            spark = s.load_spark(file, master=master, conf=s.parse_pairs(conf or ()))
            status = module.run(settings, spark, output.note)
        except UsageError as error:
            output.note(f"halfmq pipeline {name}: {error}")
            raise typer.Exit(ExitStatus.USAGE) from error
        except HalfmqError as error:
            output.note(f"halfmq pipeline {name}: {error}")
            raise typer.Exit(JOBS[name].failed) from error
        except Exception as error:
            output.trace(error)
            raise typer.Exit(JOBS[name].failed) from error
        raise typer.Exit(status)

    return run


def _value(kind: Any, given: Any) -> Any:
    from halfmq.spark.jobs import settings as s

    if s.is_list(kind):
        return tuple(item for text in given for item in s.parse_list(text))
    return s.parse_pairs(given) if s.is_pairs(kind) else given


def _with_options(kind: Any, run: Callable[..., None]) -> Callable[..., None]:
    """``run`` with a keyword parameter for each field of the struct, all optional: a file may set them."""
    from halfmq.spark.jobs import settings as s

    hints: dict[str, Any] = {}
    for field in s.fields_of(kind):
        plain = list[str] if s.is_pairs(field.type) or s.is_list(field.type) else field.type
        hints[field.name] = Annotated[plain | None, typer.Option(help=_help(field), show_default=False)]
    return with_options(run, {name: (hint, None) for name, hint in (hints | _COMMON).items()})


def _help(field: Any) -> str:
    if field.required:
        return f"{field.description} Required."
    shown = field.default not in (None, "", (), False) and field.default != {}
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    return f"{field.description} Default: {default}." if shown else field.description


if __name__ == "__main__":
    sys.exit(app())
