"""Random faults of a round: SIGKILL, SIGSTOP, lost connections to the database, a full disk. Each kill is recorded together with
what was going on.

The same seed draws the same victims, moments and pauses. What a process is doing at that microsecond depends on the
machine. A victim is killed after it has done something in this life; the broker after others have done something with it.
"""

import random
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable

from halfmq.cli.requests import ask
from halfmq.errors import HalfmqError
from halfmq.model.address import Address, ServerUrl
from halfmq.testing.history.events import Fault, Started
from halfmq.wire.remoting import operators
from halfmq.wire.remoting.codes import HMQ_TRANSACTIONS
from tests.soak.notes import Notes, now_us
from tests.soak.plan import Plan
from tests.soak.processes import Broker, Child, ProcessFailed
from tests.soak.record import Kill
from tests.soak.small_disk import SmallDisk
from tests.soak.undecided import undecided_in

PAUSE_EVERY_S = (2.0, 9.0)
#: Sometimes longer than a client waits for a response, so that it retries.
PAUSE_S = (0.1, 4.5)
CUT_EVERY_S = (1.0, 5.0)
FILL_EVERY_S = (6.0, 18.0)
FULL_S = (0.5, 3.0)
#: Fraction of the starts of the broker that end in another kill, and the time of recovery in which it happens, seconds.
KILLED_WHILE_STARTING = 0.12
STARTING_S = (0.05, 1.2)
#: Fraction of the kills with a second victim at the same moment.
TOGETHER = 0.12
#: Fraction of the pauses that pause the broker.
BROKER_PAUSES = 0.35
#: A victim that does nothing for this time is killed nevertheless.
PATIENCE_S = 6.0
#: The broker need not start while the disk is full; after space is freed it must start within this time.
RESTART_S = 30.0


class Load:
    """Finished transactions of all producers, in total and in the last second."""

    def __init__(self, producers: list[Child]) -> None:
        self._producers = producers
        self._samples: deque[tuple[float, int]] = deque()

    @property
    def total(self) -> int:
        return sum(one.counter.read() for one in self._producers)

    def sample(self) -> None:
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] > 0.05:
            self._samples.append((now, self.total))
        while now - self._samples[0][0] > 1.0 and len(self._samples) > 1:
            self._samples.popleft()

    def per_second(self) -> int:
        now = time.monotonic()
        within = [(at, total) for at, total in self._samples if now - at <= 1.05]
        return self.total - within[0][1] if within else 0


class Undecided:
    """Number of transactions that the broker holds without a verdict: queried now, or its last response."""

    def __init__(self, plan: Plan) -> None:
        self._url = ServerUrl((Address("127.0.0.1", plan.broker_port),))
        self._last: tuple[float, int] | None = None

    def ask(self, timeout_s: float = 0.6) -> int | None:
        try:
            answer = ask(self._url, HMQ_TRANSACTIONS, {"max": "1"}, timeout_s)
            total, _ = operators.decode_pending(answer.ext, answer.body)
        except (HalfmqError, OSError):
            return None
        self._last = (time.monotonic(), total)
        return total

    def now_or_last(self) -> tuple[int, float]:
        """(number, age of the number in seconds); (-1, 0) if there never was a response."""
        if self.ask() is not None:
            assert self._last is not None
            return self._last[1], 0.0
        if self._last is None:
            return -1, 0.0
        return self._last[1], round(time.monotonic() - self._last[0], 2)


class Chaos:
    """Call ``step`` often until ``kills`` has enough, then ``heal``.

    ``cut`` breaks a connection of a service to its database, and returns whether there was one.
    """

    def __init__(
        self,
        plan: Plan,
        notes: Notes,
        broker: Broker,
        producers: list[Child],
        others: list[Child],
        cut: Callable[[], bool],
        disk: SmallDisk | None,
        on_kill: Callable[[Kill], None],
    ) -> None:
        self._plan = plan
        self._profile = plan.profile
        self._notes = notes
        self._broker = broker
        self._everybody: list[Child] = [broker, *producers, *others]
        self._cut = cut
        self._disk = disk
        self._on_kill = on_kill
        self.load = Load(producers)
        self.undecided = Undecided(plan)
        self.kills: list[Kill] = []
        self.pauses: Tally[str] = Tally()
        self.fills: Tally[str] = Tally()
        #: Number of connections to PostgreSQL cut in a transaction.
        self.cuts = 0
        #: Output of the broker at starts that failed for lack of space.
        self.refused_starts: list[str] = []
        self._started_at = time.monotonic()
        self._rng = {
            what: random.Random(f"{plan.seed}/{what}") for what in ("kill", "pause", "cut", "disk", "down", "start")
        }
        self._restart_at: dict[Child, float] = {}
        self._go_on_at: dict[Child, float] = {}
        self._free_at = 0.0
        self._freed_at = 0.0
        self._kill_at = self._later("kill", self._profile.kill_every_s)
        self._pause_at = self._later("pause", PAUSE_EVERY_S)
        self._cut_at = self._later("cut", CUT_EVERY_S)
        self._fill_at = self._later("disk", FILL_EVERY_S)
        self._victim = self._draw_victim()
        self._load_wanted = plan.rate * plan.profile.load_share
        self._load_at_broker_start = 0
        #: When to kill the broker that is starting now; 0: not at all.
        self._kill_start_at = 0.0

    def _later(self, what: str, span: tuple[float, float]) -> float:
        return time.monotonic() + self._rng[what].uniform(*span)

    def _draw_victim(self) -> Child:
        kinds = {child.kind for child in self._everybody}
        rng = self._rng["kill"]
        weights = {kind: weight for kind, weight in self._profile.weights.items() if kind in kinds}
        kind = rng.choices([*weights], [*weights.values()])
        return rng.choice([child for child in self._everybody if child.kind == kind[0]])

    def step(self) -> None:
        self.load.sample()
        self._broker.look()
        now = time.monotonic()
        self._restart(now)
        self._see_own_deaths()
        self._end_pauses(now)
        self._free_disk(now)
        if self._kill_start_at and now >= self._kill_start_at:
            self._kill_start_at = 0.0
            if self._broker.is_running:
                self._kill(self._broker, "" if self._broker.look() else "starting")
        if now >= self._kill_at and self._is_ripe(now):
            self._kill(self._victim)
            if self._profile.other_faults and self._rng["kill"].random() < TOGETHER:
                self._kill_another()
            self._kill_at = self._later("kill", self._profile.kill_every_s)
            self._victim = self._draw_victim()
            under_load = self._rng["kill"].random() < self._profile.under_load
            self._load_wanted = self._plan.rate * self._profile.load_share if under_load else 0.0
        if self._profile.other_faults:
            self._disturb(now)

    def _disturb(self, now: float) -> None:
        if now >= self._pause_at:
            self._pause()
        if now >= self._cut_at:
            if self._cut():
                self.cuts += 1
                self._fault("partition", "database", "a connection was cut")
            self._cut_at = self._later("cut", CUT_EVERY_S)
        if self._disk is not None and now >= self._fill_at:
            self._fill(self._disk)

    # --- kills ----------------------------------------------------------------------------------------------------

    def _is_ripe(self, now: float) -> bool:
        if self._victim in self._restart_at or not self._victim.is_running:
            return False
        if now - self._kill_at > PATIENCE_S:
            return True
        if self.load.per_second() < self._load_wanted:
            return False
        if self._victim is self._broker:
            return self._broker.look() and self.load.total >= self._load_at_broker_start + self._profile.broker_warm
        return self._victim.is_warm

    def _kill(self, victim: Child, point: str = "") -> None:
        kill = self._about(victim, "SIGKILL", point)
        victim.kill()
        if victim is self._broker and kill.undecided_asked_s_ago > 0:
            kill = kill.of_the_dead(undecided_in(self._broker.data))
        self._killed(victim, kill)

    def _kill_another(self) -> None:
        """Kill another process right after the first, such as the broker and the only producer that could answer its checks."""
        others = [child for child in self._everybody if child.is_running and child not in self._restart_at]
        if others:
            self._kill(self._rng["kill"].choice(others), "together")

    def _about(self, victim: Child, how: str, point: str) -> Kill:
        undecided, ago = self.undecided.now_or_last()
        return Kill(
            at_s=round(time.monotonic() - self._started_at, 2), kind=victim.kind, whom=f"{victim.name}.{victim.lives}",
            how=how, point=point, paused=victim.paused, disk_full=bool(self._free_at), load=self.load.per_second(),
            undecided=undecided, undecided_asked_s_ago=ago,
        )  # fmt: skip

    def _killed(self, victim: Child, kill: Kill) -> None:
        self._go_on_at.pop(victim, None)
        self._restart_at[victim] = self._later("down", self._profile.down_s)
        detail = f"load {kill.load}, undecided {kill.undecided}"
        self._notes.write(Fault(t_us=now_us(), by=self._notes.by, what="kill", whom=kill.whom, detail=detail))
        self.kills.append(kill)
        self._on_kill(kill)

    def _see_own_deaths(self) -> None:
        for child in self._everybody:
            if child.is_running or child.lives == 0 or child in self._restart_at:
                continue
            if child is self._broker:
                if self._has_no_room() and not child.killed_itself:
                    self.refused_starts.append(child.last_words(1))
                    self._restart_at[child] = time.monotonic() + 0.5
                    continue
                status = None if child.process is None else child.process.returncode
                raise ProcessFailed(f"the broker ended by itself with {status}\n{child.last_words()}")
            if not child.killed_itself:
                status = None if child.process is None else child.process.returncode
                raise ProcessFailed(f"{child.name} ended by itself with {status}\n{child.last_words()}")
            self._killed(child, self._about(child, "own", getattr(child, "point", "")))

    def _has_no_room(self) -> bool:
        """Whether the broker refused to start on a full disk, which is legal if it says so."""
        full = bool(self._free_at) or time.monotonic() - self._freed_at < 2.0
        return full and "is full (free space" in self._broker.last_words(3)

    def _restart(self, now: float) -> None:
        for child, at in list(self._restart_at.items()):
            if now >= at:
                del self._restart_at[child]
                child.start()
                if child is self._broker:
                    self._load_at_broker_start = self.load.total
                    rng = self._rng["start"]
                    if self._profile.other_faults and rng.random() < KILLED_WHILE_STARTING:
                        self._kill_start_at = time.monotonic() + rng.uniform(*STARTING_S)
                self._notes.write(Started(t_us=now_us(), by=self._notes.by, whom=f"{child.name}.{child.lives}"))

    # --- pauses and the disk ----------------------------------------------------------------------------------------

    def _pause(self) -> None:
        rng = self._rng["pause"]
        victim = self._broker if rng.random() < BROKER_PAUSES else rng.choice(self._everybody)
        seconds = rng.uniform(*PAUSE_S)
        if victim.is_running and not victim.paused and victim not in self._restart_at:
            victim.pause()
            self.pauses[victim.kind] += 1
            self._go_on_at[victim] = time.monotonic() + seconds
            self._fault("pause", victim.name, f"{seconds:.1f} s")
        self._pause_at = self._later("pause", PAUSE_EVERY_S)

    def _end_pauses(self, now: float) -> None:
        for victim, at in list(self._go_on_at.items()):
            if now >= at:
                del self._go_on_at[victim]
                victim.go_on()

    def _fill(self, disk: SmallDisk) -> None:
        rng = self._rng["disk"]
        left = rng.choice((0, 0, 256 << 10, 1 << 20, 3 << 20))
        disk.fill(left)
        self.fills["full" if left == 0 else "below the reserve"] += 1
        self._free_at = time.monotonic() + rng.uniform(*FULL_S)
        self._fill_at = self._free_at + rng.uniform(*FILL_EVERY_S)
        self._fault("full", "broker", f"{left} bytes left")

    def _free_disk(self, now: float) -> None:
        if self._disk is not None and self._free_at and now >= self._free_at:
            self._disk.free()
            self._free_at = 0.0
            self._freed_at = now

    def _fault(self, what: str, whom: str, detail: str) -> None:
        self._notes.write(Fault(t_us=now_us(), by=self._notes.by, what=what, whom=whom, detail=detail))

    # --- the end ----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults: the disk is free, no process is paused, all run."""
        self._kill_start_at = 0.0
        self._free_disk(self._free_at)
        self._end_pauses(float("inf"))
        until = time.monotonic() + RESTART_S
        while self._restart_at or not all(child.is_running for child in self._everybody) or not self._broker.look():
            self._restart(time.monotonic())
            self._broker.look()
            self._see_own_deaths()
            if time.monotonic() > until:
                raise ProcessFailed(f"not everybody came back\n{self._broker.last_words()}")
            time.sleep(0.02)
