"""Searches the transaction table for verdicts that are no longer in memory, by (producer group, id), for operators.

A producer names a half of its transaction, which leads END to the row. An operator has only names, and the table is ordered by half
index: it is searched backwards from its newest row for the hashes of the names. First the pages in memory, on the loop; then the
files, one read of 4 MiB each, on the maintenance thread. A hit counts if the verdict's own record contains the same names, which also
gives the group to an operator who did not name it.

Limits: ``FILES_MAX`` files, which the response states, and ``LOOKS_MAX`` searches at once, so that checkpoints are not delayed for long.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from halfmq.broker.offload import Offload
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.services.messages import settled_row
from halfmq.core.commands import SettledRow
from halfmq.core.state import State
from halfmq.errors import StoreDamaged
from halfmq.store.store import Store
from halfmq.store.transaction_table import SearchResult

#: Maximum number of files that one search reads: 16,777,216 halves, 2 GiB; one to five seconds if they are not cached.
FILES_MAX = 512
#: Maximum number of searches waiting for the maintenance thread.
LOOKS_MAX: Final = 4


class Found(NamedTuple):
    """A settled transaction: its producer group, and the row of one of its halves."""

    group: str
    row: SettledRow


class Missed(NamedTuple):
    """Not found. ``text``: where the search looked, as a clause."""

    text: str


class NotSearched(NamedTuple):
    """The search did not happen: too many are waiting, or the table could not be read. Try again."""

    text: str


Look = Found | Missed | NotSearched
_PAST_RETENTION: Final = Missed("its verdict is past retention: the log begins after it now")


class SettledVerdictLookup:
    """Searches the transaction table, in steps, for a verdict that is no longer in memory."""

    def __init__(self, view: State, store: Store, offload: Offload) -> None:
        self._view = view
        self._store = store
        self._offload = offload
        self._shares = Shares("searches of the transaction table")

    def look(self, peer: Peer, group: str, tx_id: str, then: Callable[[Look], None]) -> None:
        """Call ``then``, now or later on the loop, with the verdict of this transaction. Empty ``group``: of any group.

        Only for transactions that are not in memory: for an undecided or recently settled one the result is wrong.
        """
        found = self._confirmed_match(self._store.find_settled(group, tx_id), group, tx_id)
        if found is not None:
            then(found)
            return
        owner = owner_of(peer)
        busy = self._shares.refusal(owner, LOOKS_MAX)
        if busy is not None:
            then(NotSearched(f"{busy}: try again"))
            return
        self._shares.add(owner)
        files_max = FILES_MAX

        def looked(result: object) -> None:
            self._shares.add(owner, -1)
            if isinstance(result, SearchResult):
                then(self._confirmed_match(result, group, tx_id) or _missed(result))
            else:
                then(NotSearched(f"the transaction table could not be read: {result}"))

        self._offload.run(lambda: self._store.search_settled(group, tx_id, files_max), looked)

    def _confirmed_match(self, looked: SearchResult, group: str, tx_id: str) -> Look | None:
        """The newest candidate whose verdict record contains these names; "past retention" if that record is gone."""
        past: Look | None = None
        for half_index, row in looked.found:
            if row.verdict_position < self._view.log_start:
                past = past or _PAST_RETENTION
                continue
            try:
                of_group, of_id = self._store.verdict_names(row.verdict_position)
            except LookupError:  # a damaged row
                continue
            except StoreDamaged as error:
                return NotSearched(f"the verdict cannot be read: {error}")
            if of_id == tx_id and (of_group == group or not group):
                return Found(of_group, settled_row(half_index, row))
        return past


def _missed(looked: SearchResult) -> Missed:
    if looked.whole:
        return Missed(
            "the transaction table has no verdict of it either; it was never prepared here, or is past retention"
        )
    return Missed(
        f"it is not among the newest {looked.rows} rows of the transaction table either; `halfmq store dump` shows all"
    )
