"""Searches for an earlier verdict before a half message, a half batch or a fence whose transaction id the application chose.

Memory has the verdicts of the deduplication window; the log has all that are not past retention, and the index of settled ids finds them
there. A new id, the common case, is looked up in memory only. For a used one the verdict's record is read, on the loop, and its names are
compared; the decision gets the verdict with the command.

    send -> find in the index -> (read the verdict) -> SendHalf with ``searched_to`` and ``earlier`` -> decision

The decision refuses with SEARCH_AGAIN if verdicts that the search did not cover have left memory since, as one does whose window ends in
that turn, or while the broker was paused. The reply is released when those verdicts are in the index, so the next search covers them.

After a start the index is first read from its files, in parts, by the maintenance thread; halves with chosen ids wait for that.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from halfmq.broker.offload import Offload
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.core.commands import EarlierVerdict, FenceTransaction, PrepareBatch, SendHalf
from halfmq.core.decision import Failed, Refused, Reply, Why
from halfmq.errors import StoreDamaged
from halfmq.model.records import RolledBack
from halfmq.store.store import Store

log = logging.getLogger("halfmq.chosen")

#: Maximum number of halves that wait for the index after a start; clients retry the others.
WAITING_MAX: Final = 1_024


WithId = SendHalf | PrepareBatch | FenceTransaction


class ChosenIds:
    """Passes halves and fences with chosen ids to the core, with what the log knows of the id."""

    def __init__(
        self, sequencer: Sequencer, store: Store, offload: Offload, flush: Callable[[], None] = lambda: None
    ) -> None:
        """``flush``: writes responses that were delivered outside of a request."""
        self._sequencer = sequencer
        self._view = sequencer.view
        self._store = store
        self._index = store.settled_ids
        self._offload = offload
        self._flush = flush
        self._is_reading = False
        self._waiting: list[tuple[str, WithId, Deliver, Any]] = []
        self._shares = Shares("halves that wait until the index of settled ids is read after the start")

    def read_index(self) -> None:
        """Begin to read the index, if it is not read or being read. Call it after a start; a half that needs the index also does."""
        part = self._index.next_part
        if not self._is_reading and part is not None:
            self._is_reading = True
            self._offload.run(lambda: self._index.read_part(part), lambda result: self._part_read(part, result))

    def send(self, peer: Peer, command: WithId, deliver: Deliver, context: Any) -> None:
        """Search, then decide. ``deliver(context, reply)`` is called as for other sends: with Sent, Refused, or Failed.

        Refusals: as for ``core.transaction.machine.prepare``; NOT_NOW if too many wait for the index. Failed if a verdict that may be of
        this id cannot be read: nothing was stored, since the id may be a used one.
        """
        if not self._index.is_ready:
            owner = owner_of(peer)
            busy = self._shares.refusal(owner, WAITING_MAX)
            if busy is not None:
                deliver(context, Refused(Why.NOT_NOW, f"{busy}: send it again"))
                return
            self._shares.add(owner)
            self._waiting.append((owner, command, deliver, context))
            self.read_index()
            return
        self._search(command, deliver, context)

    def _search(self, command: WithId, deliver: Deliver, context: Any) -> None:
        known = self._view.producer_groups.get(command.group)
        if known is not None and (command.tx_id in known.undecided or command.tx_id in known.settled):
            # Not searched: if memory forgets it before the decision, that asks for a search.
            command = replace(command, searched_to=0, earlier=None)
        else:
            searched_to = self._store.indexed_to
            earlier = self._earlier(command)
            if isinstance(earlier, Failed):
                deliver(context, earlier)
                return
            command = replace(command, searched_to=searched_to, earlier=earlier)
        submit = self._sequencer.submit_small if type(command) is SendHalf else self._sequencer.submit
        submit(command, self._decided, (command, deliver, context))

    def _earlier(self, command: WithId) -> EarlierVerdict | Failed | None:
        group, tx_id = command.group, command.tx_id
        for position in self._index.find(group, tx_id):
            if position < self._view.log_start:
                break
            try:
                record = self._store.verdict(position)
            except (LookupError, StoreDamaged, OSError) as error:
                log.error("transaction id %r may be a used one: its verdict cannot be read: %s", tx_id, error)
                return Failed(
                    f"the verdict at log offset {position}, which may be of {tx_id!r}, cannot be read: {error}"
                )
            if record.tx_id == tx_id and record.group == group:
                return EarlierVerdict(type(record) is not RolledBack, position)
        return None

    def _decided(self, asked: tuple[WithId, Deliver, Any], reply: Reply | Failed) -> None:
        command, deliver, context = asked
        if type(reply) is Refused and reply.why is Why.SEARCH_AGAIN:
            self._search(command, deliver, context)
        else:
            deliver(context, reply)

    def _part_read(self, part: Any, result: bytes | BaseException) -> None:
        self._is_reading = False
        if isinstance(result, BaseException):
            log.error("the index of settled ids cannot be read; halves with ids of applications fail: %s", result)
            failed = Failed(f"the index of settled ids cannot be read: {result}")
            for _, _, deliver, context in self._take_waiting():
                deliver(context, failed)
            self._flush()
            return
        self._index.use_part(part, result)
        if not self._index.is_ready:
            self.read_index()
            return
        for _, *one in self._take_waiting():
            self._search(*one)
        self._flush()

    def _take_waiting(self) -> list[tuple[str, WithId, Deliver, Any]]:
        waiting, self._waiting = self._waiting, []
        for owner, *_ in waiting:
            self._shares.add(owner, -1)
        return waiting
