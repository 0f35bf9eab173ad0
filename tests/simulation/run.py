"""One seed, from its first event to its last check.

work     clients work, consumers consume, and faults are injected as ``swarm`` defines
heal     no more faults; dead processes are restarted, paused ones resumed, partitions healed
settle   within ``SETTLE_MS`` nothing may be undecided any more
close    all queues, the log and the databases are read, and the final checks run
"""

import gc
import logging
import random
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from halfmq import limits
from halfmq.core.transaction import retention
from halfmq.errors import InvariantViolated, StoreDamaged
from halfmq.model.properties import to_dict
from halfmq.store import raw_messages
from halfmq.store.store import Durability
from halfmq.testing.history import check_events
from halfmq.testing.history.events import AnyEvent, Fault, Seen, Settled
from tests.simulation import (
    absence,
    breakages,
    final_checks,
    findings,
    logged_bugs,
    lookups,
    raw_reading,
    sql_driver,
    steps_end,
)
from tests.simulation.after_start import AfterStart
from tests.simulation.broker_host import BrokerHost
from tests.simulation.check_rules import CheckLooks
from tests.simulation.check_times import CheckTimes
from tests.simulation.chronicle import Chronicle
from tests.simulation.consumers import READERS, GroupConsumer, Watcher
from tests.simulation.consuming import Consuming, look_at_effects
from tests.simulation.coordinating import CoordinatorProcess
from tests.simulation.database import Database
from tests.simulation.delays import Delays
from tests.simulation.durable_replies import Leaving
from tests.simulation.faults import Faults
from tests.simulation.fence_rules import Fences
from tests.simulation.fencing import Fencer
from tests.simulation.hostile_client import Stranger
from tests.simulation.machine import Machine, Surroundings
from tests.simulation.operators import Administrator, Operator
from tests.simulation.producers import Fetcher, Producer
from tests.simulation.promises import WHOLE, Promises, Violation
from tests.simulation.queries import Meeting, Query, ask_decisions_again
from tests.simulation.query_promises import Place, QueryPromises, messages_shown
from tests.simulation.queue_tails import look_behind_queues
from tests.simulation.stock_producer import StockProducer
from tests.simulation.swarm import Swarm, draw
from tests.simulation.tags import Sent, read_by_tags
from tests.simulation.wire_tap import WireTap
from tests.support import invariants
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_loop import ProcessLoop, Scheduler

#: With every producer reachable, nothing may be undecided after this time, ms of virtual time: the longest back-off with a
#: quarter of jitter (75 s), the response timeout, and the time that clients need to reconnect.
SETTLE_MS = 100_000
#: After this further time a group has read everything: the broker closes a connection after two minutes without data (it checks
#: every half of that) if its end was lost in a partition; until then a dead consumer may own queues.
_GROUPS_MS = 180_000
_STEP_MS = 500
#: Number of consecutive inspections with work in progress.
_BUSY_LOOKS = 10
#: Fraction of the seeds with a hostile client, and of those whose store is verified at the end.
_STRANGERS = 0.4
_VERIFIED = 0.5


class Result(NamedTuple):
    seed: int
    trace_hash: str
    events: int
    faults: int
    counts: Counter[str]
    #: Empty: all promises hold.
    violation: str
    story: list[str]


class Run:
    def __init__(self, swarm: Swarm, breakage: str = "") -> None:
        self.swarm = swarm
        self.breakage = breakage
        seed = swarm.seed
        self.scheduler = Scheduler(seed, turn_us_max=swarm.turn_us)
        self.chronicle = Chronicle(self.scheduler)
        self.counts = self.chronicle.counts
        self.promises = Promises(self.counts, nothing_is_refused=swarm.nothing_is_refused)
        self.chronicle.listeners.append(self.promises.hear)
        self.network = FaultyNetwork(self.scheduler, seed, swarm.manners)
        self.check_looks = CheckLooks(min(swarm.check_immunities_ms), self.counts)
        self.network.tap = self.tap = WireTap(self.chronicle, self.check_looks, Sent(swarm.subscription))
        self.fences = Fences(self.promises, keeps_all=not (swarm.retention_bytes or swarm.retention_ms))
        self.chronicle.listeners.append(self.fences.hear)
        self.around = Surroundings(swarm, self.scheduler, self.network, self.chronicle, self._raised, self.fences)
        self.host = BrokerHost(swarm, self.scheduler, self.network, self.chronicle, self._raised)
        self.check_times = CheckTimes(self.host.config.settings, self.counts)
        self.leaving = Leaving(
            swarm, self.host.disk, self.counts, self.check_times, lambda: self.host.serves, self._violated
        )
        self.delays = Delays(self.counts)
        self.query_promises = QueryPromises(
            self.counts,
            segment_bytes=swarm.segment_bytes,
            decisions_max=swarm.decisions_max or limits.QUERY_DECISIONS_MAX,
            runs_max=limits.QUERY_RUNS_MAX,
        )
        self.chronicle.listeners.append(self.query_promises.hear)
        self.consuming = Consuming(self.counts, swarm.topics, self.tap.sent_tags)
        self.chronicle.listeners.append(self.consuming.hear)
        self._log_end = 0
        self.tap.log_end = lambda: self._log_end
        self.host.on_started = self._broker_started
        groups = [f"service{number}" for number in range(swarm.producer_groups)]
        self.databases = {name: Database(name, self.scheduler, swarm.database_us, seed) for name in groups}
        if swarm.consumers:
            self.databases[READERS] = Database(READERS, self.scheduler, swarm.database_us, seed)
        self.machines = self._machines(groups)
        self.faults = Faults(self)
        self.host.on_damage = self._start_refused
        self.host.on_turn = self._broker_turned
        self.host.on_power_lost = self._power_lost
        self.after_start = AfterStart(self) if swarm.looks_at_starts else None
        self.host.on_start = self._broker_starts
        #: Durability is ``memory``, and the power failed: the next start reports what is left.
        self._may_forget = False
        self._looked_at = 0
        self._readers = 0
        self.host.on_recovered = self.faults.coverage.recovered
        self.on_started: Callable[[Any], None] = lambda broker: None
        #: An exception of a process that is a bug.
        self.bug: BaseException | None = None

    def _machines(self, groups: list[str]) -> list[Machine]:
        swarm, around = self.swarm, self.around
        made: list[Machine] = []
        for number in range(max(swarm.producers, len(groups))):
            group = groups[number % len(groups)]
            fetches = swarm.fetching == "all" or (swarm.fetching == "some" and number % 2 == 0)
            made.append(Producer(f"p{number}", around, group, self.databases[group], fetches=fetches))
        for number in range(swarm.stock_producers):
            group = groups[number % len(groups)]
            made.append(StockProducer(f"s{number}", around, group, self.databases[group]))
        made += [GroupConsumer(f"c{number}", around, self.databases[READERS]) for number in range(swarm.consumers)]
        made += [Watcher(f"w{number}", around) for number in range(swarm.watchers)]
        made += [Operator(f"o{number}", around, self.databases, self.promises) for number in range(swarm.operators)]
        made += [
            Fetcher(f"f{number}", around, groups[0], self.databases[groups[0]]) for number in range(swarm.fetchers)
        ]
        if swarm.administration:
            made.append(Administrator("a0", around, groups, self.promises))
        if not swarm.nothing_is_refused and random.Random(f"{swarm.seed}/strangers").random() < _STRANGERS:
            made.append(Stranger(0, around, groups[-1], self.tap, self.promises))
        made += [CoordinatorProcess(number, around) for number in range(swarm.coordinators)]
        broker = self.host.config.settings.broker_name
        made += [Fencer(number, around, groups, broker) for number in range(swarm.fencers)]
        meeting = Meeting()
        made += [Query(f"q{number}", around, self.tap, self.query_promises, meeting) for number in range(swarm.queries)]
        return made

    # --- start -------------------------------------------------------------------------------------------------------

    def _raised(self, process: ProcessLoop, error: BaseException) -> None:
        if self.bug is None:
            if not isinstance(error, Violation):
                error.add_note(f"in process {process.name} at {self.scheduler.now_us / 1e6:.6f} s")
            self.bug = error

    def _violated(self, violation: Violation) -> None:
        self.bug = self.bug or violation

    def _power_lost(self) -> None:
        if self.swarm.durability == "memory":
            self._may_forget = True
            self.chronicle.note(
                Fault(t_us=self.scheduler.now_us, by="world", what="power", detail="nothing was promised")
            )

    def _start_refused(self, error: StoreDamaged) -> None:
        try:
            self.faults.start_refused(error)
        except Violation as violation:
            self.bug = self.bug or violation

    def _broker_starts(self) -> None:
        if self.after_start is not None:
            try:
                self.after_start.before()
            except Violation as violation:
                self._violated(violation)

    def _broker_started(self, broker: object) -> None:
        self.on_started(broker)
        self.faults.started()
        if self._may_forget:
            self._may_forget = False
            self.promises.forget_from(self.host.left_until)
            self.query_promises.forget_from(self.host.left_until, self.scheduler.now_us)
            self.check_times.forget()
            self.consuming.forgetful = True
        self.check_times.settings = self.host.config.settings
        # No time passes within a turn: the speed of the real machine must not influence the history.
        self.host.broker._sequencer.pace.clock = self.host.broker._peers.intake.clock = (
            self.host.broker._sequencer._loop.time
        )  # type: ignore[union-attr]
        steps_end.watch(self.host.broker._sequencer.engine, self._violated, self.query_promises.shortened)  # type: ignore[union-attr]
        self.leaving.started(broker)
        look_behind_queues(self.host.broker._store, self.counts)  # type: ignore[union-attr]
        self._look_at_state()
        if self.after_start is not None:
            self.after_start.look(broker)
            if self.around.working:
                self._readers += 1
                self.after_start.ask_again(ProcessLoop(self.scheduler, f"reader.{self._readers}", self._raised))

    def _broker_turned(self) -> None:
        assert self.host.broker is not None
        state = self.host.broker._sequencer.engine.state
        self.promises.log_start = state.log_start
        self._log_end = self.fences.log_end = state.log_end
        if self.swarm.watchful:
            end = state.log_end
            if end != self._looked_at:
                self._looked_at = end
                try:
                    self._look_at_state()
                except InvariantViolated as error:
                    self.bug = self.bug or error
        self.faults.broker_turned()

    def _look_at_state(self) -> None:
        if self.host.serves and self.host.broker is not None:
            state = self.host.broker._sequencer.engine.state
            self.counts["look invariants"] += 1
            self.counts["facts"] += invariants.check(state)
            self.counts["delayed message postponed"] += len(state.session.delayed_postponed)
            self.promises.log_start = state.log_start
            store = self.host.broker._store
            assert store is not None
            fsync = store.durability is Durability.FSYNC
            self.faults.damage.saw(store.durable_position, state.log_end, state.session.answered if fsync else 0)

    def _look_around(self) -> None:
        """Each half second, besides the state: what is late, and what consumers received."""
        host = self.host
        if host.serves and host.broker is not None and host.process is not None:
            paused = host.process.paused
            self.check_times.look(host.broker, paused=paused)
            self.delays.look(host.broker, paused=paused)
            self.consuming.look(host.broker)

    def pass_time(self, until_ms: int) -> None:
        """
        Raises:
            Violation: a promise does not hold. Also raises exceptions of processes that are bugs.
        """
        self.scheduler.run(until_ms * 1_000, lambda: self.bug is not None)
        if self.bug is not None:
            raise self.bug

    # --- phases ------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        with (
            breakages.planted(self.breakage, self.host.disk) as self.on_started,
            _looks(self.swarm.looked_at_max),
            _remembers(self.swarm.decisions_max),
            _small_half_batches_whole(),
            sql_driver.repeatable(self.swarm.seed, self.scheduler),
        ):
            self._go()

    def _go(self) -> None:
        self.host.start()
        for machine in self.machines:
            machine.start()
        self.faults.begin()
        for now_ms in range(_STEP_MS, self.swarm.work_ms + 1, _STEP_MS):
            self.pass_time(now_ms)
            self._look_at_state()
            self._look_around()
        absence.pass_it(self)
        self.heal()
        self.settle()
        self.close()

    def heal(self) -> None:
        self.around.working = False
        self.faults.heal()
        if (self.counts["fault rot"] or self.counts["fault rot_at_rest"]) and self.host.process is not None:
            self.host.kill()  # the log line about the damage asks for a restart

    def settle(self) -> None:
        """Delayed messages become visible in this phase too."""
        deadline_ms = self.scheduler.now_us // 1_000 + SETTLE_MS
        quiet_until_ms = self.scheduler.now_us // 1_000 + 2_000
        busy = 0  # for this many consecutive inspections: a heartbeat in transit is no work
        busy_at_ms = 0  # a job that ended late has sent messages whose retries have the time of the groups from then on
        while True:
            now_ms = self.scheduler.now_us // 1_000
            busy = busy + 1 if self._busy() else 0
            busy_at_ms = now_ms if busy else busy_at_ms
            if now_ms > deadline_ms and (busy > _BUSY_LOOKS or now_ms > max(deadline_ms, busy_at_ms) + _GROUPS_MS):
                left = self._undecided() or [f"(nothing, but {self._goes_on()})"]
                raise Violation(f"Progress: {left} are undecided {SETTLE_MS} ms after everything healed", left[0])
            self.pass_time(now_ms + _STEP_MS)
            self._look_at_state()
            self._look_around()
            if (
                now_ms >= quiet_until_ms
                and self.host.serves
                and not self._waiting()
                and not self._compares(deadline_ms)
            ):
                break
        for_operators = tuple(sorted(self._groups_left_to_operators()))
        self.counts["look left to an operator"] += len(for_operators)
        self.chronicle.note(Settled(t_us=self.scheduler.now_us, by="world", unresolved_groups=for_operators))

    def _compares(self, until_ms: int) -> bool:
        """Whether services still compare verdicts with markers, for which they have until ``until_ms``."""
        assert self.host.broker is not None
        if self.scheduler.now_us // 1_000 > until_ms:
            return False
        return bool(findings.waiting(self.host.broker._sequencer.engine.state))

    def _groups_left_to_operators(self) -> set[str]:
        assert self.host.broker is not None
        groups = self.host.broker._sequencer.engine.state.producer_groups.values()
        return {
            group.name for group in groups for tx_id in group.undecided if self._is_for_an_operator(group.name, tx_id)
        }

    def _waiting(self) -> bool:
        assert self.host.broker is not None
        state = self.host.broker._sequencer.engine.state
        return self._busy() or bool(state.delayed) or (self.swarm.consumers > 0 and self.consuming.is_behind(state))

    def _busy(self) -> bool:
        if self._undecided():
            return True
        assert self.host.broker is not None
        state = self.host.broker._sequencer.engine.state
        at_work = any(machine.busy or machine.process is None for machine in self.machines)
        # A retry may be sent as late as its consumer gets the queue of a dead one, so it has the time of the groups.
        delayed = any(not state.topics_by_id[one.topic_id].name.startswith("%RETRY%") for one in state.delayed.values())
        return bool(
            at_work
            or delayed
            or state.session.disk_full
            or not self.host.broker._sequencer.idle
            or self.network.under_way
        )

    def _goes_on(self) -> str:
        if self.host.broker is None or not self.host.serves:
            return "a broker does not serve"
        state = self.host.broker._sequencer.engine.state
        busy = [machine.name for machine in self.machines if machine.busy or machine.process is None]
        behind = bool(self.swarm.consumers) and self.consuming.is_behind(state)
        return f"busy {busy}, delayed {len(state.delayed)}, full {state.session.disk_full}, consumers behind {behind}"

    def _undecided(self) -> list[str]:
        if self.host.broker is None or not self.host.serves:
            return ["a broker that does not serve"]
        groups = self.host.broker._sequencer.engine.state.producer_groups.values()
        # A COMMIT without all halves is refused, and there will be no other request.
        forgotten = {
            tx.tx for tx in self.promises.txs.values() if tx.forgotten and self.databases[tx.group].said(tx.tx) == "C"
        }
        return [
            tx_id
            for group in groups
            for tx_id, known in group.undecided.items()
            if (tx_id not in forgotten or known.count == len(known.halves))
            and not self._is_for_an_operator(group.name, tx_id)
            and not self._is_ended_for_its_query(tx_id)
        ]

    def _is_ended_for_its_query(self, tx_id: str) -> bool:
        """Its end was acknowledged without durability, and lost. A query answers no checks, so that it remains undecided."""
        will_end = {
            one.tx_id for machine in self.machines if isinstance(machine, Query) for one in machine.checkpoint.open
        }
        return tx_id not in will_end and self.query_promises.has_lost_its_end(tx_id)

    def _is_for_an_operator(self, group: str, tx_id: str) -> bool:
        return group in self.databases and self.databases[group].is_for_an_operator(tx_id)

    def close(self) -> None:
        """All clients have stopped, and in some seeds the broker forgets the verdicts in memory; its table has them."""
        self.consuming.stop(self.host.broker._sequencer.engine.state)  # type: ignore[union-attr]
        for machine in self.machines:
            machine.stop()
        rng = random.Random(f"{self.swarm.seed}/close")
        if rng.random() < 0.3:
            self.host.kill()
            self._until(lambda: self.host.serves, "the broker does not come back")
        if self.swarm.dedup_window_ms < 60_000:
            self.pass_time(self.scheduler.now_us // 1_000 + self.swarm.dedup_window_ms + 2_000)
        self._finish(
            lambda reader: final_checks.ask_again(
                reader,
                self.network,
                self.tap,
                self.promises,
                10,
                self.swarm.queues,
                keeps_all=not (self.swarm.retention_bytes or self.swarm.retention_ms),
            )
        )
        assert self.host.broker is not None
        state = self.host.broker._sequencer.engine.state
        queues = [
            (topic.name, queue)
            for topic in sorted(state.topics_by_id.values(), key=lambda topic: topic.topic_id)
            for queue in range(topic.read_queues)  # removed queues were empty
        ]
        self._finish(lambda reader: final_checks.read_everything(reader, self.network, self.chronicle, queues))
        own = [(topic, queue) for topic, queue in queues if topic in self.swarm.topics]
        self._finish(
            lambda reader: raw_reading.compare(
                reader, self.network, self.chronicle.events, own, self.counts, self.swarm.seed
            )
        )
        self._finish(
            lambda reader: read_by_tags(
                reader, self.network, self.chronicle.events, self.tap.sent_tags, own, self.counts
            )
        )
        if self.swarm.queries:
            self._finish(lambda reader: ask_decisions_again(reader, self.network, self.machines, self.query_promises))
        visible_at = self._visible_at(state) if self.swarm.queries else {}
        self._finish(
            lambda reader: lookups.look_up(reader, self.network, self.chronicle, self.tap, lambda: state.log_start)
        )
        final_checks.note_locals(self.chronicle, self.promises, self.databases)
        broker = self.host.broker
        self.host._end_process(close=False)
        self.host.broker = broker
        records = final_checks.read_log(self.host, self.chronicle, self.check_looks, self.delays)
        if self.swarm.queries:
            self._close_queries(records, visible_at, state)
        if rng.random() < _VERIFIED:
            final_checks.verify(self.host, self.counts)
        if self.swarm.consumers:
            self.consuming.close(self.chronicle.events, state.log_start, self.tap.handed_back)
            look_at_effects(self.databases[READERS], self.counts)
        final_checks.look_at_fences(
            self.chronicle, self.databases, self.machines, self.host.clock, self.swarm.marker_age_ms
        )
        self.fences.close(self.chronicle.events)
        forgotten = {tx_id for machine in self.machines if isinstance(machine, Operator) for tx_id in machine.forgotten}
        findings.look(state, self.chronicle.events, self.promises, self.databases, self.tap.marked, forgotten)
        final_checks.final_looks(self.chronicle, self.promises, self.databases, state.log_start)
        self._check_history()

    def _visible_at(self, state: Any) -> dict[Place, int]:
        """The log position of each queue entry."""
        assert self.host.broker is not None
        store = self.host.broker._store
        assert store is not None
        found: dict[Place, int] = {}
        for topic in state.topics_by_id.values():
            for queue in range(topic.read_queues):
                at, end = store.bounds(topic.topic_id, queue)
                while at < end:
                    entries = store.read_queue(topic.topic_id, queue, at, 1_000)
                    for number, entry in enumerate(entries):
                        found[topic.name, queue, at + number] = entry.visible_at
                    at += len(entries)
        return found

    def _close_queries(self, records: list[Any], visible_at: dict[Place, int], state: Any) -> None:
        places = {
            event.message: (event.topic, event.queue, event.queue_offset)
            for event in self.chronicle.events
            if type(event) is Seen and event.reader == WHOLE and not event.topic.startswith("%")
        }
        shown = partial(messages_shown, self.host.disk, self.swarm.segment_bytes)
        self.query_promises.close(
            records, places, visible_at, state.log_start, state,
            lambda record: [to_dict(message.properties)["UNIQ_KEY"] for _, _, _, message in shown(record)],
        )  # fmt: skip

    def _finish(self, work: Callable[[ProcessLoop], Coroutine[Any, Any, None]]) -> None:
        self._readers += 1
        reader = ProcessLoop(self.scheduler, f"reader.{self._readers}", self._raised)
        task = reader.create_task(work(reader))
        self._until(task.done, "the broker does not answer its reader")
        task.result()

    def _until(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline_ms = self.scheduler.now_us // 1_000 + 60_000
        while not done():
            if self.scheduler.now_us // 1_000 > deadline_ms:
                raise Violation(f"Progress: {otherwise}")
            self.pass_time(self.scheduler.now_us // 1_000 + _STEP_MS // 5)

    def _check_history(self) -> None:
        """Run the history checker that users have, too."""
        report = check_events(self.chronicle.events)
        for looked in report.looked:
            self.counts[f"checker {looked.promise} {looked.kind}: {looked.what}"] += looked.looked
        if not report.clean:
            first = report.violations[0]
            raise Violation(f"History checker: {first.text()}", first.transaction.rpartition("/")[2] or first.message)

    def end(self) -> None:
        """From here on nothing of it has any effect."""
        self.scheduler.discard()


@contextmanager
def _looks(looked_at_max: int) -> Iterator[None]:
    """Limits how many messages an inspection of a trim examines; 0: the usual number."""
    usual = retention.EXAMINED_MAX
    retention.EXAMINED_MAX = looked_at_max or usual
    try:
        yield
    finally:
        retention.EXAMINED_MAX = usual


@contextmanager
def _remembers(decisions_max: int) -> Iterator[None]:
    """Limits how many decisions the broker remembers of a query; 0: the usual number."""
    usual = limits.QUERY_DECISIONS_MAX
    limits.QUERY_DECISIONS_MAX = decisions_max or usual  # type: ignore[misc]
    try:
        yield
    finally:
        limits.QUERY_DECISIONS_MAX = usual  # type: ignore[misc]


@contextmanager
def _small_half_batches_whole() -> Iterator[None]:
    """Raw reads return also small half batches with the checksum that is stored with them; those of a history have few messages."""
    usual = raw_messages._HALF_BATCH_MESSAGES
    raw_messages._HALF_BATCH_MESSAGES = 2  # type: ignore[misc]
    try:
        yield
    finally:
        raw_messages._HALF_BATCH_MESSAGES = usual  # type: ignore[misc]


def run_seed(
    seed: int, breakage: str = "", listener: Callable[[AnyEvent], None] | None = None, profile: str = ""
) -> Result:
    was_on = gc.isenabled()
    gc.disable()  # it would find almost nothing, and run often
    run = Run(draw(seed, profile), breakage)
    if listener is not None:
        run.chronicle.listeners.append(listener)
    violation = ""
    story: list[str] = []
    try:
        with logged_bugs.listening():
            run.go()
        for text, bug in logged_bugs.taken():
            bug.add_note(text)
            raise bug
    except Violation as error:
        violation = f"seed {seed}: {error}"
        story = run.chronicle.about(error.tx)
    except InvariantViolated as error:
        violation = f"seed {seed}: {error}"
    except Exception as error:  # a bug of the program or of the simulation; both must be reported
        logging.getLogger("simulation").error("seed %d", seed, exc_info=error)
        violation = f"seed {seed}: {type(error).__name__}: {error}"
    finally:
        with logged_bugs.listening(), warnings.catch_warnings(action="ignore"):
            run.end()  # messages of coroutines of dead processes while they are closed are meaningless
        logged_bugs.taken()
    faults = sum(count for name, count in run.counts.items() if name.startswith("fault "))
    result = Result(seed, run.chronicle.trace_hash(), len(run.chronicle.events), faults, run.counts, violation, story)
    del run
    if was_on:
        gc.enable()
    return result
