"""A broker with a planted bug, which the soak must find: ``python -m tests.soak.planted BUG serve ...``."""

import sys
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from halfmq.broker.services import pulls, send_commands
from halfmq.broker.services.tag_filter import TagFilter
from halfmq.cli.entry import run
from halfmq.core import decide as decisions
from halfmq.core.commands import EndTransaction, RequestedVerdict

#: Name -> (requested verdict, written verdict).
VERDICT_BUGS = {
    "commit-rolls-back": (RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK),
    "rollback-commits": (RequestedVerdict.ROLLBACK, RequestedVerdict.COMMIT),
}


TAG_BUGS = ("tags-not-compared", "tag-hash-lost")
BUGS = (*VERDICT_BUGS, *TAG_BUGS)


def plant(bug: str) -> None:
    match bug:
        case "tags-not-compared":
            pulls.parse_filter = lambda expression, kind: TagFilter(None)  # type: ignore[assignment]
        case "tag-hash-lost":
            send_commands.half_facts = _without_some_tags(send_commands.half_facts)  # type: ignore[assignment]
        case _:
            decisions.DECIDE[EndTransaction] = turned(decisions.DECIDE[EndTransaction], *VERDICT_BUGS[bug])


def _without_some_tags(right: Callable[..., Any]) -> Callable[..., Any]:
    """Store about one half message in sixteen as if it had no tag."""

    def wrong(pairs: Any) -> Any:
        _, key_hash, *rest = facts = right(pairs)
        return facts if key_hash % 16 else (0, key_hash, *rest)

    return wrong


def turned(right: Callable[..., Any], asked: RequestedVerdict, written: RequestedVerdict) -> Callable[..., Any]:
    """Wrong for about one transaction in sixteen."""

    def wrong(state: Any, command: EndTransaction, now_ms: int) -> Any:
        if command.wanted is asked and command.tx_id.endswith("7"):
            command = replace(command, wanted=written)
        return right(state, command, now_ms)

    return wrong


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    run()
