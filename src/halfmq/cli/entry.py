"""What the command ``halfmq`` runs first: the command line, or one line that says which extra has it.

A plain ``pip install halfmq`` is the client, which has no use for a command line.
"""

import sys
from typing import Final

from halfmq.errors import MissingDependency

#: Packages of the extra ``server``.
_OF_SERVER: Final = frozenset({"typer", "rich", "click"})


def run() -> None:
    """Run the command line.

    Raises:
        SystemExit: with the command's code; 1 when the command line is not installed.
    """
    try:
        from halfmq.cli.main import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OF_SERVER:
            raise
        missing = MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[server]'")
        print(f"halfmq: {missing}", file=sys.stderr)
        raise SystemExit(1) from missing
    app()
