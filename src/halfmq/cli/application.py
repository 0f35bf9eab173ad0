"""MODULE:NAME on the command line: an object of an application, imported as the application itself is."""

import importlib
import inspect
import sys
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import Commands
from halfmq.client.app import App

#: The argument of commands that run an application.
AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP",
        help="The application: a halfmq.App in a module, or a function without arguments that makes one. The module is imported from "
        "the current directory or as installed.",
    ),
]


def is_url(target: str) -> bool:
    """Whether ``target`` is a URL, and not MODULE:NAME."""
    return "://" in target


def load(commands: Commands, target: str) -> Any:
    """The object ``target``, MODULE:NAME. The current directory is on the path of its imports.

    Raises:
        typer.Exit: there is no such object, or the import failed; the reason was printed.
    """
    module_name, colon, name = target.partition(":")
    if not (colon and name and module_name):
        commands.fail(f"{target!r} is not MODULE:NAME, such as shop.main:app", ExitStatus.USAGE)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            commands.fail(f"there is no module {error.name}, neither in {here} nor installed", ExitStatus.USAGE)
        _failed(commands, f"importing {module_name}", error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the application's own
        _failed(commands, f"importing {module_name}", error)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        commands.fail(f"module {module_name} has no {name!r}", ExitStatus.USAGE)


def _failed(commands: Commands, what: str, error: Exception | SystemExit) -> NoReturn:
    at = error.__traceback__
    # It begins with the application's own line.
    while at is not None and at.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("halfmq", "importlib"):
        at = at.tb_next
    output.trace(error.with_traceback(at))
    commands.fail(f"{what} failed: {type(error).__name__}: {error}", ExitStatus.FAILED)


def load_made(commands: Commands, target: str) -> Any:
    """The object at ``target``, or what the function at ``target`` makes, which is called without arguments.

    Raises:
        typer.Exit: as ``load``, or the function has failed.
    """
    found = load(commands, target)
    if not inspect.isroutine(found):
        return found
    try:
        made = found()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the application's own
        _failed(commands, f"calling {target}", error)
    if inspect.iscoroutine(made):
        made.close()
    return made


def load_app(commands: Commands, target: str) -> App:
    """The ``App`` that ``load_made`` finds.

    Raises:
        typer.Exit: as there, or it is something else.
    """
    found = load_made(commands, target)
    if not isinstance(found, App):
        commands.fail(f"{target} is not a halfmq.App, but of type {type(found).__name__}", ExitStatus.USAGE)
    return found
