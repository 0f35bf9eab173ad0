"""Behind the end of each queue there is nothing: looked at in the files themselves, when a start has made them fit the log.

What stands there would be shown as soon as the log has grown past it, under the offset of a message that is still to come.
"""

from collections import Counter
from typing import Any

from halfmq.store.layout import QUEUE_ENTRY_BYTES
from tests.simulation.promises import Violation

#: Entries that are looked at; more than a power loss leaves behind here.
_LOOKED_AT = 64


def look_behind_queues(store: Any, counts: Counter[str]) -> None:
    """
    Raises:
        Violation: an entry stands behind the end of its queue.
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
