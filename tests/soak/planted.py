"""A broker with a bug, so that everybody sees the soak go red: ``python -m tests.soak.planted BUG serve ...``."""

import sys
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from halfmq.cli.entry import run
from halfmq.core import decide as decisions
from halfmq.core.commands import EndTransaction, RequestedVerdict

#: Name -> (the verdict that is asked for, the one that is written instead).
BUGS = {
    "commit-rolls-back": (RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK),
    "rollback-commits": (RequestedVerdict.ROLLBACK, RequestedVerdict.COMMIT),
}


def turned(right: Callable[..., Any], asked: RequestedVerdict, written: RequestedVerdict) -> Callable[..., Any]:
    """Wrong for one transaction in sixteen or so."""

    def wrong(state: Any, command: EndTransaction, now_ms: int) -> Any:
        if command.wanted is asked and command.tx_id.endswith("7"):
            command = replace(command, wanted=written)
        return right(state, command, now_ms)

    return wrong


if __name__ == "__main__":
    bug = sys.argv.pop(1)
    decisions.DECIDE[EndTransaction] = turned(decisions.DECIDE[EndTransaction], *BUGS[bug])
    run()
