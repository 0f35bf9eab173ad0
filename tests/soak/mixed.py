"""``python -m tests.soak.mixed --minutes 30 --directory DIR``: does a broker under all loads at once keep its size?

One broker with segments of 1 MiB and a log of 16 MiB; transactions through a database, 25,000 more that stay undecided
for long, topics and consumer groups created and deleted all the time, consumers and readers. Every minute a process is
killed, every other time the broker. Its memory, descriptors and files are sampled every few seconds. At the end
everything settles, and the databases, the messages, the store and the history are compared, as after any round.

Memory is flat if the median of no five minutes exceeds that of the second five by more than a tenth; descriptors, if those
of the second half do not exceed those of the first. In the first five minutes the 25,000 are prepared. Prints one JSON
object. Exit status: 0 flat and no difference; 1 otherwise.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from halfmq.runtime.disk import RealDisk
from halfmq.testing.history.events import Fault, Settled, Started
from halfmq.testing.history.logged import log_events
from tests.soak import tables
from tests.soak.chaos import Undecided
from tests.soak.notes import Notes, now_us
from tests.soak.oracle import compare, read_books, read_sight
from tests.soak.plan import SQLITE_GROUP, Plan
from tests.soak.processes import Broker, Child, ProcessFailed, module
from tests.soak.round import CONSUMERS, WATCHERS, CaughtUp, check_history, make_topics, verify_store, write_oracle
from tests.support.ports import free_port

MIB: Final = 1 << 20
SAMPLE_S: Final = 5.0
WINDOW_S: Final = 300.0
GROWTH_MAX: Final = 1.10
DOWN_S: Final = (0.2, 1.5)
SETTLE_S: Final = 300.0
#: At the quiet end, interval of restarting the process that answers checks, since a reconnecting producer is checked at once.
NUDGE_S: Final = 75.0
CATCH_UP_S: Final = 120.0
WITNESSES: Final = frozenset(name for kind, name, _ in WATCHERS if kind == "witness")


class MixedBroker(Broker):
    """The soak's broker, with a log that is limited by size."""

    def __init__(self, plan: Plan, data: Path, retention_bytes: int) -> None:
        super().__init__(plan, data)
        self._command = lambda life: [
            sys.executable, "-m", "halfmq", "serve", "--data", str(data), "--port", str(plan.broker_port),
            "--name-port", str(plan.name_port), "--ports-file", str(self._ports_file), "--durability", "fsync",
            "--segment-bytes", str(MIB), "--retention-hours", "0", "--retention-bytes", str(retention_bytes),
            "--retention-check-ms", "1000", "--dedup-window-ms", "10000",
        ]  # fmt: skip


class Sample(msgspec.Struct):
    """One sample of the broker's process and its store, ``at_s`` into the run and ``life_s`` into its life."""

    at_s: float
    life: int
    life_s: float
    rss_bytes: int
    descriptors: int
    log_bytes: int
    undecided: int | None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.mixed", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--undecided", type=int, default=25_000)
    parser.add_argument("--retention-bytes", type=int, default=16 * MIB)
    parser.add_argument("--kill-every", type=float, default=60, help="seconds")
    parser.add_argument("--rate", type=float, default=40, help="transactions per second of the order services")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    directory = asked.directory.absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    plan = Plan(
        directory=str(directory), seed=asked.seed, broker_port=free_port(), name_port=free_port(),
        sqlite_url=f"sqlite:///{directory / 'shop.db'}", postgres_url=f"sqlite:///{directory / 'credits.db'}", jdbc_url="",
        rate=asked.rate, retention_s=60, patient_s=60,
    )  # fmt: skip
    plan.save()
    run = Mixed(plan, asked)
    try:
        result = run.run()
    except ProcessFailed as error:
        print(error, file=sys.stderr)
        print(json.dumps({"differences": [str(error).splitlines()[0]], "windows": run.windows()}))
        return 1
    finally:
        for child in run.everybody:
            child.abandon()
    (directory / "samples.json").write_bytes(msgspec.json.encode(run.samples))
    print(json.dumps(result, indent=1))
    return 1 if result["differences"] or not result["flat"] else 0


class Mixed:
    def __init__(self, plan: Plan, asked: argparse.Namespace) -> None:
        self._plan = plan
        self._asked = asked
        self._notes = Notes(plan, "conductor")
        self._rng = random.Random(plan.seed)
        data = plan.path / "store"
        rate = asked.rate / 2
        self.broker = MixedBroker(plan, data, asked.retention_bytes)
        self.long = self._child("long", "long_transactions", asked.undecided, 40)
        self.producers = [
            *[self._child(name, "order_service", SQLITE_GROUP, rate, life=True) for name in ("orders-0", "orders-1")],
            self.long,
        ]
        self.administrator = self._child("administrator", "administrator", 4)
        self.consumers = [self._child(name, "consumer", *asks) for name, asks in CONSUMERS]
        self.watchers = [self._child(name, "watcher", subscription) for _, name, subscription in WATCHERS]
        self.everybody: list[Child] = [
            self.broker, *self.producers, self.administrator, *self.consumers, *self.watchers
        ]  # fmt: skip
        self._undecided = Undecided(plan)
        self.samples: list[Sample] = []
        self._began = 0.0
        self._life_began = 0.0
        self.kills: dict[str, int] = {}

    def _child(self, name: str, what: str, *arguments: object, life: bool = True) -> Child:
        plan = self._plan
        return Child(plan, what, name, lambda number: module(what, plan.directory, name, number, *arguments))

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        plan = self._plan
        engines = [tables.connect(plan.sqlite_url), tables.connect(plan.postgres_url)]
        for engine in engines:
            tables.make(engine)
        self.broker.start_and_wait()
        self._began = self._life_began = time.monotonic()
        make_topics(plan)
        for child in self.everybody[1:]:
            child.start()
        self._disturb()
        quiet_began = time.monotonic()
        self._settle(engines)
        settle_s = time.monotonic() - quiet_began
        self._stop()
        data = self.broker.data
        self._notes.write(*islice(log_events(RealDisk(), data, by=self._notes.by, t_us=now_us()), 1, None))
        verify_store(data)
        books, sight = read_books(engines), read_sight(plan.histories)
        write_oracle(self._notes, books, sight)
        found = compare(books, sight)
        check_history(plan, found)
        windows = self.windows()
        return {
            "minutes": self._asked.minutes, "undecided": self._asked.undecided, "kills": self.kills,
            "orders": len(books.orders), "messages": len(books.lines), "settle_s": round(settle_s, 1),
            "looked_at": dict(found.looked_at), "windows": windows, "flat": is_flat(windows),
            "differences": found.differences[:50],
        }  # fmt: skip

    def _disturb(self) -> None:
        """Kill a process every minute, every other time the broker, and sample the broker in between."""
        asked = self._asked
        until = self._began + asked.minutes * 60
        kill_at = self._began + asked.kill_every
        sample_at = self._began
        others = [child for child in self.everybody if child is not self.broker and child.name not in WITNESSES]
        restart: dict[Child, float] = {}
        turn = 0
        while (now := time.monotonic()) < until:
            self.broker.look()
            for child, at in list(restart.items()):
                if now >= at:
                    del restart[child]
                    child.start()
                    self._note_start(child)
            for child in self.everybody:
                if child not in restart and not child.is_running:
                    raise ProcessFailed(f"{child.name} ended by itself\n{child.last_words()}")
            if now >= kill_at:
                kill_at += asked.kill_every
                victim = self.broker if turn % 2 == 0 else self._rng.choice(others)
                turn += 1
                victim.kill()
                self.kills[victim.kind] = self.kills.get(victim.kind, 0) + 1
                self._notes.write(Fault(t_us=now_us(), by=self._notes.by, what="kill", whom=victim.name))
                restart[victim] = now + self._rng.uniform(*DOWN_S)
            if now >= sample_at and self.broker not in restart:
                sample_at = now + SAMPLE_S
                self._sample(now)
            time.sleep(0.05)
        for child in restart:
            child.start()
            self._note_start(child)

    def _note_start(self, child: Child) -> None:
        if child is self.broker:
            self._life_began = time.monotonic()
        self._notes.write(Started(t_us=now_us(), by=self._notes.by, whom=f"{child.name}.{child.lives}"))

    def _sample(self, now: float) -> None:
        process = self.broker.process
        assert process is not None
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0) * 1024
        log_bytes = sum(one.stat().st_size for one in (self.broker.data / "shard-0" / "log").iterdir())
        self.samples.append(
            Sample(
                round(now - self._began, 1), self.broker.lives, round(now - self._life_began, 1), rss,
                len(os.listdir(f"/proc/{process.pid}/fd")), log_bytes, self._undecided.ask(),
            )
        )  # fmt: skip
        if len(self.samples) % 12 == 0:
            print(self.samples[-1], file=sys.stderr, flush=True)

    def windows(self) -> list[dict[str, float]]:
        """Medians and maxima of each five minutes."""
        found = []
        last = self.samples[-1].at_s if self.samples else 0.0
        for start in range(0, int(last) + 1, int(WINDOW_S)):
            within = [one for one in self.samples if start <= one.at_s < start + WINDOW_S]
            if len(within) < WINDOW_S / SAMPLE_S / 4:
                continue
            found.append(
                {
                    "from_s": start,
                    "rss_mib": round(median(one.rss_bytes for one in within) / MIB, 1),
                    "rss_mib_max": round(max(one.rss_bytes for one in within) / MIB, 1),
                    "descriptors": median(one.descriptors for one in within),
                    "descriptors_max": max(one.descriptors for one in within),
                    "log_mib_max": round(max(one.log_bytes for one in within) / MIB, 1),
                    "undecided": max((one.undecided for one in within if one.undecided is not None), default=-1),
                }
            )
        return found

    # --- the end --------------------------------------------------------------------------------------------------

    def _settle(self, engines: list[Any]) -> None:
        self._plan.quiet_file.touch()
        began = nudged = time.monotonic()
        quiet_since = 0.0
        while True:
            now = time.monotonic()
            self.broker.look()
            if self._undecided.ask(2.0) == 0:
                quiet_since = quiet_since or now
                if now - quiet_since > 1.5 and now - began > 5:
                    break
            else:
                quiet_since = 0.0
            if now - began > SETTLE_S:
                left = self._undecided.now_or_last()[0]
                raise ProcessFailed(f"{left} transactions are undecided {SETTLE_S:.0f} s after the last fault")
            if now - nudged > NUDGE_S:
                nudged = now
                for one in self.producers:
                    one.abandon()
                    one.start()
            time.sleep(0.2)
        self._notes.write(Settled(t_us=now_us(), by=self._notes.by))
        until = time.monotonic() + CATCH_UP_S
        caught_up = CaughtUp(self._plan, engines)
        while not caught_up():
            if time.monotonic() > until:
                raise ProcessFailed(f"consumers did not catch up in {CATCH_UP_S:.0f} s")
            time.sleep(0.5)

    def _stop(self) -> None:
        for child in (*self.producers, self.administrator, *self.consumers, *self.watchers):
            child.stop(60)
        self.broker.stop(60)


def is_flat(windows: list[dict[str, float]]) -> bool:
    """Whether nothing grows after the first five minutes.

    Memory: each window is compared with the first of these. Descriptors follow the number of segments, which varies
    by half within minutes because of retention: the second half of the windows is compared with the first.
    """
    later = windows[1:]
    half = len(later) // 2
    first, second = later[:half], later[len(later) - half :]
    return all(window["rss_mib"] <= later[0]["rss_mib"] * GROWTH_MAX for window in later) and (
        sum(window["descriptors"] for window in second) <= sum(window["descriptors"] for window in first) * GROWTH_MAX
    )


if __name__ == "__main__":
    sys.exit(main())
