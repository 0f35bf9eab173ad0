"""One round: start all processes, inject faults for a while, heal, let checks settle everything, and compare the result.

Each round has its own directory, store and databases, so that its evidence is small and complete.
"""

import random
import shutil
import subprocess
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Engine, func, select, text

from halfmq.cli.requests import ask
from halfmq.model.address import Address, ServerUrl
from halfmq.runtime.disk import RealDisk
from halfmq.testing.history.checker import check_files
from halfmq.testing.history.events import Local, Settled
from halfmq.testing.history.logged import log_events
from halfmq.wire.remoting.codes import RequestCode
from tests.soak import tables
from tests.soak.chaos import Chaos
from tests.soak.notes import Notes, now_us
from tests.soak.oracle import Books, Found, Sight, compare, read_books, read_sight
from tests.soak.order_service import POINTS
from tests.soak.plan import (
    CREDITS_GROUP,
    FILTERED_GROUP,
    FILTERED_WATCHER,
    JAVA_GROUP,
    POSTGRES_GROUP,
    QUEUES,
    SQLITE_GROUP,
    SUBSCRIBED_TAGS,
    SUBSCRIPTION,
    TOPICS,
    Plan,
)
from tests.soak.processes import Broker, Child, Command, ProcessFailed, java_command, module
from tests.soak.record import Kill, Round
from tests.soak.small_disk import SmallDisk

#: Maximum duration of the quiet end, seconds. Longer than the longest back-off of a check.
SETTLE_S = 100.0
#: Until every producer has done something: a dozen processes and a JVM start at once, beside other parts of the suite.
_WARM_S = 180.0
CATCH_UP_S = 60.0
#: The filtering group counts as caught up after consuming nothing for this time, seconds.
FILTERED_IDLE_S = 20.0
#: Interval of restarting producers while transactions are undecided: a producer that reconnects is checked at once.
NUDGE_S = 6.0
#: Transactions after everything has settled.
LAST_TRANSACTIONS = 60
#: After this fraction of the kills, no transactions with a long grace period begin.
LATE = 0.6
JAVA_POINTS = (
    "before-local-commit", "in-local-transaction", "after-local-commit", "in-check", "check-decided",
)  # fmt: skip


#: Name, consumer group and subscription.
CONSUMERS = (
    ("consumer-0", (CREDITS_GROUP, "*")),
    ("consumer-1", (CREDITS_GROUP, "*")),
    ("consumer-2", (FILTERED_GROUP, SUBSCRIPTION)),
)
#: Kind, name and subscription. A witness is never killed, and receives what a killed watcher might miss when retention
#: overtakes it.
WATCHERS = (("watcher", "watcher", "*"), ("witness", "witness", "*"), ("witness", FILTERED_WATCHER, SUBSCRIPTION))
#: The contents of the databases, for later evaluation.
BOOKS = "books.msgpack"


class Settings(NamedTuple):
    """``java``: client version to class path. ``deadline``: time of ``time.monotonic`` at which the faults end."""

    kills: int
    deadline: float
    java: dict[str, str]
    disk: SmallDisk | None
    commit: str


class Mortal(Child):
    """A service that kills itself at a point, in some of its lives."""

    def __init__(
        self, plan: Plan, kind: str, name: str, points: Sequence[str], command: Callable[[int, str], Command]
    ) -> None:
        rng = random.Random(f"{plan.seed}/{name}")
        profile = plan.profile
        # Points in a check come last: checks are rare, and a service that waits for one does not die elsewhere.
        in_turn = iter(sorted(rng.sample(points, len(points)), key=lambda point: "check" in point))

        def mortal(life: int) -> Command:
            dies = rng.random() < profile.mortal and not self.immortal
            drawn = next(in_turn, "") if dies and profile.points_in_turn else rng.choice(points)
            self.point = drawn if dies else ""
            visits_max = profile.visits_max if "check" not in self.point else 1 if profile.points_in_turn else 4
            count = rng.randint(1, visits_max)
            return command(life, f"{self.point}:{count}" if self.point else "")

        super().__init__(plan, kind, name, mortal)
        self.point = ""
        #: It does not kill itself any more.
        self.immortal = False


class Company:
    """All participants."""

    def __init__(self, plan: Plan, data: Path, java: dict[str, str]) -> None:
        self.broker = Broker(plan, data)
        # A Java client has the same share as the others; SQLite has one writer at a time.
        share = plan.rate / (4 + len(java))
        services = [
            ("sqlite-0", SQLITE_GROUP), ("sqlite-1", SQLITE_GROUP),
            ("postgres-0", POSTGRES_GROUP), ("postgres-1", POSTGRES_GROUP),
        ]  # fmt: skip
        self.producers: list[Mortal] = [
            Mortal(
                plan, "order service", name, POINTS,
                lambda life, death, name=name, group=group: module(
                    "order_service", plan.directory, name, life, group, share, *([death] if death else [])
                ),
            )
            for name, group in services
        ]  # fmt: skip
        self.producers += [
            Mortal(
                plan, "java", f"java-{version}", JAVA_POINTS,
                lambda life, death, version=version, classpath=classpath: java_command(
                    plan, classpath, version, f"java-{version}", life, share, death
                ),
            )
            for version, classpath in java.items()
        ]  # fmt: skip
        self.consumers = [
            Child(
                plan,
                "consumer",
                name,
                lambda life, name=name, asks=asks: module("consumer", plan.directory, name, life, *asks),
            )
            for name, asks in CONSUMERS
            if plan.profile.consumers
        ]
        self.watchers = [
            Child(
                plan, kind, name,
                lambda life, name=name, subscription=subscription: module(
                    "watcher", plan.directory, name, life, subscription
                ),
            )
            for kind, name, subscription in WATCHERS
        ]  # fmt: skip

    def no_more_deaths(self) -> None:
        """No process kills itself from now on: lives that would are replaced."""
        for one in self.producers:
            one.immortal = True
            if one.point and one.is_running:
                one.abandon()
                one.start()

    @property
    def everybody(self) -> list[Child]:
        return [self.broker, *self.producers, *self.consumers, *self.watchers]


def run_round(
    plan: Plan, number: int, settings: Settings, on_kill: Callable[[Kill], None], say: Callable[[str], None]
) -> Round:
    """Run the whole round; all processes have ended when this returns or raises.

    Raises:
        ProcessFailed: a process ended unexpectedly, or nothing settled in time. The directory is the evidence.
    """
    started, began = datetime.now(UTC), time.monotonic()
    data = settings.disk.path / "store" if settings.disk is not None else plan.path / "store"
    shutil.rmtree(data, ignore_errors=True)
    engines = [tables.connect(plan.sqlite_url), tables.connect(plan.postgres_url)]
    company = Company(plan, data, settings.java)
    notes = Notes(plan, "conductor")
    try:
        for engine in engines:
            tables.make(engine)
        company.broker.start_and_wait()
        make_topics(plan)
        for child in company.everybody[1:]:
            child.start()
        others = [child for child in (*company.consumers, *company.watchers) if child.kind != "witness"]
        chaos = Chaos(
            plan, notes, company.broker, [*company.producers], others, Cutter(engines[1]).cut, settings.disk, on_kill
        )
        if not plan.profile.points_in_turn:  # otherwise they would die before all of them have done something
            wait_until(
                lambda: all(one.is_warm for one in company.producers), _WARM_S, "a producer did nothing", company
            )
        while len(chaos.kills) < settings.kills and time.monotonic() < settings.deadline:
            chaos.step()
            if len(chaos.kills) > LATE * settings.kills:
                plan.late_file.touch()
            time.sleep(0.01)
        say(f"round {number}: {len(chaos.kills)} kills; healing")
        company.no_more_deaths()
        settle_seconds = quiet_end(plan, company, chaos, notes, engines)
        stop_all(plan, company)
        counts: Tally[str] = Tally()
        records = log_events(RealDisk(), data, by=notes.by, t_us=now_us(), note=say, counts=counts)
        notes.write(*islice(records, 1, None))  # the file already has its ``began``
        verify_store(data)
        say(f"round {number}: everything settled in {settle_seconds:.1f} s; comparing")
        books, sight = read_books(engines), read_sight(plan.histories)
        (plan.path / BOOKS).write_bytes(msgspec.msgpack.encode(books))
        write_oracle(notes, books, sight)
        found = compare(books, sight, consumers=plan.profile.consumers)
        check_history(plan, found)
        if not plan.profile.other_faults:
            found.differences.extend(rejected(company))
    except BaseException:
        keep_store(settings.disk, data, plan)
        raise
    finally:
        for child in company.everybody:
            child.abandon()
        for engine in engines:
            engine.dispose()
    if found.differences:
        keep_store(settings.disk, data, plan)
    return summary(plan, number, settings, started, time.monotonic() - began, chaos, company, books, sight, counts,
                   settle_seconds, found)  # fmt: skip


class Cutter:
    """PostgreSQL terminates a session of a service during a transaction: the response to a COMMIT may be lost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cut(self) -> bool:
        with self._engine.connect() as connection:
            found = connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE state <> 'idle' AND "
                    "datname = current_database() AND application_name = :name ORDER BY random() LIMIT 1) AS one"
                ),
                {"name": tables.SERVICES},
            )
            return found.first() is not None


def make_topics(plan: Plan) -> None:
    for topic in TOPICS:
        fields = {"topic": topic, "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
        answer = ask(
            ServerUrl((Address("127.0.0.1", plan.broker_port),)), RequestCode.UPDATE_AND_CREATE_TOPIC, fields, 5.0
        )
        assert answer.code == 0, answer


def wait_until(ready: Callable[[], bool], seconds: float, otherwise: str, company: Company) -> None:
    until = time.monotonic() + seconds
    while not ready():
        company.broker.look()
        dead = [child for child in company.everybody if not child.is_running]
        for child in dead:
            if child.killed_itself and isinstance(child, Mortal):
                child.start()
            else:
                raise ProcessFailed(f"{child.name} ended by itself\n{child.last_words()}")
        if time.monotonic() > until:
            raise ProcessFailed(f"{otherwise} in {seconds:.0f} s")
        time.sleep(0.05)


def quiet_end(plan: Plan, company: Company, chaos: Chaos, notes: Notes, engines: list[Any]) -> float:
    """No faults and no new transactions: checks settle everything, consumers catch up. Returns the seconds until nothing was undecided.

    Retention may remove the whole log while checks settle. Some more transactions follow, so that the log that is
    compared with the acknowledgements is never empty.
    """
    plan.quiet_file.touch()
    chaos.heal()
    settled = settle(plan, company, chaos)
    finished = finished_by(company)
    plan.quiet_file.unlink()
    wait_until(lambda: finished_by(company) >= finished + LAST_TRANSACTIONS, 60, "producers did nothing", company)
    settle(plan, company, chaos)
    notes.write(Settled(t_us=now_us(), by=notes.by))
    if plan.profile.consumers:
        wait_until(CaughtUp(plan, engines), CATCH_UP_S, "consumers did not catch up", company)
    return settled


def finished_by(company: Company) -> int:
    return sum(one.counter.read() for one in company.producers)


def settle(plan: Plan, company: Company, chaos: Chaos) -> float:
    """No new transactions until nothing is undecided; returns the seconds."""
    plan.quiet_file.touch()
    began = nudged = time.monotonic()
    quiet_since = 0.0
    while True:
        undecided = chaos.undecided.ask(2.0)
        now = time.monotonic()
        if undecided == 0:
            # A local transaction that was open before may still prepare, as long as a client waits.
            quiet_since = quiet_since or now
            if now - quiet_since > 1.5 and now - began > 3:
                break
        else:
            quiet_since = 0.0
        if now - began > SETTLE_S:
            raise ProcessFailed(f"{undecided} transactions are undecided {SETTLE_S:.0f} s after the last fault")
        if now - nudged > NUDGE_S and undecided:
            nudged = now
            for one in company.producers:
                one.abandon()
                one.start()
        time.sleep(0.2)
    return time.monotonic() - began


class CaughtUp:
    """Whether both consumer groups have consumed everything. Call it repeatedly."""

    def __init__(self, plan: Plan, engines: list[Any]) -> None:
        self._plan = plan
        self._engines = engines
        self._filtered = (-1, 0.0)

    def __call__(self) -> bool:
        if self._credits(CREDITS_GROUP) < visible_in(self._plan):
            return False
        filtered = self._credits(FILTERED_GROUP)
        if filtered >= sum(map(_subscribed_lines, self._engines)):
            return True
        # Subscribed messages that are not visible are reported by the comparison: do not wait for them.
        if filtered != self._filtered[0]:
            self._filtered = (filtered, time.monotonic())
        return time.monotonic() - self._filtered[1] > FILTERED_IDLE_S

    def _credits(self, group: str) -> int:
        with self._engines[1].connect() as connection:
            found = select(func.count()).where(tables.credited.c.consumer_group == group)
            return connection.scalar(found) or 0


def _subscribed_lines(engine: Engine) -> int:
    with engine.connect() as connection:
        found = select(func.count()).where(tables.lines.c.tag.in_(SUBSCRIBED_TAGS))
        return connection.scalar(found) or 0


def visible_in(plan: Plan) -> int:
    address = ServerUrl((Address("127.0.0.1", plan.broker_port),))
    return sum(
        int(ask(address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}, 5.0).ext["offset"])
        for topic in TOPICS
        for queue in range(QUEUES)
    )


def stop_all(plan: Plan, company: Company) -> None:
    """Stop producers, then consumers; watchers read to the end; a fresh reader reads everything that is retained."""
    for one in company.producers:
        one.stop(30, expected=(143, -15) if one.kind == "java" else (0,))
    for child in (*company.consumers, *company.watchers):
        child.stop(30)
    reader = Child(plan, "reader", "reader", lambda life: module("watcher", plan.directory, "reader", "fresh"))
    reader.start()
    assert reader.process is not None
    try:
        if reader.process.wait(60):
            raise ProcessFailed(f"the last reader failed\n{reader.last_words()}")
    finally:
        reader.abandon()
    company.broker.stop(40)


def verify_store(data: Path) -> None:
    """
    Raises:
        ProcessFailed: ``store verify`` found damage.
    """
    done = subprocess.run(
        [sys.executable, "-m", "halfmq", "store", "verify", str(data)], capture_output=True, text=True, timeout=300,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )  # fmt: skip
    if done.returncode:
        raise ProcessFailed(f"store verify found:\n{done.stdout}{done.stderr}")


def write_oracle(notes: Notes, books: Books, sight: Sight) -> None:
    """Record the outcome in the databases of every transaction with a half that was sent."""
    notes.write(
        *(
            Local(t_us=now_us(), by=notes.by, group=group, tx=tx,
                  outcome="COMMITTED" if tx in books.orders else "ROLLED_BACK")
            for tx, group in sight.asked.items()
        )
    )  # fmt: skip


def check_history(plan: Plan, found: Found) -> None:
    """Run the history checker on all files: its violations are differences, and its counts are reported with ours."""
    report = check_files([plan.histories])
    (plan.path / "checker.json").write_bytes(report.as_json())
    found.differences.extend(f"checker: {one.text()}" for one in report.violations)
    found.looked_at["events"] = report.events
    for look in report.looked:
        found.looked_at[f"promise {look.promise}: {look.what}"] = look.looked


def rejected(company: Company) -> Iterator[str]:
    """Responses of the broker to watchers other than messages; in this profile there is no legal reason for them."""
    for one in company.watchers:
        for line in one.last_words(1_000).splitlines():
            if line.startswith(("refused:", "overtaken:")):
                yield f"strange: {one.name} was answered {line}"


def keep_store(disk: SmallDisk | None, data: Path, plan: Plan) -> None:
    """Copy the evidence off the small file system."""
    if disk is not None and data.exists():
        disk.free()
        shutil.copytree(data, plan.path / "store", dirs_exist_ok=True)


def summary(
    plan: Plan, number: int, settings: Settings, started: datetime, seconds: float, chaos: Chaos, company: Company,
    books: Books, sight: Sight, counts: Tally[str], settle_seconds: float, found: Found,
) -> Round:  # fmt: skip
    committed = Tally(group for group, _ in books.orders.values())
    groups = {SQLITE_GROUP, POSTGRES_GROUP, *([JAVA_GROUP] if settings.java else [])}
    idle = [group for group in groups if not committed[group]]
    found.differences.extend(f"strange: group {group} committed nothing" for group in sorted(idle))
    return Round(
        round=number, seed=str(plan.seed), commit=settings.commit, started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 1), kills=dict(Tally(kill.kind for kill in chaos.kills)), pauses=dict(chaos.pauses),
        fills=dict(chaos.fills), cuts=chaos.cuts, refused_starts=chaos.refused_starts,
        disk=settings.disk.kind if settings.disk else "none", committed=dict(committed),
        rolled_back=len(sight.prepared - books.orders.keys()), messages=len(books.lines), log=dict(counts),
        settle_seconds=round(settle_seconds, 1), restart_seconds_max=round(max(company.broker.ready_seconds), 2),
        looked_at={**found.looked_at, "torn lines": sight.torn_lines}, differences=found.differences,
    )  # fmt: skip


def save_differences(plan: Plan, found: Sequence[str]) -> None:
    (plan.path / "differences.json").write_bytes(msgspec.json.format(msgspec.json.encode(list(found))))
