"""A query that writes numbered batches, such as a Spark stream: exactly once, although its process dies and begins again.

Its checkpoint survives: what a batch contains is written there before the batch is run, and that it is finished after its decision.
A started process is a new run of the query, which repeats the last batch with the same content, digest and number, and cannot know
whether the decision before its death arrived. Each task of a batch has attempts, some of which die in the middle, are repeated, or
compete; the driver names one of each task as winner. Drivers and tasks of earlier runs wake up and continue.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple
from zlib import crc32

from halfmq.model.half_batch import HalfMessage, build_payload, item_places
from halfmq.model.query_batch import QueryBatch
from halfmq.model.stored_message import body_crc_of
from halfmq.model.text_fields import write_fields
from halfmq.testing.history.events import Answered, EndAsked, PlainSent
from halfmq.wire.remoting.codes import (
    EXT_POSITION,
    EXT_REPEATED,
    EXT_VERDICT,
    HMQ_DECIDE,
    HMQ_DECISION,
    HMQ_PREPARE_BATCH,
    ResponseCode,
)
from halfmq.wire.remoting.half_batches import (
    EXT_FENCED,
    EXT_MISSING,
    PrepareFields,
    WinnerRow,
    decide_ext,
    decision_ext,
    encode_winners,
    read_answer,
)
from tests.simulation.machine import Machine, Surroundings
from tests.simulation.query_promises import Part, QueryPromises, Wish
from tests.simulation.raw_connection import LineLost, RawLine
from tests.simulation.tags import draw_tag
from tests.simulation.wire_tap import WireTap, delay_ms_of
from tests.support.raw_client import Answer, command, property_string
from tests.support.virtual_loop import ProcessLoop

_HOST = b"\x0a\x00\x00\x05\x00\x00\x10\x00"
#: Attempts of tasks that die in the middle, of which a second one completes as well, and half batches that are sent twice.
_DIES = 0.15
_COMPETES = 0.2
_SENT_TWICE = 0.15
#: Starts of a run after which a driver of the run before wakes up.
_OLD_WAKES = 0.5
#: Starts with another run that nobody knows yet, whose first request comes late: the broker takes it for the newest.
_LATE_COMES = 0.15
#: Fraction of the half batches whose messages have delays, and those: spans, a level, and a time that is past.
_DELAYED = 0.15
_DELAYS: tuple[dict[str, str], ...] = (
    {"TIMER_DELAY_MS": "300"}, {"TIMER_DELAY_MS": "5000"}, {"TIMER_DELAY_SEC": "1"}, {"DELAY": "1"}, {"TIMER_DELIVER_MS": "1"},
)  # fmt: skip
#: Fraction of the decisions around which the process dies, and how soon at most after the request, ms.
_DIES_DECIDING = 0.12
_DIES_WITHIN_MS = 60
#: Batches of queries that decide together: half batches and bytes of each, as a fraction of a segment; how long one waits for the other,
#: ms.
_TOGETHER_HALF_BATCHES = 4
_TOGETHER_PART = 0.113
_TOGETHER_WAIT_MS = 1_500
_TOGETHER_IN_US = 2_000
#: Pause before a refused request is repeated, s.
_PAUSE_S = 0.3


class Fenced(Exception):
    """A later run has begun: this one must stop."""


class TaskFailed(Exception):
    """A half batch is refused for good: earlier ones of its attempt are gone, and another attempt begins from its first."""


class Settled(Exception):
    """The batch is decided, or was rolled back in this run. ``verdict`` as on the wire."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Content(NamedTuple):
    """A half batch as the query wants it, without what changes between attempts."""

    topic: str
    queue: int
    bodies: tuple[bytes, ...]
    tags: tuple[str | None, ...]
    keys: tuple[str, ...]
    #: Of each message, as properties; empty: they have none.
    delays: tuple[dict[str, str], ...] = ()


class Batch(NamedTuple):
    """A batch in the checkpoint: for each task what it writes."""

    number: int
    digest: bytes
    tasks: tuple[tuple[Content, ...], ...]
    #: Whether it is decided when another query decides.
    together: bool = False


class OpenTransaction:
    """A transaction of half batches outside of a query, in the checkpoint until it is ended."""

    def __init__(self, tx_id: str, parts: tuple[Content, ...], *, commits: bool) -> None:
        self.tx_id = tx_id
        self.parts = parts
        self.commits = commits
        #: (half index, log offset) of a half batch; whether all are acknowledged.
        self.place: tuple[str, str] | None = None
        self.is_prepared = False


class Checkpoint:
    """What survives the death of the process."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.finished = -1
        #: Digests of finished batches, and what the last run wanted to decide.
        self.digests: dict[int, bytes] = {}
        self.winners: tuple[str, list[WinnerRow]] | None = None
        self.open: list[OpenTransaction] = []


class Meeting:
    """Of all queries: one waits for another until ``waits_until_us``, and both decide at ``begins_us``. Times of the scheduler."""

    def __init__(self) -> None:
        self.waits_until_us = 0
        self.begins_us = 0


class Query(Machine):
    """The application with its driver and its tasks."""

    def __init__(
        self, name: str, around: Surroundings, tap: WireTap, promises: QueryPromises, meeting: Meeting
    ) -> None:
        super().__init__(name, around)
        self.query = f"query.{name}"
        self.group = f"WRITERS-{name}"
        #: Every other one states topic and stream, as an application with a name of its own does.
        self.topic, self.stream = ("*", f"stream-{name}") if name[-1] in "13579" else ("", "")
        self.tap = tap
        self.promises = promises
        self.checkpoint = Checkpoint()
        self.run_before: _Run | None = None
        self.serial = 0
        #: Message -> CRC of its body.
        self.crcs: dict[str, int] = {}
        #: Of its own, so that histories without delays are what they were.
        self.delay_rng = random.Random(f"{around.swarm.seed}/{name}/delays")
        self.together_rng = random.Random(f"{around.swarm.seed}/{name}/together")
        self.meeting = meeting

    def batch_of(self, number: int, run: str) -> QueryBatch:
        return QueryBatch(self.query, number, run, self.topic, self.stream)

    async def main(self, process: ProcessLoop) -> None:
        run = _Run(self, process, f"r{self.lives}x{self.serial}")
        self.serial += 1
        before, self.run_before = self.run_before, run
        if before is not None and before.batch is not None and self.rng.random() < _OLD_WAKES:
            self.spawn(process, _Run(self, process, before.run).wake_up(before))
        if self.rng.random() < _LATE_COMES:
            self.serial += 1
            self.spawn(process, _Run(self, process, f"late{self.lives}x{self.serial}").come_late())
        while True:
            self.busy += 1
            try:
                await run.go()
            except Fenced:
                self.around.chronicle.counts["query fenced"] += 1
            except Settled as settled:
                self.around.chronicle.counts[f"query settled {settled.verdict}"] += 1
            self.busy -= 1
            if not self.around.working:
                await asyncio.sleep(15.0)  # then one more batch, which supersedes what is left of others
            run = self.run_before = _Run(self, process, f"r{self.lives}x{self.serial}")
            self.serial += 1

    # --- content -----------------------------------------------------------------------------------------------------

    def contents(self, most: int) -> tuple[Content, ...]:
        """What a task writes: up to ``most`` half batches. Now and then much more than fits in half a segment, or so much that two such
        batches fill one.
        """
        rng, swarm = self.rng, self.around.swarm
        large = swarm.segment_bytes // rng.choice((5, 10)) if rng.random() < swarm.large_batches else 0
        found = []
        for _ in range(rng.randint(1, most) + (3 if large else 0)):
            size = large // 2 or rng.choice(swarm.body_bytes)
            count = rng.randint(1, max(1, min(6, 9_000 // size)))
            found.append(
                Content(
                    rng.choice(swarm.topics),
                    rng.randrange(swarm.queues),
                    tuple(rng.randbytes(size) for _ in range(count)),
                    tuple(draw_tag(rng) for _ in range(count)),
                    tuple(f"b{rng.randrange(1_000)}" if rng.random() < 0.3 else "" for _ in range(count)),
                    self.delays(count),
                )
            )
        return tuple(found)

    def nearly_half(self) -> tuple[Content, ...]:
        """What a task writes: nearly half a segment, so that two such batches do not fit in one beside anything else."""
        rng = self.together_rng
        size = int(self.around.swarm.segment_bytes * _TOGETHER_PART) // 3
        topic, tag = rng.choice(self.around.swarm.topics), draw_tag(rng)
        return tuple(
            Content(topic, 0, tuple(rng.randbytes(size) for _ in range(3)), (tag,) * 3, ("",) * 3)
            for _ in range(_TOGETHER_HALF_BATCHES)
        )

    def delays(self, count: int) -> tuple[dict[str, str], ...]:
        """Those of the messages of a half batch; mostly none."""
        rng = self.delay_rng
        found = tuple(rng.choice(_DELAYS) for _ in range(count)) if rng.random() < _DELAYED else ()
        # When work has ended, a query still makes a batch now and then: with delays, something would always be pending.
        return found if self.around.working else ()

    def plan(self) -> Batch:
        """The batch to run now, which is written to the checkpoint first."""
        checkpoint = self.checkpoint
        if checkpoint.batch is None:
            number = checkpoint.finished + 1
            together = self.around.working and self.together_rng.random() < self.around.swarm.decided_together
            if together:
                tasks: tuple[tuple[Content, ...], ...] = (self.nearly_half(),)
            else:
                tasks = tuple(self.contents(2) for _ in range(self.rng.choice((0, 1, 1, 2, 3))))
            digest = hashlib.md5(repr((number, tasks)).encode()).digest()
            checkpoint.batch = Batch(number, digest, tasks, together)
        return checkpoint.batch


class _Run:
    """One run of the query in its process."""

    def __init__(self, machine: Query, process: ProcessLoop, run: str) -> None:
        self.machine = machine
        self.process = process
        self.run = run
        self.rng = random.Random(f"{machine.around.swarm.seed}/{machine.name}/{run}/{machine.lives}")
        self.chronicle = machine.around.chronicle
        self.counts = self.chronicle.counts
        self.promises = machine.promises
        self.store_host = b""
        #: What it runs now: also what its ghost continues with.
        self.batch: Batch | None = None
        self.attempts = 0
        #: Lines of the driver and of each task.
        self._lines: dict[str, RawLine] = {}

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _line(self, whose: str) -> RawLine:
        line = self._lines.get(whose)
        if line is None or line.lost:
            line = self._lines[whose] = await RawLine.open(self.process, self.machine.around.network, self.machine.name)
        return line

    async def ask(self, whose: str, code: int, ext: dict[str, object], body: bytes = b"") -> Answer:
        """Ask once, on the connection of the driver or of a task.

        Raises:
            LineLost: no response.
        """
        line = await self._line(whose)
        text = _text(ext)
        if code != HMQ_DECISION:
            self.machine.tap.sent.append((self.chronicle.now_us, f"request {code}", command(code, 1, text, body)[4:]))
        try:
            return await line.ask(code, text, body, timeout_s=self.machine.around.swarm.attempt_timeout_ms / 1000)
        except LineLost:
            line.close()
            raise

    async def insist(self, what: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat ``what`` until there is a response that is not None."""
        while True:
            try:
                found = await what()
                if found is not None:
                    return found
                self.counts["query must wait"] += 1
            except LineLost:
                self.counts["query without answer"] += 1
            await asyncio.sleep(_PAUSE_S * (1 + self.rng.random()))

    @property
    def now_us(self) -> int:
        return self.chronicle.now_us

    # --- prepare -----------------------------------------------------------------------------------------------------

    async def prepare(
        self,
        whose: str,
        content: Content,
        index: int,
        *,
        number: int = 0,
        attempt: str = "",
        tx_id: str = "",
        count: int = 0,
    ) -> Answer | None:
        """Send a half batch, of a batch of the query or of the transaction ``tx_id``. None: refused for now.

        Raises:
            LineLost: no response.
            Settled, Fenced, TaskFailed
        """
        machine, now_us = self.machine, self.now_us
        query, run = (tx_id, "") if tx_id else (machine.query, self.run)
        prefix = f"{query}.{number}.{run}.{attempt}.{index}"
        halves, names = [], []
        for place, (body, tag, keys) in enumerate(zip(content.bodies, content.tags, content.keys, strict=True)):
            name = f"{prefix}.{place}"
            pairs = {"UNIQ_KEY": name} | ({"TAGS": tag} if tag else {}) | ({"KEYS": keys} if keys else {})
            if content.delays:
                pairs |= content.delays[place]
            text = property_string(**pairs).encode()
            halves.append(HalfMessage(0, 0, body, text))
            names.append(name)
            machine.crcs[name] = body_crc_of(body)
            machine.tap.sent_tags.note(name, text)
            if keys:
                machine.tap.keys[name] = keys
        payload, _ = build_payload(
            halves, topic=content.topic, queue_id=content.queue, born_time_ms=1, born_host=_HOST,
            store_host=self.store_host, delayed=bool(content.delays),
        )  # fmt: skip
        delays_ms = tuple(max(1, delay_ms_of(pairs)) for pairs in content.delays)
        items = tuple(at for at, _ in item_places(payload, len(names)))
        part = Part(content.topic, content.queue, tuple(names), crc32(payload), delays_ms, items)
        fields = PrepareFields(
            machine.group, content.topic, content.queue, len(names), part.checksum, index, count, tx_id,
            "" if tx_id else query, number, run, attempt, -1, machine.around.swarm.queues,
            int(bool(delays_ms)) or None, (not tx_id and machine.topic) or None, (not tx_id and machine.stream) or None,
        )  # fmt: skip
        self.promises.prepare_asked(query, number, run, attempt, index, part, now_us)
        answer = await self.ask(whose, HMQ_PREPARE_BATCH, write_fields(fields), payload)
        if answer.code == 0:
            offset = int(answer.ext["offset"])
            self.promises.prepared(query, number, run, attempt, index, offset, now_us, self.now_us)
            return answer
        self._stop_if_over(answer, query, number, run)
        self.counts[f"query prepare refused {answer.code}"] += 1
        if answer.code == ResponseCode.INVALID_PARAMETER:
            raise TaskFailed(answer.remark)
        return None

    def _stop_if_over(self, answer: Answer, query: str, number: int, run: str) -> None:
        if answer.ext.get(EXT_FENCED, "").lower() == "true":
            self.promises.fenced(query, run, f"{query}:{number}:{run}")
            raise Fenced
        verdict = answer.ext.get(EXT_VERDICT)
        if verdict is not None:
            position = int(answer.ext.get(EXT_POSITION, "-1"))
            self.promises.prepare_refused_as_settled(query, number, run, verdict, position)
            raise Settled(verdict)

    async def task(self, batch: Batch, task: int) -> WinnerRow | None:
        """One attempt of a task. None: it died, with some of its half batches prepared."""
        self.attempts += 1
        attempt = f"{task}.{self.attempts}"
        whose = f"task {attempt}"
        contents = batch.tasks[task]
        dies_before = self.rng.randint(0, len(contents)) if self.rng.random() < _DIES else -1
        checksum = messages = 0
        try:
            for index, content in enumerate(contents):
                if index == dies_before:
                    self.counts["query task died"] += 1
                    return None
                for _ in range(2 if self.rng.random() < _SENT_TWICE else 1):
                    await self.insist(
                        lambda i=index, c=content: self.prepare(whose, c, i, number=batch.number, attempt=attempt)
                    )
                part = self.promises.batch(self.machine.query, batch.number).attempts[self.run, attempt].parts[index]
                messages += len(part.messages)
                checksum = (checksum + part.checksum) & 0xFFFFFFFF
        except TaskFailed:
            self.promises.attempt_failed(self.machine.query, batch.number, self.run, attempt)
            return None
        finally:
            line = self._lines.pop(whose, None)
            if line is not None:
                line.close()
        return WinnerRow(attempt, len(contents), messages, checksum)

    async def tasks(self, batch: Batch) -> list[WinnerRow]:
        """One complete attempt of each task; others exist as well."""

        async def one(task: int) -> WinnerRow:
            while True:
                found = await self.task(batch, task)
                if found is not None and self.rng.random() < _COMPETES:
                    found = await self.task(batch, task) or found
                if found is not None:
                    return found

        # Not a group: the first failure must be raised as it is, and the others stop with the run.
        working = [self.process.create_task(one(task)) for task in range(len(batch.tasks))]
        try:
            return [await task for task in working]
        finally:
            for task in working:
                task.cancel()
            if working:
                await asyncio.gather(*working, return_exceptions=True)

    # --- decide ------------------------------------------------------------------------------------------------------

    async def decide(self, number: int, digest: bytes, winners: list[WinnerRow]) -> str | None:
        """Decide a batch: "decided", "missing" or "conflict". None: refused for now.

        Raises:
            LineLost: no response.
            Fenced
        """
        machine = self.machine
        wish = Wish(number, self.run, digest.hex(), tuple(tuple(row) for row in winners), self.now_us)
        self.promises.decide_asked(machine.query, wish)
        operations = self._note_sent(machine.query, wish)
        operation = f"{machine.name}.{machine.serial}"
        self.chronicle.note(
            EndAsked(
                t_us=self.now_us, by=self.process.name, op=operation, group=machine.group,
                tx=machine.batch_of(number, self.run).tx_id, verdict="COMMITTED",
            )
        )  # fmt: skip
        fields = decide_ext(machine.group, machine.batch_of(number, self.run), digest)
        answer = await self.ask("driver", HMQ_DECIDE, fields, encode_winners(winners))
        ext = answer.ext
        ok = answer.code == 0
        self._note_answered([operation, *operations], answer)
        if ok:
            repeated = ext["repeated"].lower() == "true"
            self.promises.decided(machine.query, wish, int(ext["position"]), repeated=repeated, now_us=self.now_us)
            return "decided"
        if ext.get(EXT_FENCED, "").lower() == "true":
            self.promises.decide_fenced(machine.query, wish)
            raise Fenced
        if ext.get(EXT_MISSING, "").lower() == "true":
            self.promises.missing(machine.query, wish)
            return "missing"
        if EXT_VERDICT in ext:
            self.promises.conflict(machine.query, wish, int(ext.get(EXT_POSITION, "-1")))
            return "conflict"
        self.counts[f"query decide refused {answer.code}"] += 1
        return None

    def _note_sent(self, query: str, wish: Wish) -> list[str]:
        """A decision sends the messages of its winners, for those who only see messages."""
        self.machine.serial += 1
        operations = []
        for one in self.promises.winners(query, wish):
            for part in one.parts.values():
                for number, message in enumerate(part.messages):
                    operations.append(f"{self.machine.name}.{self.machine.serial}#{len(operations)}")
                    self.chronicle.note(
                        PlainSent(
                            t_us=self.now_us, by=self.process.name, op=operations[-1], message=message, topic=part.topic,
                            queue=part.queue, crc=self.machine.crcs[message],
                            delay_ms=part.delays_ms[number] if part.delays_ms else 0,
                        )
                    )  # fmt: skip
        return operations

    def _note_answered(self, operations: list[str], answer: Answer) -> None:
        """A repeated decision does not say that these winners are visible, but those of the first one."""
        if answer.ext.get("repeated") == "true":
            return
        outcome = "ok" if answer.code == 0 else "refused"
        position = int(answer.ext.get("position", "-1"))
        for operation in operations:
            of_verdict = "#" not in operation and answer.code == 0
            self.chronicle.note(
                Answered(
                    t_us=self.now_us, by=self.process.name, op=operation, outcome=outcome, code=answer.code,  # type: ignore[arg-type]
                    verdict="COMMITTED" if of_verdict else None, position=position if of_verdict else -1,
                )
            )  # fmt: skip

    async def found(self, number: int) -> bool:
        """Whether a batch is decided.

        Raises:
            LineLost: no response.
            Fenced
        """
        asked_us = self.now_us
        answer = await self.ask("driver", HMQ_DECISION, decision_ext(self.machine.batch_of(number, self.run)))
        if answer.code != 0:
            self._stop_if_over(answer, self.machine.query, number, self.run)
        said = read_answer(answer.ext)
        self.promises.found(
            self.machine.query, number, decided=said.is_decided, digest=said.digest.hex(), position=said.position,
            asked_us=asked_us,
        )  # fmt: skip
        return said.is_decided

    # --- one batch ---------------------------------------------------------------------------------------------------

    async def go(self) -> None:
        """Run batches until the work is over, and one more; end open transactions.

        Raises:
            Fenced, Settled: this run must not go on.
        """
        answer = await self.insist(lambda: self.ask("driver", HMQ_DECISION, {}))
        self.store_host = read_answer(answer.ext).store_host
        machine = self.machine
        last = False
        while not last:
            last = not machine.around.working
            for one in list(machine.checkpoint.open):
                try:
                    await self._end(one)
                except TaskFailed:  # it begins again with its first half batch
                    one.is_prepared = False
                    self.promises.attempt_failed(one.tx_id, 0, "", "")
                except Settled:  # an operator rolled it back
                    machine.checkpoint.open.remove(one)
            await self._batch(machine.plan())
            if last:
                return
            machine.busy -= 1
            await asyncio.sleep(machine.around.swarm.batch_every_ms / 1000 * self.rng.random() * 2)
            machine.busy += 1
            if machine.around.working and self.rng.random() < 0.25:
                self._begin_transaction()

    async def _batch(self, batch: Batch) -> None:
        checkpoint = self.machine.checkpoint
        self.batch = batch
        try:
            await self._finish(batch)
        except Settled as settled:
            if settled.verdict != "COMMITTED":
                raise
            self.counts["query learns that its batch is decided"] += 1
        checkpoint.finished = batch.number
        checkpoint.digests[batch.number] = batch.digest
        checkpoint.batch = checkpoint.winners = None
        await self._afterwards(batch)

    async def _finish(self, batch: Batch) -> None:
        """Write the batch, unless a run that died has decided it."""
        draw, wanted = self.rng.random(), self.machine.checkpoint.winners
        if draw < 0.4 and await self.insist_bool(lambda: self.found(batch.number)):
            self.counts["query found its batch decided"] += 1
            return
        if draw > 0.8 and wanted is not None:
            # Whether that decision arrived is unknown: it is repeated, by this run.
            said = await self.insist(lambda: self.decide(batch.number, batch.digest, wanted[1]))
            self.counts[f"query repeats the last decision: {said}"] += 1
            if said != "missing":
                return
        await self._write(batch)

    async def insist_bool(self, what: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        async def once() -> tuple[bool]:
            return (await what(),)

        return bool((await self.insist(once))[0])

    async def _write(self, batch: Batch) -> None:
        """Prepare and decide, until it is decided."""
        rng = self.rng
        while True:
            winners = await self.tasks(batch)
            self.machine.checkpoint.winners = self.run, winners
            if self.machine.around.working and rng.random() < 0.08:
                await self._roll_back(batch)
            if rng.random() < 0.1:
                await self._decide_wrong(batch, winners)
            if self.machine.around.working and rng.random() < _DIES_DECIDING:
                self._die_soon()
            if batch.together:
                await self._wait_for_another()
            said = await self.insist(lambda: self.decide(batch.number, batch.digest, winners))  # noqa: B023
            self.counts[f"query decides: {said}"] += 1
            if said != "missing":
                return

    async def _wait_for_another(self) -> None:
        """Until another query is ready to decide, so that both decisions are on the way at once; not for ever."""
        meeting, patience_us = self.machine.meeting, _TOGETHER_WAIT_MS * 1_000
        if meeting.waits_until_us > self.now_us:
            meeting.begins_us, meeting.waits_until_us = self.now_us + _TOGETHER_IN_US, 0
            self.counts["queries decide together"] += 1
        else:
            until_us = meeting.waits_until_us = self.now_us + patience_us
            while meeting.waits_until_us == until_us and self.now_us < until_us:
                await asyncio.sleep(_TOGETHER_IN_US / 2e6)
        await asyncio.sleep(max(0, meeting.begins_us - self.now_us) / 1e6)

    def _die_soon(self) -> None:
        """The process dies before its decision arrives, before the response does, or soon after."""
        machine, process = self.machine, self.process

        def die() -> None:
            if machine.process is process and machine.around.working:
                self.counts["query died while it decided"] += 1
                machine.kill()

        machine.around.scheduler.call_later(self.rng.randint(0, _DIES_WITHIN_MS * 1_000), die)

    async def _decide_wrong(self, batch: Batch, winners: list[WinnerRow]) -> None:
        """A decision that names what was not prepared is refused, whatever it names besides."""
        row = self.rng.choice([*winners, WinnerRow("no.one", 1, 1, 1)])
        wrong = self.rng.choice(
            (
                row._replace(half_batches=row.half_batches + 1),
                row._replace(messages=row.messages + 1),
                row._replace(checksum=row.checksum ^ 1),
                row._replace(attempt="no.one"),
            )
        )
        asked = [wrong, *[other for other in winners if other.attempt not in (row.attempt, wrong.attempt)]]
        said = await self.insist(lambda: self.decide(batch.number, batch.digest, asked))
        self.counts[f"query decides what is not there: {said}"] += 1

    async def _roll_back(self, batch: Batch) -> None:
        """Somebody rolls the batch back: this run cannot write it any more."""
        attempts = self.promises.batch(self.machine.query, batch.number).attempts
        mine = [(name, one) for (run, name), one in attempts.items() if run == self.run and 0 in one.acked]
        if not mine:
            return
        name, _ = mine[0]
        content = batch.tasks[int(name.partition(".")[0])][0]
        again = await self.insist(lambda: self.prepare("driver", content, 0, number=batch.number, attempt=name))
        self.promises.rollback_asked(self.machine.query, batch.number, self.run)
        tx_id = self.machine.batch_of(batch.number, self.run).tx_id
        ext = self._end_ext(tx_id, (again.ext["halfIndex"], again.ext["offset"]), commits=False)

        async def once() -> bool:
            asked_us = self.now_us
            answer = await self.ask("driver", 37, ext)
            if answer.ext.get(EXT_VERDICT) == "ROLLED_BACK":
                self.promises.rolled_back(self.machine.query, batch.number, self.run, asked_us, self.now_us)
            return True

        await self.insist(once)
        # Its run learns that, and the query begins a new one.
        await self.insist(lambda: self.prepare("driver", content, 0, number=batch.number, attempt=f"{name}.again"))

    def _end_ext(self, tx_id: str, place: tuple[str, str], *, commits: bool) -> dict[str, object]:
        return {
            "producerGroup": self.machine.group, "tranStateTableOffset": place[0], "commitLogOffset": place[1],
            "msgId": tx_id, "transactionId": tx_id, "fromTransactionCheck": "false",
            "commitOrRollback": "8" if commits else "12",
        }  # fmt: skip

    async def _afterwards(self, batch: Batch) -> None:
        """Decisions that stand are repeated, and contradicted."""
        rng, machine = self.rng, self.machine
        if rng.random() < 0.4:
            await self.insist(lambda: self.decide(batch.number, batch.digest, []))
        if rng.random() < 0.3:
            await self.insist(lambda: self.decide(batch.number, bytes(16), []))
        if rng.random() < 0.3:
            number = rng.choice(sorted(machine.checkpoint.digests))
            await self.insist(lambda: self.decide(number, machine.checkpoint.digests[number], []))
        if rng.random() < 0.2:
            number = rng.choice(sorted(machine.checkpoint.digests))
            await self.insist_bool(lambda: self.found(number))

    # --- an old run --------------------------------------------------------------------------------------------------

    async def wake_up(self, before: "_Run") -> None:
        """A driver and a task of the run before go on, as if they had slept."""
        batch, wanted = before.batch, self.machine.checkpoint.winners
        assert batch is not None
        self.attempts = 1_000
        self.store_host = before.store_host
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.03, 0.3, 3)))
        if not self.machine.around.working:
            return
        if self.rng.random() < 0.5:  # it continues with the batch that the checkpoint has now
            batch = self.machine.checkpoint.batch or batch
        self.counts["query old driver woke up"] += 1
        try:
            if self.store_host and batch.tasks and self.rng.random() < 0.7:
                row = await self.task(batch, 0)
                if row is not None and len(batch.tasks) == 1:
                    await self.decide(batch.number, batch.digest, [row])
            if wanted is not None and wanted[0] == self.run:
                await self.decide(before.batch.number, before.batch.digest, wanted[1])
        except (Fenced, Settled, LineLost, TaskFailed) as stopped:
            self.counts[f"query old driver: {type(stopped).__name__}"] += 1

    async def come_late(self) -> None:
        """A run that began before, and whose first request arrives now, runs the same batch of the checkpoint."""
        await asyncio.sleep(self.rng.random() * 3)
        self.attempts = 2_000
        try:
            answer = await self.ask("driver", HMQ_DECISION, {})
            self.store_host = read_answer(answer.ext).store_host
            batch = self.machine.checkpoint.batch
            if batch is None or not self.machine.around.working:
                return
            self.counts["query late run came"] += 1
            winners = await self.tasks(batch)
            if self.machine.around.working:
                said = await self.decide(batch.number, batch.digest, winners)
                self.counts[f"query late run decides: {said}"] += 1
        except (Fenced, Settled, LineLost, TaskFailed) as stopped:
            self.counts[f"query late run: {type(stopped).__name__}"] += 1

    # --- transactions of half batches outside of a query -----------------------------------------------------------------

    def _begin_transaction(self) -> None:
        machine = self.machine
        machine.serial += 1
        parts = machine.contents(2)[:2]
        commits = self.rng.random() < 0.8
        machine.checkpoint.open.append(
            OpenTransaction(f"batches.{machine.name}.{machine.serial}", parts, commits=commits)
        )

    async def _end(self, one: OpenTransaction) -> None:
        """Prepare what is missing, and end it."""
        count = len(one.parts)
        if not one.is_prepared:
            one.place = None
            for index, content in enumerate(one.parts):
                said = count if index == count - 1 or self.rng.random() < 0.3 else 0
                answer = await self.insist(
                    lambda i=index, c=content, n=said: self.prepare("driver", c, i, tx_id=one.tx_id, count=n)
                )
                one.place = one.place or (answer.ext["halfIndex"], answer.ext["offset"])
            one.is_prepared = True
        assert one.place is not None
        ext = self._end_ext(one.tx_id, one.place, commits=one.commits)

        async def once() -> bool | None:
            wish = Wish(0, "", "", (("", *self._attempt_of(one).sums),), self.now_us)
            operations: list[str] = []
            if one.commits:
                self.promises.decide_asked(one.tx_id, wish)
                operations = self._note_sent(one.tx_id, wish)
            else:
                self.promises.rollback_asked(one.tx_id, 0, "")
            answer = await self.ask("driver", 37, ext)
            self._note_answered(operations, answer)
            if answer.code == 0 and one.commits:
                repeated = answer.ext.get(EXT_REPEATED) == "true"
                position = int(answer.ext[EXT_POSITION])
                self.promises.decided(one.tx_id, wish, position, repeated=repeated, now_us=self.now_us)
            elif answer.code == 0:
                self.promises.rolled_back(one.tx_id, 0, "", wish.asked_us, self.now_us)
            if answer.code == ResponseCode.ILLEGAL_OPERATION and EXT_VERDICT not in answer.ext:
                raise TaskFailed(answer.remark)  # a half batch is missing
            return True if answer.code in (0, 1, 604) else None

        await self.insist(once)
        self.counts["query ended a transaction"] += 1
        self.machine.checkpoint.open.remove(one)

    def _attempt_of(self, one: OpenTransaction) -> Any:
        return self.promises.batch(one.tx_id, 0).attempts["", ""]


async def ask_decisions_again(
    process: ProcessLoop, network: Any, machines: list[Machine], promises: QueryPromises
) -> None:
    """At the end, ask for each finished batch whether it is decided, and decide it again with its digest, as a new run does."""
    line = await RawLine.open(process, network, "reader")
    for machine in machines:
        if not isinstance(machine, Query):
            continue
        for number, digest in machine.checkpoint.digests.items():
            asked_us = machine.around.chronicle.now_us
            batch = machine.batch_of(number, "last")
            answer = await line.ask(HMQ_DECISION, _text(decision_ext(batch)), timeout_s=30.0)
            said = read_answer(answer.ext)
            promises.found(
                machine.query, number, decided=said.is_decided, digest=said.digest.hex(), position=said.position,
                asked_us=asked_us,
            )  # fmt: skip
            wish = Wish(number, "last", digest.hex(), (("no.one", 1, 1, 1),), asked_us)
            promises.decide_asked(machine.query, wish)
            fields = decide_ext(machine.group, batch, digest)
            answer = await line.ask(
                HMQ_DECIDE, _text(fields), encode_winners([WinnerRow("no.one", 1, 1, 1)]), timeout_s=30.0
            )
            if answer.code == 0:
                promises.decided(
                    machine.query, wish, int(answer.ext["position"]), repeated=answer.ext["repeated"] == "true", now_us=asked_us
                )  # fmt: skip
            elif EXT_VERDICT in answer.ext:
                promises.conflict(machine.query, wish, int(answer.ext.get(EXT_POSITION, "-1")))
            elif answer.ext.get(EXT_MISSING) == "true":
                promises.missing(machine.query, wish)
    line.close()


def _text(ext: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in ext.items()}
