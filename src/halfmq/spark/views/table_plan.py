"""Which half indexes a task of ``view=transactions`` or ``view=half`` reads, and what the plan knows of them. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from halfmq.spark.plan.partitions import task_count
from halfmq.spark.rows.byte_slices import Ints
from halfmq.spark.views.table_rows import Rows, open_groups
from halfmq.store.layout import TRANSACTION_FILE_ROWS

#: Bytes that a transaction counts when tasks are planned: its row and the record of its verdict, about 4 us of work over the network.
_TRANSACTION_BYTES: Final = 512
#: Rows between two wanted ones that are read and dropped, instead of reading twice.
_GAP_ROWS: Final = 512


class TableSnapshot(NamedTuple):
    """A store at one log position."""

    store: str
    position: int
    log_start: int
    #: Half index of the first row in the table, and the one after the last.
    first: int
    end: int


class UndecidedRows(NamedTuple):
    """The undecided rows at the position of a snapshot, by half index."""

    half_indexes: Ints
    rows: Rows


@dataclass(repr=False, eq=False, kw_only=True)
class TableRange(InputPartition):
    """Rows [start, end) for one task. ``groups``: half indexes of each undecided transaction of several halves that the task reads, and
    ``open_halves``: those of all such transactions in its range. ``must_have``: the user named the first half.
    """

    snapshot: TableSnapshot
    start: int
    end: int
    open_halves: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    groups: list[Ints] = field(default_factory=list)
    must_have: bool = False

    def __repr__(self) -> str:
        return f"TableRange({self.start} to {self.end}, {len(self.groups)} undecided transactions of several halves)"


def plan_transactions(
    snapshot: TableSnapshot, start: int, end: int, undecided: UndecidedRows, tasks_min: int | None, *, must_have: bool
) -> list[TableRange]:
    """The tasks for the transactions whose lowest half index is in [start, end)."""
    count = task_count(end - start, (end - start) * _TRANSACTION_BYTES, tasks_min) if end > start else 0
    groups = open_groups(*undecided)
    open_halves: Ints = np.sort(np.concatenate(groups)) if groups else np.empty(0, np.int64)
    edges = [start + (end - start) * number // count for number in range(count + 1)] if count else []
    return [
        TableRange(
            snapshot=snapshot, start=first, end=last, must_have=must_have,
            open_halves=open_halves[np.searchsorted(open_halves, first) : np.searchsorted(open_halves, last)],
            groups=[group for group in groups if first <= group[0] < last],
        )
        for first, last in pairwise(edges)
    ]  # fmt: skip


def plan_halves(
    snapshot: TableSnapshot, start: int, end: int, undecided: UndecidedRows, tasks_min: int | None
) -> list[TableRange]:
    """The tasks for the undecided halves in [start, end), with about equal bytes."""
    wanted = (undecided.half_indexes >= start) & (undecided.half_indexes < end)
    halves = undecided.half_indexes[wanted]
    if not len(halves):
        return []
    sums = np.cumsum(undecided.rows["message_bytes"][wanted].astype(np.int64))
    count = task_count(len(halves), int(sums[-1]), tasks_min)
    cuts = np.unique(np.searchsorted(sums, [int(sums[-1]) * number // count for number in range(1, count)]))
    edges: Sequence[int] = [int(halves[0]), *[int(halves[cut]) for cut in cuts if cut], int(halves[-1]) + 1]
    return [TableRange(snapshot=snapshot, start=first, end=last) for first, last in pairwise(edges) if last > first]


def runs(half_indexes: Ints) -> Sequence[tuple[int, int]]:
    """Ranges [first, end) that contain the sorted half indexes, without large gaps, each within one file of the table."""
    if not len(half_indexes):
        return []
    files = half_indexes // TRANSACTION_FILE_ROWS
    cuts = np.flatnonzero((np.diff(half_indexes) > _GAP_ROWS) | (np.diff(files) > 0)) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(half_indexes, cuts)]
