"""Number of transactions that the log of a dead broker leaves undecided."""

from pathlib import Path

import msgspec

from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store


def undecided_in(data: Path) -> int:
    """Transactions without a verdict in the log of a dead broker. A torn end is ignored, as in recovery."""
    kinds = frozenset(("half", "copied_half", "committed", "rolled_back"))
    open_: set[tuple[str, str]] = set()
    for line in dump_store(RealDisk(), data, kinds=kinds):
        record = msgspec.json.decode(line)
        key = (record["group"], record["tx_id"])
        if record["kind"] in ("half", "copied_half"):
            open_.add(key)
        else:
            open_.discard(key)
    return len(open_)
