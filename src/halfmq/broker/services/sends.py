"""Sends of producers, and messages that consumers hand back. For verdicts see ``services.verdicts``.

Nothing is decided here: core knows whether a send is a half message, a repetition or beyond a limit.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol

from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.peer import Peer, ThrottledLog
from halfmq.broker.services.send_commands import BatchMessage, SendRequest, batch_command, send_command
from halfmq.core.commands import SendBack, SendHalf
from halfmq.core.decision import Refused
from halfmq.core.engine import Failed
from halfmq.model.stored_message import StoredMessage, body_crc_of

log: Final = logging.getLogger("halfmq.sends")


class VisibleMessages(Protocol):
    """What this service needs from the store."""

    def visible(self, offset: int) -> StoredMessage | None:
        """The message at a log offset as consumers see it; None: they see none there."""
        ...


class Sends:
    """``deliver(context, reply)`` is called once: at once for a send that cannot become a command, else when its reply is durable."""

    def __init__(
        self, sequencer: Sequencer, stored: VisibleMessages, chosen_ids: ChosenIds, log_throttled: ThrottledLog
    ) -> None:
        self._sequencer = sequencer
        self._chosen_ids = chosen_ids
        self._stored = stored
        self._log_throttled = log_throttled

    def send(self, peer: Peer, request: SendRequest, body: bytes, deliver: Deliver, context: Any) -> None:
        """A plain message or a half message. Replies: Sent, Refused, Failed."""
        command = send_command(peer.number, peer.born_host, request, body)
        if type(command) is SendHalf:
            if command.searched_to < 0:
                self._sequencer.submit_small(command, deliver, context)
            else:
                self._chosen_ids.send(command, deliver, context)
        elif type(command) is Refused:  # where it is not one, ``isinstance`` takes four times as long
            deliver(context, command)
        else:
            self._sequencer.submit_small(command, deliver, context)

    def send_batch(
        self, peer: Peer, request: SendRequest, messages: Iterable[BatchMessage], deliver: Deliver, context: Any
    ) -> None:
        """Several plain messages for one queue. Replies: SentBatch, Refused, Failed."""
        command = batch_command(peer.number, peer.born_host, request, messages)
        if isinstance(command, Refused):
            deliver(context, command)
        else:
            self._sequencer.submit(command, deliver, context)

    def send_back(
        self,
        peer: Peer,
        group: str,
        log_offset: int,
        delay_level: int,
        max_reconsume_times: int,
        origin_message_id: str,
        deliver: Deliver,
        context: Any,
    ) -> None:
        """A consumer failed on a message: it is delivered again later, or moved to the dead-letter queue.

        ``max_reconsume_times``: -1 if the consumer sent none. Replies: Refused; Failed, also if the message is damaged; anything else is
        a success.
        """
        message = self._stored.visible(log_offset)
        if message is not None and body_crc_of(message.body) != message.body_crc:
            # A damaged message must not be written again: no start would accept the new record.
            text = f"the body of the message at log offset {log_offset} is damaged: its CRC differs from the stored one"
            self._log_throttled(
                log, logging.ERROR, ("damaged", log_offset), peer,
                "not handed back to group %s: %s (halfmq store verify)", group, text,
            )  # fmt: skip
            deliver(context, Failed(text))
            return
        command = SendBack(
            peer.number, group, log_offset, delay_level, max_reconsume_times, origin_message_id, message
        )  # fmt: skip
        self._sequencer.submit(command, deliver, context)
