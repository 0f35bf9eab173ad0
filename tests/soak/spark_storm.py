"""Kill driver, executors and broker of a streaming job at random, and count each row at a consumer.

    python -m tests.soak.spark_storm --kills 100 --seed 1 --directory /tmp/storm

A producer sends numbered messages to topic ``in``, in transactions of 1 to 40, of which it rolls back every tenth. A streaming query
(``spark_job.py``) on two executors reads them, computes a row of each, and writes the rows to topic ``out``. At random moments SIGKILL ends
the driver with all its processes, one executor, one Python worker, or the broker; driver and broker are started again. When all kills have
happened the producer stops, the query reads to the end of ``in``, and every message of ``out`` is read.

Exit status: 0 each committed number is in ``out`` exactly once with its value, and nothing else is; 1 a difference or a part that hangs;
then the directory is kept. The last line is a JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from halfmq.client.outcome import Outcome
from halfmq.client.outgoing import compose
from halfmq.client.sync import Client
from halfmq.client.transaction_block import Transaction
from halfmq.errors import HalfmqError
from tests.soak.processes import CHECKOUT
from tests.support.half_batches import bodies
from tests.support.raw_client import RawClient
from tests.support.served import Served

_QUEUES: Final = 4
#: Between two kills, s.
_PAUSE: Final = (0.2, 5.0)
#: Without progress for so long, something hangs.
_STALL_SECONDS: Final = 240.0
VICTIMS: Final = ("driver", "executor", "worker", "broker")
_CHECK: Final = "storm"


def expected(number: int) -> bytes:
    return b"%d %d" % (number, number * number % 1_000_003)


class Hangs(Exception):
    """No progress; the text says of what."""


class Producer(threading.Thread):
    """Transactions of some numbers, until ``stopping``. What ``decided`` says of a transaction is its local commit."""

    def __init__(self, url: str, rate: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._url, self._rate, self._rng = url, rate, random.Random(seed)
        self.stopping, self.leaving = threading.Event(), threading.Event()
        self.decided: dict[str, Outcome] = {}
        self.committed: set[int] = set()

    def run(self) -> None:
        with Client(self._url, group="storm-producer") as mq:
            mq.add_check(_CHECK, self._check)
            number = 0
            while not self.stopping.wait(0.02):
                count = self._rng.choice((1, 1, 5, 20, 40))
                self._transaction(mq, range(number, number + count))
                number += count
                self.stopping.wait(count / self._rate)
            self.leaving.wait()  # it answers checks to the end

    def _transaction(self, mq: Client, numbers: range) -> None:
        tx_id = mq.new_transaction_id()
        messages = [compose("in", str(number)) for number in numbers]
        try:
            prepared = mq.prepare(messages, tx_id=tx_id, name=_CHECK)
        except HalfmqError:
            self.decided[tx_id] = Outcome.ROLLBACK
            return
        outcome = Outcome.ROLLBACK if self._rng.random() < 0.1 else Outcome.COMMIT
        if outcome is Outcome.COMMIT:
            self.committed.update(numbers)
        self.decided[tx_id] = outcome
        with contextlib.suppress(HalfmqError):  # the check settles it
            mq.finish(prepared, outcome)

    def _check(self, transaction: Transaction) -> Outcome:
        return self.decided.get(transaction.tx_id, Outcome.UNKNOWN)


class Driver:
    """The job, started again whenever it ends."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory = url, directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        shutil.rmtree(self._directory / "spark-local", ignore_errors=True)
        with (self._directory / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.spark_job", self._url, str(self._directory)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(CHECKOUT)},
                cwd=self._directory / "cwd",
            )  # fmt: skip
        self.starts += 1

    def kill(self) -> bool:
        if self._process is None:
            return False
        numbers = [self._process.pid, *(number for number, _, _ in descendants(self._process.pid))]
        running = self._process.poll() is None
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self._process.wait(30)
        self._process = None
        return running

    def kill_part(self, victim: str, rng: random.Random) -> bool:
        """An executor, or a Python worker of one. False: there is none now."""
        if self._process is None:
            return False
        found = descendants(self._process.pid)
        commands = {number: command for number, _, command in found}
        if victim == "executor":
            numbers = [number for number, _, command in found if "CoarseGrainedExecutorBackend" in command]
        else:
            daemon = "pyspark.daemon"
            numbers = [
                number for number, parent, command in found if daemon in command and daemon in commands.get(parent, "")
            ]
        if not numbers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(numbers), signal.SIGKILL)
            return True
        return False


def descendants(process: int) -> list[tuple[int, int, str]]:
    """(id, id of the parent, command line) of all processes below ``process``."""
    found, parents = [], [process]
    while parents:
        parent = parents.pop()
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in map(int, children.read_text().split()):
                    with contextlib.suppress(OSError):
                        found.append((child, parent, Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")))
                        parents.append(child)
    return found


def read_all(port: int, topic: str) -> list[bytes]:
    """Every message that a consumer sees."""

    async def read() -> list[bytes]:
        client = await RawClient.connect(port)
        try:
            return [body for queue in range(_QUEUES) for body in await bodies(client, topic, queue)]
        finally:
            await client.close()

    return asyncio.run(read())


class Storm:
    def __init__(self, directory: Path, kills: int, seed: int, rate: float) -> None:
        self.directory = directory
        (directory / "cwd").mkdir(parents=True)
        self.left, self.rng = kills, random.Random(seed)
        self.broker = Served(
            directory / "data", directory / "broker.log", "--segment-bytes", str(4 << 20),
            "--checkpoint-interval-ms", "2000", "--check-immunity-ms", "2000", "--check-interval-ms", "2000",
        )  # fmt: skip
        url = f"rocketmq://127.0.0.1:{self.broker.name_port}"
        self.producer, self.driver = Producer(url, rate, seed), Driver(url, directory)
        self.kills: Counter[str] = Counter()
        self.next_victim = self.rng.choice(VICTIMS)
        self.started = time.monotonic()

    def batches(self) -> int:
        """The newest batch that is over; -1: none yet."""
        return max((int(path.name) for path in (self.directory / "checkpoint" / "commits").glob("[0-9]*")), default=-1)

    def run(self) -> dict[str, object]:
        self.broker.start()
        try:
            self.producer.start()
            self._kill_all()
            self.producer.stopping.set()
            self._settle()
            return self._compared()
        finally:
            self.producer.leaving.set()
            self.driver.kill()
            self.producer.join(60)
            self.broker.stop()

    def _kill_all(self) -> None:
        seen, moved, batches_at_kill = -1, time.monotonic(), -1
        next_at = 0.0
        while self.left:
            self.driver.keep_running()
            now, batches = time.monotonic(), self.batches()
            if batches != seen:
                seen, moved = batches, now
            if now - moved > _STALL_SECONDS:
                raise Hangs(f"no batch after {seen} for {_STALL_SECONDS:.0f} s")
            if now >= next_at and self._kill(batches > batches_at_kill):
                self.left -= 1
                batches_at_kill, next_at = batches, now + self.rng.uniform(*_PAUSE)
                print(
                    f"{now - self.started:6.0f} s  {sum(self.kills.values())} kills {dict(self.kills)}, batch {batches},"
                    f" {len(self.producer.committed):,} committed",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
            time.sleep(0.05)

    def _kill(self, has_moved: bool) -> bool:
        """Kill who is next, if it is there. The driver's turn waits for a batch, or there would never be one."""
        victim = self.next_victim
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        elif victim == "driver":
            if not has_moved or not self.driver.kill():
                return False
        elif not self.driver.kill_part(victim, self.rng):
            return False
        self.kills[victim] += 1
        self.next_victim = self.rng.choice(VICTIMS)
        return True

    def _settle(self) -> None:
        """Until every transaction is settled, and the query has read what is visible."""
        wanted, seen, moved = len(self.producer.committed), 0, time.monotonic()
        while time.monotonic() - moved < _STALL_SECONDS:
            self.driver.keep_running()
            visible = [len(read_all(self.broker.port, topic)) for topic in ("in", "out")]
            if min(visible) >= wanted:
                break
            if sum(visible) > seen:
                seen, moved = sum(visible), time.monotonic()
            time.sleep(2)
        # What was prepared and must stay invisible would show itself when the query runs on.
        time.sleep(5)
        self.driver.kill()

    def _compared(self) -> dict[str, object]:
        committed = self.producer.committed
        sent, found = Counter(read_all(self.broker.port, "in")), Counter(read_all(self.broker.port, "out"))
        rows = {expected(number) for number in committed}
        return {
            "kills": dict(self.kills),
            "driver_starts": self.driver.starts,
            "batches": self.batches() + 1,
            "seconds": round(time.monotonic() - self.started, 1),
            "committed": len(committed),
            "rolled_back_transactions": sum(one is Outcome.ROLLBACK for one in self.producer.decided.values()),
            "in_wrong": len(sent.keys() ^ {str(number).encode() for number in committed})
            + sum(sent.values())
            - len(sent),
            "out": sum(found.values()),
            "missing": len(rows - found.keys()),
            "phantom": len(found.keys() - rows),
            "duplicated": sum(count > 1 for count in found.values()),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=150, help="messages per second")
    parser.add_argument("--directory", type=Path, required=True, help="must not exist; removed if nothing differs")
    arguments = parser.parse_args()
    storm = Storm(arguments.directory.resolve(), arguments.kills, arguments.seed, arguments.rate)
    try:
        found = storm.run()
    except Hangs as error:
        print(json.dumps({"hangs": str(error), "kills": dict(storm.kills)}))
        return 1
    print(json.dumps({"seed": arguments.seed, **found}))
    if any(found[name] for name in ("in_wrong", "missing", "phantom", "duplicated")):
        return 1
    shutil.rmtree(arguments.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
