"""The log of a stopped broker as history events, and how often each kind of record stands in it."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.store.topics_file import read_topics
from halfmq.testing.history.events import Logged
from tests.soak.notes import now_us

_DECIDED_BY = {"producer": "application"}


def logged(data: Path, by: str, counts: Counter[str], note: Callable[[str], None]) -> Iterator[Logged]:
    """Every record, in log order. ``note`` hears how the log ends if it is not a clean end."""
    disk = RealDisk()
    _, topics = read_topics(disk, next(data.rglob("topics.json")))
    names = {topic.topic_id: topic.name for topic in topics}
    for line in dump_store(disk, data, note=note):
        record = msgspec.json.decode(line)
        counts[record["kind"]] += 1
        if record["kind"] in ("committed", "rolled_back"):
            counts[f"verdict by {_DECIDED_BY.get(record['decided_by'], record['decided_by'])}"] += 1
        yield _event(record, by, names)


def undecided_in(data: Path) -> int:
    """Transactions without a verdict in the log of a broker that is dead; its torn end is left out, as it will be."""
    kinds = frozenset(("half", "carried_half", "committed", "rolled_back"))
    open_: set[tuple[str, str]] = set()
    for line in dump_store(RealDisk(), data, kinds=kinds):
        record = msgspec.json.decode(line)
        key = (record["group"], record["tx_id"])
        if record["kind"] in ("half", "carried_half"):
            open_.add(key)
        else:
            open_.discard(key)
    return len(open_)


def _event(record: dict[str, Any], by: str, names: dict[int, str]) -> Logged:
    kind, offset = record["kind"], record["offset"]
    common: dict[str, Any] = {"t_us": now_us(), "by": by, "offset": offset}
    match kind:
        case "half" | "carried_half" | "message":
            message = record["message"]
            text = message["properties"]
            return Logged(
                **common, kind={"half": "half", "carried_half": "copy", "message": "message"}[kind],
                group=record.get("group", ""), tx=record.get("tx_id", ""), index=record.get("index", 0),
                message=text.get("UNIQ_KEY", ""), topic=message["topic"], queue=message["queue_id"],
                queue_offset=message["queue_offset"] if kind == "message" else -1, crc=message["body_crc"],
                key=text.get("__SHARDINGKEY", ""),
            )  # fmt: skip
        case "committed" | "rolled_back":
            shown = tuple(
                (names.get(ref["topic_id"], ""), ref["queue_id"], ref["queue_offset"], ref["offset"])
                for ref in record.get("refs", ())
            )
            return Logged(
                **common, kind="commit" if kind == "committed" else "rollback", group=record["group"],
                tx=record["tx_id"], decided_by=_DECIDED_BY.get(record["decided_by"], record["decided_by"]),
                shown=shown,
            )  # fmt: skip
        case "trim":
            return Logged(**common, kind="trim", log_start=record["log_start"])
        case _:
            return Logged(**common, kind="other")
