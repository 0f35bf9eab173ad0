"""After each start, the index files hold nothing after the end of each queue.

What is left there would become visible once the log has grown past it, at the offset of a later message.
"""

from collections import Counter
from typing import Any

from halfmq.store.layout import QUEUE_ENTRY_BYTES
from tests.simulation.promises import Violation

#: Number of entries examined; more than a power loss leaves here.
_LOOKED_AT = 64


def look_behind_queues(store: Any, counts: Counter[str]) -> None:
    """
    Raises:
        Violation: there is an entry after the end of its queue.
    """
    queues = store.indexes.queues
    for queue in queues._queues.values():
        if not queue.bases:
            continue
        base = queue.bases[-1]
        at = max(0, queue.end - base) * QUEUE_ENTRY_BYTES
        counts["look behind queue"] += 1
        file = queues._files.get((queue.topic_id, queue.queue_id, base), queue.path(base))
        if file.read(at, _LOOKED_AT * QUEUE_ENTRY_BYTES).strip(b"\0"):
            raise Violation(
                f"Once: queue {queue.queue_id} of topic {queue.topic_id} ends at {queue.end}, and behind it stands something"
            )
