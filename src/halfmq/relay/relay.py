"""The relay's loop: hold a lane, publish its batches, write down what the target has confirmed.

Workers share the lanes with those of all other relays of the outbox. One holds a lane for at most ``_SLICE_S``, so that a lane with a long
backlog does not keep the others waiting; nothing else balances relays, and nothing else has to notice that one is gone: the lease of its
lanes ends.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from halfmq.client.log import logger
from halfmq.errors import ConnectError
from halfmq.model.durations import span
from halfmq.relay.publisher import Published, Publisher
from halfmq.relay.rows import DatabaseAway, Figures, LeaseLost, OutboxRows, Work
from halfmq.runtime.log_throttle import LogThrottle

#: Batches that are published at the same time.
WORKERS: Final = 4
#: How often the outbox is looked at, seconds, where the database tells of new rows, and where it does not.
POLL_TOLD_S: Final = 1.0
POLL_S: Final = 0.05
#: Pause while target or database is away, seconds; it doubles.
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0

#: How long a worker holds a lane, seconds.
_SLICE_S: Final = 1.0
#: How soon, and then how often, the log says that target or database is still away, seconds; in between it doubles.
_SAY_AGAIN_S: Final = 10.0
_SAY_S: Final = 60.0

log = logger("halfmq.relay")


class Relay:
    """Publishes one outbox to one target: ``await relay.run(stop)``, or ``async with relay.running(): ...`` beside other things."""

    def __init__(
        self, rows: OutboxRows, publisher: Publisher, *, workers: int = WORKERS, poll_s: float | None = None
    ) -> None:
        self._rows = rows
        self._publisher = publisher
        self._workers = workers
        self._poll_s = poll_s
        #: Each entry wakes one worker; one that comes while all of them are busy, perhaps with a snapshot from before, stays.
        self._wakes = asyncio.Queue[None](workers)
        self._stop = asyncio.Event()
        self._is_open = asyncio.Event()
        #: For messages and logs.
        self.name = f"relay of {rows.name} to {publisher.name}"
        #: Outbox and target, as metrics label them.
        self.outbox = rows.name
        self.target = publisher.name
        self._rng = random.Random()  # nosec B311 # jitter of pauses
        self._notices = _Notices(self.name)
        #: By topic.
        self._refusals = LogThrottle(time.monotonic, rest_s=_SAY_S)
        #: Since the start: messages that were confirmed, and refusals.
        self.confirmed = 0
        self.refused = 0
        #: Since the start: messages of batches that an earlier attempt left; batches for which the target did not answer.
        self.retried = 0
        self.failed_batches = 0
        #: When the target last confirmed a message, wall clock, s; 0: never.
        self.confirmed_at_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        """Work while the block is open. It opens when target and database have answered.

        Raises:
            UsageError, NotAuthorized: as ``run``.
        """
        task = asyncio.create_task(self.run(stop := asyncio.Event()))
        opened = asyncio.create_task(self._is_open.wait())
        try:
            await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield self
        finally:
            opened.cancel()
            stop.set()
            await task

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then finish the batches in flight, for at most one lease and a half, and release their lanes.

        Target and database may be away, at the start too: they are waited for.

        Raises:
            UsageError, NotAuthorized: target or tables are not as they must be.
        """
        self._stop = stop
        try:
            if not await self._open():
                return
            async with self._rows.listening(self._wake) as is_told:
                poll_s = self._poll_s or (POLL_TOLD_S if is_told else POLL_S)
                tasks = [asyncio.create_task(self._work(poll_s)) for _ in range(self._workers)]
                stopping = asyncio.create_task(stop.wait())
                try:
                    # A worker ends only with something that no worker can go on after.
                    await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
                    stop.set()
                    for _ in tasks:
                        self._wake()
                    await asyncio.gather(*tasks)
                finally:
                    for task in (stopping, *tasks):
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._publisher.close()
            await self._rows.close()

    async def _open(self) -> bool:
        """False: told to stop."""
        away = _Away(self._rng, self._notices)
        while not self._stop.is_set():
            away.begins()
            try:
                await self._rows.establish()
                await self._publisher.open()
                away.is_back()
                log.info("%s begins", self.name)
                self._is_open.set()
                return True
            except (ConnectError, DatabaseAway) as error:
                await self._publisher.close()
                await away.pause(error, self._stop)
        return False

    async def opened(self) -> None:
        """Return when target and database have answered for the first time."""
        await self._is_open.wait()

    def why_not(self) -> str:
        """Why nothing is published at the moment; empty: target and database answer."""
        if not self._is_open.is_set():
            return self._notices.why or "it begins"
        return self._notices.why

    async def figures(self) -> Figures:
        """The state of the outbox, while the relay works.

        Raises:
            DatabaseAway: the database does not answer.
        """
        return await self._rows.figures()

    # --- workers ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """One worker; if it finds something, it wakes the next."""
        with suppress(asyncio.QueueFull):
            self._wakes.put_nowait(None)

    async def _work(self, poll_s: float) -> None:
        away = _Away(self._rng, self._notices)
        while not self._stop.is_set():
            away.begins()
            try:
                work = await self._rows.claim()
                self._notices.database_answers()
                if work is not None:
                    self._wake()
                    await self._hold(work)
                    away.is_back()
                    continue
            except LeaseLost as error:
                log.info("%s", error)
                continue
            except (ConnectError, DatabaseAway) as error:
                await away.pause(error, self._stop)
                continue
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                # Also a future that a library has cancelled itself, such as that of a lost connection: a worker must not end with it.
                log.exception("%s failed", self.name)
                await away.pause(error, self._stop)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakes.get(), poll_s * self._rng.uniform(0.8, 1.2))

    async def _hold(self, work: Work) -> None:
        """Publish the batches of one lane.

        Raises:
            LeaseLost: another relay holds it. ConnectError: the target is away. DatabaseAway: so is the database.
        """
        now = asyncio.get_running_loop().time
        until_s = now() + _SLICE_S
        following: Work | None = work
        while following is not None:
            work = following
            published = await self._attempt(work)
            goes_on = not self._stop.is_set() and now() < until_s
            following = await self._rows.finish(work, published, goes_on=goes_on)
            self.confirmed += len(published.confirmed)
            self.refused += len(published.refused)
            if published.confirmed:
                self.confirmed_at_s = time.time()
            if work.is_unfinished:
                self.retried += len(work.batch.messages)
            if published.unavailable:
                self.failed_batches += 1
            for message in work.batch.messages:
                reason = published.refused.get(message.seq)
                # A queue that is missing would bring as many lines as there are messages, again and again.
                if reason is not None and (number := self._refusals.times(message.topic)):
                    log.warning(
                        "%s refuses message %s of topic %s: %s%s",
                        self._publisher.name, message.message_id, message.topic, reason,
                        f" (and {number - 1} others since this was last said)" if number > 1 else "",
                    )  # fmt: skip
            if published.unavailable:
                raise ConnectError(published.unavailable)

    async def _attempt(self, work: Work) -> Published:
        """Renews the lease meanwhile. Told to stop, it gives the target one lease more."""
        now = asyncio.get_running_loop().time
        attempt = asyncio.ensure_future(self._publish(work))
        end_s = math.inf
        try:
            while True:
                done, _ = await asyncio.wait({attempt}, timeout=self._rows.lease_s / 3)
                if done:
                    return attempt.result()
                if now() >= end_s:
                    return Published(frozenset(), unavailable=f"{self._publisher.name} does not answer before the end")
                if self._stop.is_set():
                    end_s = min(end_s, now() + self._rows.lease_s)
                await self._rows.renew(work.lease)
        finally:
            attempt.cancel()
            with suppress(BaseException):
                await attempt

    async def _publish(self, work: Work) -> Published:
        batch = work.batch
        try:
            if not work.is_unfinished:
                return await self._publisher.publish(batch)
            published = await self._publisher.recover(batch)
            # While the target is away a batch is left, and taken over, again and again, also by the same relay.
            log.log(
                logging.INFO if published.confirmed else logging.DEBUG,
                "batch %s of %d messages was left by an earlier attempt; %d are known to be published",
                batch.id, len(batch.messages), len(published.confirmed),
            )  # fmt: skip
            return published
        except ConnectError as error:
            return Published(frozenset(), unavailable=str(error))


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that asks."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Notices:
    """Says for all workers of a relay that target or database is away, at once and then now and then, and that it is back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since_s = self._say_at_s = self._back_at_s = 0.0
        #: Why it is away.
        self._error: BaseException | None = None

    @property
    def why(self) -> str:
        """Why it is away; empty: it is not."""
        return "" if self._error is None else str(self._error) or type(self._error).__name__

    def away(self, error: BaseException, began_s: float) -> None:
        """``began_s``: when the attempt began that failed so."""
        if began_s < self._back_at_s:
            return  # another worker has had an answer since
        now_s = asyncio.get_running_loop().time()
        if self._error is None:
            self._since_s, self._say_at_s = now_s, now_s + _SAY_AGAIN_S
            log.warning("%s waits, and tries again: %s", self._name, error)
        elif now_s >= self._say_at_s:
            waited_s = now_s - self._since_s
            self._say_at_s = now_s + min(waited_s, _SAY_S)
            log.warning("%s has been waiting for %s: %s", self._name, span(round(waited_s * 1000)), error)
        self._error = error

    def database_answers(self) -> None:
        if isinstance(self._error, DatabaseAway):
            self.back()

    def back(self) -> None:
        if self._error is not None:
            self._error = None
            self._back_at_s = asyncio.get_running_loop().time()
            log.warning("%s goes on", self._name)  # as visible as what it ends


class _Away:
    """Pauses of one worker while target or database is away."""

    def __init__(self, rng: random.Random, notices: _Notices) -> None:
        self._rng = rng
        self._notices = notices
        self._pause_s = PAUSE_MIN_S
        self._began_s = 0.0

    def begins(self) -> None:
        """An attempt."""
        self._began_s = asyncio.get_running_loop().time()

    def is_back(self) -> None:
        self._pause_s = PAUSE_MIN_S
        self._notices.back()

    async def pause(self, error: BaseException, stop: asyncio.Event) -> None:
        self._notices.away(error, self._began_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self._pause_s * self._rng.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
