"""What TLS costs: `python -m tests.bench.tls`. Two brokers, with and without it, under the same load in turns. Prints JSON.

- handshakes: a connection, a small request (the list of topics), the end; one after the other. CPU is the broker's.
- transactions: the load of `halfmq bench tx`, 32 threads on one connection, durability `memory`.
- idle connections: how much resident memory a connection takes that has made one request, and does nothing.

Only ratios of one run are worth something; a machine that does other work makes them noisy, and says so by their spread.
"""

import argparse
import asyncio
import contextlib
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.cpu import cpu_seconds
from tests.support.certificates import Authority
from tests.support.served import Served

from halfmq.bench import load
from halfmq.bench.load import Plan
from halfmq.client.blocking import Connection
from halfmq.model.address import Address, Security, TlsFiles
from halfmq.runtime.interpreter import build
from halfmq.wire.remoting.codes import RequestCode

#: Of a local network at most; large enough that a broker's ticks of CPU time, 10 ms, do not matter.
HANDSHAKES: Final = 400


class Side:
    """One of the brokers."""

    def __init__(self, directory: Path, tls: TlsFiles | None, *options: str) -> None:
        directory.mkdir()
        self.served = Served(directory / "data", directory / "log", "--durability", "memory", *options)
        self.tls = tls
        self.served.start()

    @property
    def process(self) -> int:
        assert self.served.process is not None
        return self.served.process.pid

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.served.port)

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))

    def ask(self) -> Connection:
        """A connection that has made one request."""
        made = Connection.open(self.address, Security(self.tls))
        made.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        return made


def handshakes(side: Side) -> dict[str, float]:
    cpu, began = cpu_seconds(side.process), time.perf_counter()
    for _ in range(HANDSHAKES):
        side.ask().close()
    seconds, cpu = time.perf_counter() - began, cpu_seconds(side.process) - cpu
    return {"a second": HANDSHAKES / seconds, "cpu us": cpu / HANDSHAKES * 1e6}


async def _transactions(side: Side, seconds: float) -> dict[str, float]:
    plan = Plan(seconds=seconds, tls=side.tls)
    connections, counts, finished = await load.connect(plan, *side.address)
    (connection,) = connections
    connection.start()
    await asyncio.sleep(0.3)
    cpu, began = cpu_seconds(side.process), time.perf_counter()
    connection.measuring = True
    await asyncio.sleep(seconds)
    connection.measuring = False
    took, cpu = time.perf_counter() - began, cpu_seconds(side.process) - cpu
    connection.stopping = True
    await asyncio.wait_for(finished.wait(), 30)
    await load.close(connection.transport)
    return {"a second": counts.committed / took, "cpu us": cpu / counts.committed * 1e6}


def transactions(side: Side, seconds: float) -> dict[str, float]:
    return load.run(_transactions(side, seconds))


def idle(side: Side, count: int) -> dict[str, float]:
    with contextlib.ExitStack() as open_ones:
        before = side.resident_kib()
        for _ in range(count):
            open_ones.enter_context(contextlib.closing(side.ask()))
        return {"KiB": (side.resident_kib() - before) / count}


@contextlib.contextmanager
def sides() -> Iterator[dict[str, Side]]:
    with contextlib.ExitStack() as ends:
        work = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-bench-tls-")))
        authority = Authority(work / "certificates")
        server = authority.issue("server")
        made = {"plain": Side(work / "plain", None)}
        ends.callback(made["plain"].served.stop)
        files = TlsFiles(cafile=str(authority.certificate))
        made["tls"] = Side(work / "tls", files, "--tls-cert", str(server.certificate), "--tls-key", str(server.key))
        ends.callback(made["tls"].served.stop)
        yield made


def ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Of each figure: the ratio of TLS to plain, in the median and in each round, and the medians of both."""
    found: dict[str, Any] = {}
    for figure in rounds[0]["tls"]:
        each = [round(one["tls"][figure] / one["plain"][figure], 2) for one in rounds]
        medians = {side: round(statistics.median(one[side][figure] for one in rounds), 1) for side in rounds[0]}
        found[figure] = {"tls / plain": statistics.median(each), "of each round": each, **medians}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load, in each round and for each broker")
    parser.add_argument("--idle", type=int, default=1_000, help="number of idle connections")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, dict[str, float]]]] = {"handshakes": [], "transactions": []}
    with sides() as both:
        # Before anything else: memory that was freed by others would be used again, and hide what a connection takes.
        memory = {name: idle(side, arguments.idle) for name, side in both.items()}
        for number in range(arguments.rounds):
            order = list(both.items())[:: 1 if number % 2 else -1]
            found["handshakes"].append({name: handshakes(side) for name, side in order})
            found["transactions"].append({name: transactions(side, arguments.seconds) for name, side in order})
    print(
        json.dumps(
            {
                "machine": {
                    "python": platform.python_version(),
                    "python_build": str(build()),
                    "system": platform.platform(),
                },
                "rounds": arguments.rounds,
                **{name: ratios(rounds) for name, rounds in found.items()},
                "idle connections": ratios([memory]),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
