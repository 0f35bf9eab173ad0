"""Faults: drawn from the seed, injected, and counted."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from halfmq.errors import StoreDamaged
from halfmq.testing.history.events import Fault
from tests.simulation.coverage import Coverage, states_of
from tests.simulation.damage import Damage
from tests.simulation.machine import BROKER_PORT
from tests.simulation.promises import Violation
from tests.support.virtual_loop import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.run import Run

#: Faults that are preferably injected at one of these moments.
_SUDDEN = frozenset(
    ("kill", "kill_in_step", "power", "power_in_step", "crash_while_it_starts", "pause", "reset", "client_kill", "sync_error",
     "write_error", "database_crash", "partition", "one_way", "stall", "drain", "full", "rot_at_rest", "derived_lost")
)  # fmt: skip
_MOMENTS = ("not durable", "halves partly stored", "check in flight", "undecided", "parked")


class Faults:
    def __init__(self, run: "Run") -> None:
        self.run = run
        self.rng = random.Random(f"{run.swarm.seed}/faults")
        self.damage = Damage(run.host.disk, run.swarm.segment_bytes, run.swarm.seed, run.counts)
        self.coverage = Coverage(run.counts)
        self.over = False
        #: During a start that read damage, the damage was repaired.
        self._healed_in_a_start = False
        self.ghosts = 0
        #: A fault that waits for a state of some transaction, and its deadline.
        self._armed: tuple[str, str, int] | None = None
        #: States of transactions when a broker served last.
        self._states = ["none"]
        #: Log position of the first verdict, as far as observed.
        self._first_verdict = 1 << 62

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        pause_ms = self.rng.random() * 2 * self.run.swarm.fault_every_ms
        self.run.scheduler.call_later(int(pause_ms * 1_000) + 1, self._due)

    def _due(self) -> None:
        if self.over:
            return
        what = self.rng.choice(self.run.swarm.faults)
        if what in _SUDDEN and self._armed is None and self.rng.random() < 0.5:
            self._armed = what, self.rng.choice(_MOMENTS), self.run.scheduler.now_us + 1_000_000
        else:
            getattr(self, what)()
        self._next()

    def broker_turned(self) -> None:
        """This may be the moment for which a fault waits: between a write and its sync, with some halves of a transaction stored."""
        if self._armed is not None and not self.over:
            what, moment, until_us = self._armed
            if moment in self._states_now() or self.run.scheduler.now_us > until_us:
                self._armed = None
                getattr(self, what)()

    def note(self, what: str, whom: str = "", detail: str = "") -> None:
        run = self.run
        run.counts[f"fault {what}"] += 1
        self.coverage.fault(what, self._states_now())
        run.chronicle.note(Fault(t_us=run.scheduler.now_us, by="world", what=what, whom=whom, detail=detail))

    def _states_now(self) -> list[str]:
        host = self.run.host
        if host.serves and host.broker is not None and host.broker._store is not None:
            state = host.broker._sequencer.engine.state
            if state.verdicts:
                self._first_verdict = min(self._first_verdict, state.verdicts[0].position)
            self._states = states_of(state, host.broker._store.durable_position, self._first_verdict)
        return self._states

    def later(self, ms: int, what: Callable[[], object]) -> None:
        self.run.scheduler.call_later(ms * 1_000, lambda: None if self.over else what())

    # --- the broker --------------------------------------------------------------------------------------------------

    @property
    def _syncs_matter(self) -> bool:
        """False at the level ``memory``, where an acknowledged record survives only a kill."""
        return self.run.swarm.durability == "fsync"

    def kill(self) -> None:
        host = self.run.host
        if host.process is not None:
            self.note("kill", host.process.name)
            host.kill()

    def power(self) -> None:
        host = self.run.host
        if host.process is not None:
            self.note("power", host.process.name)
            host.power_fails()

    def power_in_step(self) -> None:
        """Power fails during an operation of the disk, a random number of operations from now."""
        self._in_step("power_in_step", power=True)

    def kill_in_step(self) -> None:
        self._in_step("kill_in_step", power=False)

    def _in_step(self, what: str, *, power: bool) -> None:
        host = self.run.host
        if host.process is None:
            return
        steps = self.rng.randint(1, 60)
        self.note(what, host.process.name, f"after {steps} operations")
        host.cut_after(steps, power=power)

    def crash_while_it_starts(self) -> None:
        """The broker dies, and again during its recovery."""
        host = self.run.host
        if host.process is None:
            return
        power = self.rng.random() < 0.6
        steps = self.rng.choice((1, 2, 3, 5, 8, 13, 21, 34))
        self.note("power" if power else "kill", host.process.name, f"and again {steps} operations into its start")
        host.power_fails() if power else host.kill()
        host.cut_after(steps, power=power)
        self.note("power_in_step" if power else "kill_in_step", detail="while it starts")
        self.run.counts["crash while starting"] += 1

    def pause(self) -> None:
        host = self.run.host
        process = host.process
        if process is not None and not process.paused:
            span_ms = self.rng.choice((100, 1_000, 4_000))
            self.note("pause", process.name, f"{span_ms} ms")
            process.pause()
            self.later(span_ms, process.resume)

    def drain(self) -> None:
        host = self.run.host
        if host.serves:
            assert host.process is not None
            self.note("drain", host.process.name)
            host.serves = False
            host.drain()

    # --- the network -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        open_ends = self.run.network.connections()
        if open_ends:
            end = self.rng.choice(open_ends)
            self.note("reset", end.machine)
            self.run.network.reset(end)

    def _machine(self) -> str:
        return self.rng.choice(self.run.machines).name

    def partition(self) -> None:
        name = self._machine()
        self.note("partition", name)
        self.run.network.partition(name, to_server=True, to_client=True)
        self.later(self.rng.choice((200, 2_000, 5_000)), lambda: self.run.network.heal(name))

    def one_way(self) -> None:
        name = self._machine()
        to_server = self.rng.random() < 0.5
        self.note("one_way", name, "to the server" if to_server else "to the client")
        self.run.network.partition(name, to_server=to_server, to_client=not to_server)
        self.later(self.rng.choice((200, 2_000, 5_000)), lambda: self.run.network.heal(name))

    def stall(self) -> None:
        open_ends = self.run.network.connections()
        if open_ends:
            end = self.rng.choice(open_ends)
            self.note("stall", end.machine)
            self.run.network.stall(end, to_server=self.rng.random() < 0.5, for_us=self.rng.choice((100_000, 2_000_000)))

    def refuse(self) -> None:
        self.note("refuse")
        self.run.network.refuse(self.rng.choice((100_000, 1_500_000)))

    def repeat(self) -> None:
        """Repeat a request of the last seconds on its own connection."""
        recent = [one for one in self.run.tap.sent if one[0] > self.run.scheduler.now_us - 4_000_000]
        if recent:
            _, kind, frame = self.rng.choice(recent)
            self.ghosts += 1
            self.note("repeat", detail=kind)
            ghost = ProcessLoop(self.run.scheduler, f"ghost.{self.ghosts}", self.run._raised)
            self.run.network.repeat(ghost, len(frame).to_bytes(4, "big") + frame, BROKER_PORT)

    # --- clients and their databases ---------------------------------------------------------------------------------

    def client_kill(self) -> None:
        machine = self.rng.choice(self.run.machines)
        if machine.process is not None:
            self.note("client_kill", machine.process.name)
            machine.kill()

    def client_pause(self) -> None:
        machine = self.rng.choice(self.run.machines)
        process = machine.process
        if process is not None and not process.paused:
            span_ms = self.rng.choice((100, 1_000, 5_000))
            self.note("client_pause", process.name, f"{span_ms} ms")
            process.pause()
            self.later(span_ms, process.resume)

    def database_crash(self) -> None:
        database = self.rng.choice(list(self.run.databases.values()))
        if database.up:
            self.note("database_crash", database.name)
            database.crash()
            self.later(self.rng.choice((50, 500, 3_000)), database.back)

    def database_slow(self) -> None:
        database = self.rng.choice(list(self.run.databases.values()))
        self.note("database_slow", database.name)
        database.slow = 20

        def fast() -> None:
            database.slow = 1

        self.later(self.rng.choice((500, 3_000)), fast)

    def clock_step(self) -> None:
        clocks = {"broker": self.run.host.clock, **{machine.name: machine.clock for machine in self.run.machines}}
        whose = self.rng.choice(list(clocks))
        by_ms = self.rng.choice((-3_600_000, -5_000, -100, 100, 5_000, 86_400_000))
        if whose == "broker" and by_ms > 1_000:
            by_ms = 1_000  # at a restart broker time takes over the step, and retries within the window are no longer recognised
        self.note("clock_step", whose, f"{by_ms} ms")
        clocks[whose].step(by_ms)
        if whose == "broker":
            self.run.check_looks.ahead_ms += max(0, by_ms)

    # --- the disk ----------------------------------------------------------------------------------------------------

    def write_error(self) -> None:
        path_ends, short = self.rng.choice(("", ".seg", ".q", ".tx", ".new", "published")), self.rng.random() < 0.5
        self.note("write_error", detail=f"*{path_ends}{', short' if short else ''}")
        self.run.host.disk.fail("write", path_ends=path_ends, short=short)

    def sync_error(self) -> None:
        if self._syncs_matter:
            path_ends = self.rng.choice(("", ".seg", ".snap.new", "checkpoint"))
            self.note("sync_error", detail=f"*{path_ends}")
            self.run.host.disk.fail("sync", path_ends=path_ends)

    def name_error(self) -> None:
        """For a moment, files cannot be created, renamed or allocated."""
        operation = self.rng.choice(("create", "rename", "allocate", "sync_directory"))
        self.note("name_error", detail=operation)
        self.run.host.disk.fail(operation)

    def full(self) -> None:
        room = self.rng.choice((0, 20_000, 100_000))
        self.note("full", detail=f"{room} bytes left")
        disk = self.run.host.disk
        disk.fill(room)
        self.later(self.rng.choice((1_000, 4_000)), lambda: disk.fill(1 << 40))

    def rot(self) -> None:
        """Flip a bit of a body that is served. At the level ``memory`` this is indistinguishable from a power loss."""
        if not self._syncs_matter:
            return
        promises = self.run.promises
        offsets = [plain.acked[0] for plain in promises.plains.values() if plain.acked is not None]
        offsets += [offset for tx in promises.txs.values() for offset in tx.acked.values()]
        where = self.damage.flip_body([offset for offset in offsets if offset >= promises.log_start])
        if where:
            self.note("rot", detail=where)
            self.later(self.rng.choice((500, 2_000)), self._restore)

    def rot_at_rest(self) -> None:
        """Flip a bit of what the next start reads."""
        host = self.run.host
        if host.serves and host.broker is not None and host.broker._maintenance is not None and self._syncs_matter:
            redo_from = host.broker._maintenance._checkpoint_at
            states = self._states_now()
            host.kill()
            where = self.damage.flip_anywhere(redo_from)
            self._states = states
            self.note("rot_at_rest" if where else "kill", detail=where)

    def derived_lost(self) -> None:
        host = self.run.host
        if host.process is not None:
            self._states_now()
            host.kill()
            where = self.damage.lose_derived()
            self.note("derived_lost" if where else "kill", detail=where)

    def segment_lost(self) -> None:
        host = self.run.host
        if host.serves and host.broker is not None and host.broker._maintenance is not None and self._syncs_matter:
            redo_from = host.broker._maintenance._checkpoint_at
            self._states_now()
            host.kill()
            where = self.damage.lose_segments(redo_from)
            self.note("segment_lost" if where else "kill", detail=where)

    def _restore(self) -> None:
        """A start in progress may have read what was damaged."""
        self._healed_in_a_start |= self.damage.any and not self.run.host.serves
        self._from_a_backup()

    def _from_a_backup(self) -> None:
        try:
            self.damage.restore()
        except OSError:  # a fault that was ordered for the broker hit the restore: repeat it
            self.later(500, self._restore)

    def started(self) -> None:
        self._healed_in_a_start = False
        self.damage.forget()

    def start_refused(self, error: StoreDamaged) -> None:
        """Legal if something is damaged, which is then restored."""
        if not (self.damage.any or self._healed_in_a_start):
            raise Violation(f"Recovery: a start was refused, and nothing is damaged: {error}")
        self.run.counts["look damage refused"] += 1
        self.coverage.refused()
        self._healed_in_a_start = False
        self._from_a_backup()

    # --- the end of the faults ---------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.over = True
        run = self.run
        run.host.cut_after(None, power=False)
        run.network.heal()
        run.host.disk.heal()  # before anything is restored: pending faults would hit that
        self._restore()
        for database in run.databases.values():
            database.back()
            database.slow = 1
            database.answers_lost = 0.0
        if run.host.process is not None:
            run.host.process.resume()
        for machine in run.machines:
            if machine.process is not None:
                machine.process.resume()
