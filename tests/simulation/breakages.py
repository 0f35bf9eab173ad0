"""Bugs to plant in a running simulation, to show that it can fail. ``tests.mutation`` has many more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from halfmq.core import decide as decisions
from halfmq.core.commands import EndTransaction, RequestedVerdict
from tests.support.faulty_disk import FaultyDisk

#: Name -> description.
NAMES = {
    "sync": "syncs return and do nothing",
    "reply": "answers leave before the sync",
    "verdict": "some COMMITs roll back",
}


@contextmanager
def planted(name: str, disk: FaultyDisk) -> Iterator[Callable[[Any], None]]:
    """Yields a function to call with each broker that has started."""
    on_started: Callable[[Any], None] = lambda broker: None  # noqa: E731
    right = decisions.DECIDE[EndTransaction]
    match name:
        case "sync":
            disk.sync_is_a_lie = True
        case "reply":
            on_started = _answer_early
        case "verdict":
            decisions.DECIDE[EndTransaction] = _turned(right)
    try:
        yield on_started
    finally:
        decisions.DECIDE[EndTransaction] = right


def _answer_early(broker: Any) -> None:
    """A store that reports written data as durable: replies are released before the sync."""
    store = broker._store
    store.__class__ = type("Eager", (type(store),), {"durable_position": property(lambda s: s.log.end)})


def _turned(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(state: Any, command: EndTransaction, now_ms: int) -> Any:
        if command.wanted is RequestedVerdict.COMMIT and command.tx_id.endswith(("3", "7")):
            command = command._replace(wanted=RequestedVerdict.ROLLBACK)
        return right(state, command, now_ms)

    return wrong
