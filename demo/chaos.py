"""SIGKILL at seeded random moments under load, and what was open at each.

A kill is due when a random share of the baskets is done, plus a random pause; its victim is drawn among the services
that still have work. The same seed draws the same shares, pauses and victims; what a process is doing in that
microsecond is the machine's own rng.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from demo.flight_recorder import OPEN, Counter, Phase, Snapshot, read
from demo.order_service import recorder_path
from demo.processes import BrokerProcess, Child
from demo.run import Run

ORDER_SERVICE = "order service"
BROKER = "broker"
LOYALTY = "loyalty service"
SPARK = "Spark job"

#: A process is killed only when it has done something in its present life.
_WARM_UP_DONE = 5

#: Between the moment when a kill is due and the kill, so that it does not always follow the end of a transaction.
PAUSE_SECONDS_MAX = 0.25
#: How long a killed process stays away, at least and at most.
DOWN_SECONDS = (0.1, 1.0)


@dataclass(frozen=True)
class Kill:
    """One SIGKILL. ``open``: transactions that the broker held, or was about to hold, without a verdict."""

    at_seconds: float
    what: str
    victim: str
    done: int
    open: int
    #: Phase -> workers in it, of the killed service, or of all services when the broker was killed.
    phases: dict[str, int]


@dataclass
class Due:
    done: int
    what: str
    pause_seconds: float


@dataclass
class Chaos:
    """Call ``step`` often; it kills what is due, and starts again what was killed."""

    run: Run
    orders: list[Child]
    broker: BrokerProcess
    loyalty: Child
    #: The job, and a number that grows while it works; None: there is none.
    spark: Child | None
    spark_progress: Callable[[], int]
    counts: dict[str, int]
    started_at: float
    on_kill: Callable[[Kill], None]
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.run.seed)
        self._due = sorted(
            (
                Due(
                    round(self._rng.uniform(0.04, 0.85) * self.run.baskets),
                    what,
                    self._rng.uniform(0.0, PAUSE_SECONDS_MAX),
                )
                for what, count in self.counts.items()
                for _ in range(count)
            ),
            key=lambda due: due.done,
        )
        self._restart_at: dict[str, float] = {}
        self._spark_at_start = 0
        self._done_at_start: dict[str, int] = {child.name: 0 for child in self.orders}

    @property
    def left(self) -> int:
        return len(self._due)

    @property
    def left_of_spark(self) -> int:
        """Kills of the Spark job, which may happen after the load: a small load is over before the job has started."""
        return sum(due.what == SPARK for due in self._due)

    def snapshots(self) -> list[Snapshot]:
        return [read(recorder_path(self.run.path, index)) for index in range(self.run.services)]

    def step(self) -> None:
        now = time.monotonic()
        self._restart_what_is_due(now)
        snapshots = self.snapshots()
        done = sum(one.done for one in snapshots)
        for due in [due for due in self._due if due.done <= done]:
            victim = self._victim(due.what, snapshots)
            if victim is not None:  # else nobody is fit to be killed just now; soon
                self._due.remove(due)
                time.sleep(due.pause_seconds)
                self._kill(due.what, victim)
                return

    def _victim(self, what: str, snapshots: list[Snapshot]) -> Child | None:
        if what == LOYALTY:
            return self.loyalty if self.loyalty.is_running else None
        at_work = [
            child
            for child, snapshot in zip(self.orders, snapshots, strict=True)
            if child.is_running
            and not snapshot.counters[Counter.FINISHED]
            and snapshot.done >= self._done_at_start[child.name] + _WARM_UP_DONE
        ]
        if what == SPARK:
            # When the load is over there may be nothing left that it could do first.
            fit = not at_work or self.spark_progress() > self._spark_at_start
            return self.spark if self.spark is not None and self.spark.is_running and fit else None
        if what == BROKER:
            return self.broker if at_work and self.broker.is_running else None
        return self._rng.choice(at_work) if at_work else None

    def _kill(self, what: str, victim: Child) -> None:
        before = self.snapshots()
        victim.kill()
        after = self.snapshots()
        phases = [phase for one in self._seen(victim, before, after) for phase in one.phases if phase is not Phase.IDLE]
        now = time.monotonic()
        kill = Kill(
            now - self.started_at,
            what,
            victim.name,
            sum(one.done for one in after),
            sum(phase in OPEN for phase in phases),
            {phase.name.lower(): phases.count(phase) for phase in Phase if phase in phases},
        )
        self.kills.append(kill)
        self.on_kill(kill)
        self._restart_at[victim.name] = now + self._rng.uniform(*DOWN_SECONDS)

    def _seen(self, victim: Child, before: list[Snapshot], after: list[Snapshot]) -> list[Snapshot]:
        """Who was in the middle of something: the dead service itself, or everybody when the broker died."""
        if victim in self.orders:
            return [after[self.orders.index(victim)]]
        return before if victim is self.broker else []

    def _restart_what_is_due(self, now: float) -> None:
        for child in (*self.orders, self.broker, self.loyalty, *((self.spark,) if self.spark else ())):
            at = self._restart_at.get(child.name)
            if at is not None and now >= at:
                del self._restart_at[child.name]
                child.start()
                if child is self.spark:
                    self._spark_at_start = self.spark_progress()
                if child in self.orders:
                    done = read(recorder_path(self.run.path, self.orders.index(child))).done
                    self._done_at_start[child.name] = done
            elif at is None:
                child.require_running()

    @property
    def is_quiet(self) -> bool:
        """Everybody who was killed is back."""
        return not self._restart_at
