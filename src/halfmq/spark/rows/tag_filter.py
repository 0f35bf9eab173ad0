"""Option ``tags``: the messages of a batch that have one of the tags.

Brokers filter by the hash of the tag, and clients compare the text again (``core/queues/filter.py``). Here the text decides. The direct
reader compares the hashes in the queue entries first. Over the network everything is transferred: a broker that filters
could no longer be checked for omitted messages.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmq.model import properties
from halfmq.spark.rows.stored_rows import StoredRows, chosen_rows, property_table


def with_tags(rows: StoredRows, tags: Sequence[str], bad: Callable[[int, str], None]) -> StoredRows:
    """The rows whose tag is one of ``tags``; without ``tags`` all of them. A message with damaged properties has no tag:
    ``bad(queue offset, why)`` is called for it.
    """
    if not tags:
        return rows
    table = property_table(rows, bad)
    found = pc.is_in(
        table.binary(*table.find(properties.TAGS)), value_set=pa.array([tag.encode() for tag in tags], pa.binary())
    )
    chosen = np.flatnonzero(found.to_numpy(zero_copy_only=False))
    return rows if len(chosen) == len(rows.starts) else chosen_rows(rows, chosen)
