"""Entry point of the command ``halfmq``. ``pip install halfmq`` installs the client only; the command line is in an extra."""

import sys
from typing import Final

from halfmq.cli.exit_status import ExitStatus
from halfmq.errors import MissingDependency

#: Packages of the extra ``server`` that the command line imports.
_OF_SERVER: Final = frozenset({"typer", "rich", "click"})


def run() -> None:
    """Run the command line.

    Raises:
        SystemExit: with the exit status of the command; ``ExitStatus.FAILED`` if the extra ``server`` is not installed.
    """
    try:
        from halfmq.cli.main import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OF_SERVER:
            raise
        missing = MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[server]'")
        print(f"halfmq: {missing}", file=sys.stderr)
        raise SystemExit(ExitStatus.FAILED) from missing
    from halfmq.cli import output

    try:
        app()
    except Exception as error:
        output.trace(error)
        raise SystemExit(ExitStatus.FAILED) from error
