"""The back-check: ask a producer for the outcome of its transaction.

Core decides which transaction, which producer and which number. This service reads the half message and delivers it: pushed to the
producer, or in the response to a poll (``check_polls``) if the producer fetches its checks. If neither is possible, core is told,
and the check does not count. A producer that did not read is reachable again as soon as it does.

The half is sent with the offsets that identify the transaction's first half, wherever its bytes are now: the response must contain
them.
"""

from typing import NamedTuple

from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.check_polls import CheckPolls
from halfmq.broker.services.messages import StoredMessages
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import CheckNotSent
from halfmq.core.decision import SendCheck
from halfmq.core.session import CheckDelivered, Reachable
from halfmq.model.stored_message import AT_PHYSICAL_OFFSET, AT_QUEUE_OFFSET


class PushedCheck(NamedTuple):
    """A check for its producer, a push; ``half``: as stored."""

    check: SendCheck
    half: bytes


class Checks:
    """Delivers checks to producers once their records are durable, and tells core which ones could not be sent."""

    def __init__(
        self, sequencer: Sequencer, stored: StoredMessages, polls: CheckPolls, peers: Peers, time: BrokerTime
    ) -> None:
        self._sequencer = sequencer
        self._stored = stored
        self._polls = polls
        self._peers = peers
        self._time = time
        #: Peer's number -> producer group -> client id: peers that missed checks because they did not read.
        self._missed: dict[int, dict[str, str]] = {}

    def send(self, check: SendCheck) -> None:
        """Deliver a check whose record is durable, and tell core the result."""
        half = self._half(check)
        if self._is_sent(check, half):
            if self._sequencer.view.derived.policies:
                delivered = CheckDelivered(check.group, check.tx_id, check.checks, self._time.now_ms())
                self._sequencer.engine.note(delivered)
            return
        if half is not None and check.connection in self._peers.connected:
            self._remember(check)
        # First: a check decided in the same turn must not be numbered as if this one had been sent.
        self._sequencer.submit_first(CheckNotSent(check.group, check.tx_id, check.connection, half is None))

    def _is_sent(self, check: SendCheck, half: bytes | None) -> bool:
        """Hand the check to its poll or push it. False: neither is possible."""
        if self._polls.expects(check):
            return self._polls.add(check, half)
        group = self._sequencer.view.producer_groups.get(check.group)
        if half is None or group is None or check.connection not in group.session.members:
            return False  # its poll has ended; a client that fetches is not pushed to
        return self._peers.push(check.connection, PushedCheck(check, half))

    def _remember(self, check: SendCheck) -> None:
        group = self._sequencer.view.producer_groups.get(check.group)
        client_id = group.session.members.get(check.connection) if group is not None else None
        if client_id is not None:
            self._missed.setdefault(check.connection, {})[check.group] = client_id

    def drained(self, peer: Peer) -> None:
        """The peer reads again: tell core, after the commands that reported failures."""
        if peer.number in self._missed and not self._sequencer.after_turn(self._back, peer.number):
            self._back(peer.number)

    def _back(self, number: int) -> None:
        groups = self._missed.pop(number, {})  # empty if the peer is gone by now
        for group, client_id in groups.items():
            self._sequencer.engine.note(Reachable(number, client_id, group))
        if groups:
            self._sequencer.update_deadline()

    def peer_gone(self, number: int) -> None:
        """Remove its missed checks."""
        self._missed.pop(number, None)

    def _half(self, check: SendCheck) -> bytes | None:
        """The half to send, with the offsets that its producer knows. None if the log no longer has it."""
        half = self._stored.half_bytes(check.offset)
        if half is None:
            return None
        copy = bytearray(half)
        copy[AT_QUEUE_OFFSET : AT_QUEUE_OFFSET + 8] = check.half_index.to_bytes(8, "big")
        copy[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8] = check.first_offset.to_bytes(8, "big")
        return bytes(copy)
