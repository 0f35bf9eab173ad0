"""What a worker of an ``App`` does with one delivery: it is handled, and then acknowledged, handed back, compensated or a dead letter."""

import asyncio
import time
from typing import Final, NamedTuple

from halfmq.client.consumer import Consumer
from halfmq.client.handler import Handler
from halfmq.client.key_order import pause_s
from halfmq.client.log import log
from halfmq.client.message import DeadCalls, Message
from halfmq.client.participant import Participant
from halfmq.client.retry_policy import NotDecoded
from halfmq.client.user_code import is_our_cancellation
from halfmq.errors import HalfmqError, MissingTable
from halfmq.runtime.log_throttle import LogThrottle

#: Calls of ``on_dead`` that count before its message is a dead letter. The pauses between them are those of ``pause_s``, together half a
#: minute: a database that restarts, or a connection that is lost, leaves no message uncompensated. What a broker could do later does not
#: count.
DEAD_CALLS: Final = 6
#: For the log, which says it together with why: once for each message.
_DEAD: Final = "goes to the dead-letter queue"
#: How long a message waits in this process whose handler needs a table of halfmq that is not there, seconds.
MISSING_TABLE_PAUSE_S: Final = 5.0
_missing_tables: Final = LogThrottle(time.monotonic, rest_s=60.0)


class Handlers(NamedTuple):
    """Of one consumer. ``dead``: for a message whose handler has failed for the last time; None: the dead-letter queue."""

    handle: Handler | Participant
    dead: Handler | None


async def work(consumer: Consumer, handlers: Handlers) -> None:
    """One of ``concurrency`` worker tasks. Returns when the consumer is stopped."""
    async for message in consumer:
        await _work_on(consumer, handlers, message)


async def _work_on(consumer: Consumer, handlers: Handlers, message: Message) -> None:
    """Handle one delivery of a message, and acknowledge it or hand it back."""
    message._retry = consumer.spec.retry
    try:
        if message._dead_calls.made:
            await _given_up(consumer, handlers, message)
        elif message.sharding_key is not None or handlers.dead is not None:
            await _handle_here(consumer, handlers, message)
        else:
            async with message._processing(MissingTable):
                await handlers.handle(message)
    except MissingTable as missing:
        # Not the message's fault, and true of all others: none is used up. When those that wait fill the prefetch buffer, no more come.
        if number := _missing_tables.times(str(missing)):
            log.error("%r and others wait, since %s (messages since this was last said: %d)", message, missing, number)
        if message._handled_here and not message._dead_calls.made:
            message._handled_here -= 1  # that was no attempt
        consumer.again(message, MISSING_TABLE_PAUSE_S)


async def _given_up(consumer: Consumer, handlers: Handlers, message: Message) -> None:
    """What becomes of a message whose handler has failed for the last time: ``on_dead`` handles it, or it is a dead letter.

    ``on_dead`` is called again after a failure, as a handler is: nobody else would compensate. The worker is free while the message waits,
    and a message that waits at the end of the app is delivered again to another member.
    """
    if handlers.dead is not None:
        calls, failures = message._dead_calls
        try:
            with message._required_delivery().handling(message):
                await handlers.dead(message)
        except (Exception, asyncio.CancelledError) as error:
            if is_our_cancellation(error):
                raise
            if message._is_settled_before(error):
                consumer.handled(message)
                return
            if isinstance(error, MissingTable):
                raise
            if isinstance(error, NotDecoded):
                log.error(
                    "on_dead cannot be called for %r, since it cannot be decoded, and it %s: %s", message, _DEAD, error
                )
                failures = DEAD_CALLS
            elif isinstance(error, HalfmqError) and error.retriable:
                log.warning("on_dead is called again for %r: %s", message, error)
            else:
                failures += 1
                then = f", and it {_DEAD}" if failures == DEAD_CALLS else ""
                log.exception("on_dead failed for %r, %d of %d times%s", message, failures, DEAD_CALLS, then)
            if failures < DEAD_CALLS:
                message._dead_calls = DeadCalls(calls + 1, failures)
                consumer.again(message, pause_s(calls + 1))
                return
        else:
            log.warning("on_dead has handled %r", message)
            message.ack()
            consumer.handled(message)
            return
    await message.reject()
    consumer.handled(message)


async def _handle_here(consumer: Consumer, handlers: Handlers, message: Message) -> None:
    """Handle a message that has an ``on_dead``, or one with a sharding key. That is retried in this process: a redelivery by the broker
    would come after later messages of the key. The worker is free while the message waits."""
    if message.sharding_key is not None:
        message._handled_here += 1
    try:
        with message._required_delivery().handling(message):
            await handlers.handle(message)
    except (Exception, asyncio.CancelledError) as error:
        if is_our_cancellation(error):
            raise
        if message._is_settled_before(error):
            consumer.handled(message)
            return
        if isinstance(error, MissingTable):
            raise
        message._failed(error)
        if message._is_given_up_after(error):
            await _given_up(consumer, handlers, message)
            return
        if message.sharding_key is None:
            if message.is_last_attempt:
                log.exception("handling %r failed; this attempt was its last, and on_dead is called", message)
                await _given_up(consumer, handlers, message)
            else:
                message._log_failure()
                await message.retry()
            return
        failures, retries = message._handled_here, consumer.spec.retries
        if failures <= retries:
            delay_s = consumer.spec.retry.delay_s(failures)
            after_s = pause_s(failures) if delay_s is None else delay_s
            log.exception(
                "handling %r failed, %d of %d times; its key %r waits, and it is handled again in %g s",
                message, failures, 1 + retries, message.sharding_key, after_s,
            )  # fmt: skip
            consumer.again(message, after_s)
            return
        then = f"it {_DEAD}" if handlers.dead is None else "on_dead is called"
        log.exception(
            "handling %r failed; this attempt was its last, %s, and its key %r goes on without it",
            message, then, message.sharding_key,
        )  # fmt: skip
        await _given_up(consumer, handlers, message)
    else:
        message.ack()
        consumer.handled(message)
