"""Durable state as one comparable value. It must be equal for live state, redo, a loaded snapshot, and redo after a trim.

It consists of the rows of ``schema`` in a defined order, and the indexes that decisions read. It omits what redo cannot know and
nothing durable depends on: the connection of a message in the deduplication window, and the first offset of a rolled-back half
whose record was trimmed.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import astuple, replace

from halfmq.core.schema import ROW_KINDS, OffsetRow
from halfmq.core.state import RecentMessage, State, Verdict


def _sent(sent: RecentMessage) -> tuple[Any, ...]:
    return astuple(replace(sent, connection=0))


def _verdict(verdict: Verdict) -> tuple[Any, ...]:
    return astuple(replace(verdict, first_offsets=0))


def _offsets(row: OffsetRow) -> Any:
    group, entries = row
    return group, sorted(entries)


#: The compared part of a row. Rows of other kinds are compared as a whole.
_COMPARED: Final[dict[str, Callable[[Any], Any]]] = {
    "offsets": _offsets,
    "compared": astuple,
    "undecided": astuple,
    "delayed": astuple,
    "decided": _verdict,
    "sent": _sent,
}
#: Kinds whose order is durable.
_IN_ORDER: Final = frozenset({"immunity", "decided", "sent"})


def durable_digest(state: State) -> dict[str, Any]:
    """Plain values by field. Compare two digests with ``==``, or field by field to see the differences."""
    digest: dict[str, Any] = {}
    for kind in ROW_KINDS:
        rows = [_COMPARED.get(kind.name, lambda row: row)(row) for row in kind.rows(state)]
        digest[kind.name] = rows if kind.name in _IN_ORDER else sorted(rows)
    groups = state.producer_groups.values()
    (head,) = digest.pop("head")
    return {
        **head._asdict(),
        **digest,
        "pending": sorted((topic.name, topic.derived.pending) for topic in state.topics_by_id.values()),
        "sent_by_id": sorted(
            (topic.name, unique_id, _sent(sent))
            for topic in state.topics_by_id.values()
            for unique_id, sent in topic.derived.sent.items()
        ),
        "settled": sorted(_verdict(verdict) for group in groups for verdict in group.settled.values()),
        "undecided_bytes": sorted((group.name, group.derived.bytes) for group in groups if group.derived.bytes),
    }
