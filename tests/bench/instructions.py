"""Instructions of the broker for each committed transaction: `python -m tests.bench.instructions`, which needs valgrind.

Counted by callgrind, so that a noisy machine gives the same figure. 32 transactions are open at a time on one connection,
at durability `memory`; what came in one read is one turn. What the clients send is recorded once, from the load of
`halfmq bench tx`, and replayed to a broker that runs under callgrind: the load itself is not counted. Two replays, one longer
than the other, take the start away. ``--user``: the connection is a user's, in a broker with users.
``--metrics``: the broker has an HTTP port, and counts for ``/metrics``.
"""

import argparse
import asyncio
import gc
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from halfmq import limits
from halfmq.bench.load import Counts, LoadConnection, Plan
from halfmq.broker.broker import Broker
from halfmq.broker.config import BrokerConfig
from halfmq.broker.remoting.gateway import Connection
from halfmq.core.commands import SetUser
from halfmq.model.users import User
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.store import Durability

THREADS = 32
#: Reads of 32 requests and more: the first fill caches, and let layouts be learned.
FEW_TURNS = 10
MANY_TURNS = 110
_CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")


class _Wire(asyncio.Transport):
    """Hands what is written in one turn to the other side in one read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, give: Callable[[bytes], None]) -> None:
        super().__init__()
        self._loop = loop
        self._give = give
        self._written: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else default

    def write(self, data: Any) -> None:
        if not self._written:
            self._loop.call_soon(self._hand_over)
        self._written.append(bytes(data))

    def _hand_over(self) -> None:
        data, self._written = b"".join(self._written), []
        self._give(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    abort = close


async def _broker(directory: Path, *, has_users: bool, has_metrics: bool = False) -> Broker:
    # No clock decides where a turn ends, or when indexes are written.
    for bound in ("INTAKE_TURN_S", "INTAKE_ALL_TURN_S", "SEQUENCER_TURN_S", "INDEX_WAIT_S"):
        setattr(limits, bound, 1e6)
    config = BrokerConfig(
        data=directory, port=0, name_port=0, vip_channel=False, durability=Durability.MEMORY, segment_bytes=1 << 28,
        secrets_key_file=directory.with_name(f"{directory.name}.key") if has_users else None,
        http_port=0 if has_metrics else None,
    )  # fmt: skip
    broker = Broker(config, RealDisk(), SystemClock(), SystemEntropy(), asyncio.get_running_loop())
    await broker.start()
    broker._maintenance.stop()  # it works by the clock, so a slower run would count more of it
    gc.collect()  # as ``broker.process``: what a start made, and the modules that it imported, are not traversed again and again
    gc.freeze()
    return broker


def _connection(broker: Broker) -> Connection:
    """One that has logged in, if the broker has users."""
    connection = broker._gateway.connection(broker._peers.next_number())
    if broker._users is not None:
        plan = Plan()
        user = User((), "", (f"send:topic:{plan.topic}", f"send:group:{plan.group}", "administer:broker"))
        broker._sequencer.submit(SetUser("bench", user, True, None), lambda _, reply: None)
        connection.become(broker._users._know("bench", user))
        connection.logged_in()
    return connection


async def record(directory: Path, *, has_users: bool) -> list[bytes]:
    """What a broker reads, read by read."""
    loop = asyncio.get_running_loop()
    broker = await _broker(directory, has_users=has_users)
    reads: list[bytes] = []
    ended = asyncio.Event()
    plan = Plan(threads=THREADS, transactions_max=THREADS * MANY_TURNS, seconds=1)
    load = LoadConnection(plan, 0, THREADS, Counts(), ended.set)
    connection = _connection(broker)

    def read(data: bytes) -> None:
        reads.append(data)
        connection.data_received(data)

    connection.connection_made(_Wire(loop, load.data_received))
    load.connection_made(_Wire(loop, read))
    await asyncio.sleep(0.05)
    load.start()
    await ended.wait()
    await asyncio.sleep(0.05)  # the last verdicts are one-way
    broker.close()
    return reads


async def replay(directory: Path, reads: list[bytes], *, has_users: bool, has_metrics: bool) -> int:
    """Gives a broker ``reads``, one turn each; returns how many transactions were committed."""
    broker = await _broker(directory, has_users=has_users, has_metrics=has_metrics)
    connection = _connection(broker)
    connection.connection_made(_Wire(asyncio.get_running_loop(), lambda data: None))
    for data in reads:
        connection.data_received(data)
        while not broker._sequencer.idle:
            await asyncio.sleep(0)
    return sum(len(group.settled) for group in broker._sequencer.view.producer_groups.values())


def ran(arguments: Sequence[object], under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """This program in a process of its own, since it changes ``limits``."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled in one process and not in the other would count
    command = [*under, sys.executable, "-m", "tests.bench.instructions", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2_000:]}")
    return done


def counted(turns: int, reads: Path, directory: Path, options: Sequence[str]) -> tuple[int, int]:
    """(instructions, committed transactions) of a process that replays the first ``turns`` of ``reads``."""
    done = ran(["--replay", reads, "--turns", turns, "--directory", directory, *options], _CALLGRIND)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1]), int(done.stdout)


def measure(*, has_users: bool = False, has_metrics: bool = False) -> dict[str, Any]:
    """``instructions`` of the broker for each committed transaction."""
    options = [*(["--user"] if has_users else ()), *(["--metrics"] if has_metrics else ())]
    if shutil.which("valgrind") is None:
        raise SystemExit(
            "valgrind counts the instructions and is missing. On Debian or Ubuntu: apt-get install valgrind"
        )
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        reads = directory / "reads"
        ran(["--record", reads, "--directory", directory / "recorded", *options])
        ran(["--replay", reads, "--turns", 1, "--directory", directory / "compiled", *options])
        with ThreadPoolExecutor(2) as both:
            few, many = both.map(
                lambda turns: counted(turns, reads, directory / str(turns), options), (FEW_TURNS, MANY_TURNS)
            )
    transactions = many[1] - few[1]
    return {
        "transactions": transactions,
        "transactions_of_a_turn": transactions / (MANY_TURNS - FEW_TURNS),
        "instructions": round((many[0] - few[0]) / transactions),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--user", action="store_true", help="the connection is a user's")
    parser.add_argument("--metrics", action="store_true", help="the broker has an HTTP port, and counts")
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record is not None:
        arguments.record.write_bytes(pickle.dumps(asyncio.run(record(arguments.directory, has_users=arguments.user))))
        return
    if arguments.replay is None:
        print(json.dumps(measure(has_users=arguments.user, has_metrics=arguments.metrics)))
        return
    reads = pickle.loads(arguments.replay.read_bytes())
    replayed = replay(
        arguments.directory, reads[: arguments.turns], has_users=arguments.user, has_metrics=arguments.metrics
    )
    print(asyncio.run(replayed), flush=True)
    os._exit(0)  # to end in order costs more the more there is


if __name__ == "__main__":
    main()
