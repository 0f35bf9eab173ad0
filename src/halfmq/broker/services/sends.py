"""Sends of producers, and messages that consumers hand back. For verdicts see ``services.verdicts``.

Nothing is decided here: core knows whether a send is a half message, a repetition or beyond a limit.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Deliver, Sequencer
from halfmq.broker.services.access import CLIENT_INNER_PRODUCER, Asked, not_allowed, owned
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.messages import StoredMessages
from halfmq.broker.services.send_commands import BatchMessage, SendRequest, batch_command, send_command
from halfmq.broker.turns import Turns
from halfmq.core.commands import SendBack, SendBatch, SendHalf
from halfmq.core.decision import Failed, Refused
from halfmq.model.stored_message import StoredMessage, body_crc_of
from halfmq.model.users import Right, Scope
from halfmq.printable import printable

log: Final = logging.getLogger("halfmq.sends")


#: Memory of a send-back whose message is searched, bytes; without its fields, which are names.
_SEND_BACK_COST: Final = 2_048


class Sends:
    """``deliver(context, reply)`` is called once: at once for a send that cannot become a command, else when its reply is durable."""

    def __init__(
        self,
        sequencer: Sequencer,
        stored: StoredMessages,
        chosen_ids: ChosenIds,
        turns: Turns,
    ) -> None:
        self._turns = turns
        self._sequencer = sequencer
        self._chosen_ids = chosen_ids
        self._stored = stored

    def send(self, peer: Peer, request: SendRequest, body: bytes, deliver: Deliver, context: Any) -> None:
        """A plain message or a half message. Replies: Sent, Refused, Failed."""
        command = send_command(peer.number, peer.born_host, request, body, peer.user)
        if type(command) is SendHalf:
            if (
                peer.principal is not None
                and (command.group != request.group or command.group == CLIENT_INNER_PRODUCER)
                and not peer.may(Right.SEND, Scope.GROUP, command.group)
            ):  # the group in its properties: its checks, with its body, go to that one's producers
                deliver(context, not_allowed(peer.user, Asked(Right.SEND, Scope.GROUP, command.group)))
            elif command.searched_to < 0:
                self._sequencer.submit_small(command, deliver, context)
            else:
                self._chosen_ids.send(peer, command, deliver, context)
        elif type(command) is Refused:  # where it is not one, ``isinstance`` takes four times as long
            deliver(context, command)
        else:
            self._sequencer.submit_small(command, deliver, context)

    def send_batch(
        self,
        peer: Peer,
        request: SendRequest,
        messages: Iterable[BatchMessage],
        memory_bytes: int,
        deliver: Deliver,
        failed: Callable[[Exception], None],
        context: Any,
    ) -> None:
        """Several plain messages for one queue, which take ``memory_bytes``. Replies: SentBatch, Refused, Failed.

        ``failed`` is called instead with what the iteration over ``messages`` raises.
        """

        def submit(command: SendBatch | Refused) -> None:
            if isinstance(command, Refused):
                deliver(context, command)
            else:
                self._sequencer.submit(command, deliver, context)

        steps = batch_command(peer.number, peer.born_host, request, messages)
        busy = self._turns.run(peer, memory_bytes, steps, submit, failed, in_order=True)
        if busy is not None:
            deliver(context, busy)

    def send_back(
        self,
        peer: Peer,
        group: str,
        log_offset: int,
        delay_level: int,
        max_reconsume_times: int,
        origin_message_id: str,
        failure: str,
        attempt: int,
        delay_ms: int,
        not_consumed: bool,
        deliver: Deliver,
        failed: Callable[[Exception], None],
        context: Any,
    ) -> None:
        """A consumer failed on a message: it is delivered again later, or moved to the dead-letter queue.

        ``max_reconsume_times``: -1 if the consumer sent none. ``failure``: why the attempt failed; "" if it does not say. ``attempt``: its
        number; 0 if it does not say. ``delay_ms``: of the next attempt; -1: ``delay_level`` says it. ``not_consumed``: the consumer does
        not consume the topic, and this was no attempt. Replies: Refused; Failed, also if the message is damaged; anything else is a
        success. ``failed`` is called instead with what a read of the message raises.
        """

        command = SendBack(
            peer.number, group, log_offset, delay_level, max_reconsume_times, origin_message_id, None,
            # It becomes a property, in which control characters are separators.
            printable(failure[: limits.DEAD_REASON_CHARS_MAX])[: limits.DEAD_REASON_CHARS_MAX],
            delay_ms,
            not_consumed,
            attempt,
        )  # fmt: skip

        def found(message: StoredMessage | None) -> None:
            asked = None if message is None else owned(Right.CONSUME, message.topic)
            if asked is not None and not peer.may(*asked):
                deliver(context, not_allowed(peer.user, asked))
            elif message is not None and body_crc_of(message.body) != message.body_crc:
                # A damaged message must not be written again: no start would accept the new record.
                text = f"the body of the message at log offset {log_offset} is damaged: its CRC differs from the stored one"
                peer.log_throttled(
                    log, logging.ERROR, ("damaged", log_offset),
                    "not handed back to group %s: %s (halfmq store verify)", group, text,
                )  # fmt: skip
                deliver(context, Failed(text))
            else:
                self._sequencer.submit(command._replace(message=message), deliver, context)

        steps = self._stored.visible(log_offset)
        busy = self._turns.run(peer, _SEND_BACK_COST, steps, found, failed, in_order=True)
        if busy is not None:
            deliver(context, busy)
