"""What users cost: `python -m tests.bench.users`. Brokers without and with users, under the same load in turns. Prints JSON.

The load is that of `halfmq bench tx`: 32 threads on one connection, durability `memory`, without TLS.

- plain: a broker without users
- users: the connection logs in once, as our clients do
- signed: each request is signed, as RocketMQ's clients do; the load signs in its own process, so its CPU is not the broker's

Only ratios of one run are worth something. CPU is the broker's.
"""

import argparse
import asyncio
import contextlib
import json
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.cpu import cpu_seconds
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.users import log_in

from halfmq.bench import load
from halfmq.bench.load import LoadConnection, Plan, split
from halfmq.broker.first_token import NAME
from halfmq.broker.services.users import FIRST
from halfmq.client.connector import TcpConnector
from halfmq.model.address import Address
from halfmq.runtime.interpreter import build
from halfmq.wire.remoting.acl import sign_frame
from halfmq.wire.remoting.codes import HMQ_LOGIN, HMQ_SET_USER, ResponseCode
from halfmq.wire.remoting.header import encode_request
from halfmq.wire.remoting.users import CHANGE, NEW_SECRET, NONCE_BYTES, UserChange, client_proof

USER = "bench"
SIDES = ("plain", "users", "signed")


class _Signing:
    """A transport that signs each frame."""

    def __init__(self, transport: asyncio.Transport, secret: bytes) -> None:
        self._transport = transport
        self._secret = secret

    def write(self, data: bytes) -> None:
        self._transport.write(sign_frame(data, USER, self._secret))

    def abort(self) -> None:
        self._transport.abort()


class UserConnection(LoadConnection):
    """A connection of the load that says who it is."""

    def __init__(self, plan: Plan, done: Any, counts: load.Counts, secret: str, side: str) -> None:
        super().__init__(plan, 0, plan.threads, counts, done)
        self._secret = secret.encode()
        self._side = side
        self.is_ready = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        if self._side == "users":
            self.transport = transport
            transport.write(encode_request(HMQ_LOGIN, 1, {"user": USER}))
            return
        super().connection_made(_Signing(transport, self._secret) if self._side == "signed" else transport)
        self.is_ready.set()

    def data_received(self, data: bytes) -> None:
        if self.is_ready.is_set():
            super().data_received(data)
            return
        (answer, *_), _ = split(data)
        assert answer.code == 0, answer
        fields = answer.extFields or {}
        if fields["nonce"]:
            mine = secrets.token_hex(NONCE_BYTES)
            proof = client_proof(USER, self._secret, fields["nonce"], mine)
            self.transport.write(encode_request(HMQ_LOGIN, 2, {"user": USER, "nonce": mine, "proof": proof}))
        else:
            super().connection_made(self.transport)
            self.is_ready.set()


class Side:
    """One of the brokers."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir()
        self.name = name
        options = ("--secrets-key-file", str(directory / "key")) if name != "plain" else ()
        self.served = Served(directory / "data", directory / "log", "--durability", "memory", *options)
        self.served.start()
        self.secret = "" if name == "plain" else asyncio.run(self._add())

    async def _add(self) -> str:
        first = await RawClient.connect(self.served.port)
        await log_in(first, FIRST, (self.served.data / NAME).read_text().strip())
        secret = ""
        for user, permissions in (("root", ["administer:*"]), (USER, ["send:topic:BenchTx", "send:group:bench"])):
            body = CHANGE.encode(UserChange(user, True, permissions=permissions))
            answer = await first.ask(HMQ_SET_USER, {}, body)
            assert answer.code == ResponseCode.SUCCESS, answer
            secret = NEW_SECRET.decode(answer.body).secret
            if user == "root":  # the first one is gone now
                await first.close()
                first = await RawClient.connect(self.served.port)
                await log_in(first, user, secret)
        await first.close()
        return secret

    async def transactions(self, seconds: float) -> dict[str, float]:
        assert self.served.process is not None
        process = self.served.process.pid
        counts, finished = load.Counts(), asyncio.Event()
        connection = UserConnection(Plan(seconds=seconds), finished.set, counts, self.secret, self.name)
        await TcpConnector(None).connect(Address("127.0.0.1", self.served.port), lambda: connection)
        await connection.is_ready.wait()
        await asyncio.sleep(0.2)
        connection.start()
        await asyncio.sleep(0.3)
        cpu, began = cpu_seconds(process), time.perf_counter()
        connection.measuring = True
        await asyncio.sleep(seconds)
        connection.measuring = False
        took, cpu = time.perf_counter() - began, cpu_seconds(process) - cpu
        connection.stopping = True
        await asyncio.wait_for(finished.wait(), 30)
        await load.close(connection.transport)
        assert not counts.refused, counts.refusals
        return {"a second": counts.committed / took, "cpu us": cpu / counts.committed * 1e6}


@contextlib.contextmanager
def sides() -> Iterator[list[Side]]:
    with contextlib.ExitStack() as ends:
        work = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-bench-users-")))
        made = []
        for name in SIDES:
            made.append(Side(work / name, name))
            ends.callback(made[-1].served.stop)
        yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load, in each round and for each broker")
    arguments = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    with sides() as made:
        for number in range(arguments.rounds):
            order = made[:: 1 if number % 2 else -1]
            rounds.append({side.name: load.run(side.transactions(arguments.seconds)) for side in order})
    found: dict[str, Any] = {}
    for figure in ("a second", "cpu us"):
        medians = {name: round(statistics.median(one[name][figure] for one in rounds), 1) for name in SIDES}
        ratios = {
            f"{name} / plain": {
                "median": round(statistics.median(one[name][figure] / one["plain"][figure] for one in rounds), 3),
                "of each round": [round(one[name][figure] / one["plain"][figure], 3) for one in rounds],
            }
            for name in SIDES[1:]
        }
        found[figure] = {**medians, **ratios}
    machine = {"python": platform.python_version(), "python_build": str(build()), "system": platform.platform()}
    print(json.dumps({"machine": machine, "rounds": arguments.rounds, **found}, indent=1))


if __name__ == "__main__":
    main()
