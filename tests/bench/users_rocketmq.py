"""What signed requests and TLS cost halfmq, and what they cost Apache RocketMQ: `python -m tests.bench.users_rocketmq`. Prints JSON.

Six brokers, three of each product, under the same load in turns: 32 threads on one connection, 1 KiB, a half message and its commit. The
commit is acknowledged: one that is not may still wait in RocketMQ's executor when it is counted. RocketMQ flushes asynchronously
(ASYNC_FLUSH), and halfmq has durability `memory`.

- plain: without users, without TLS
- signed: each request is signed, by a user who may send to one topic and nothing else. RocketMQ: access control 2.0, with authorization
- tls: TLS alone, the broker has a certificate and the client none. RocketMQ: mode `enforcing`

The processes of the other brokers are stopped (SIGSTOP) meanwhile: RocketMQ's need a part of a core while they are idle. Each broker has
load for `--warm-up` seconds before the first round, in which a JVM compiles, and for LEAD_S at the start of each turn. CPU is that of the
broker's process.

Only ratios of one run are worth something. The load runs on the same machine, in one process on one core, and signs or encrypts itself.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.bench import tls, users
from tests.bench.turns import Figures, Round, SignedConnection, compared, machine, turn
from tests.compat.stock_broker import StockBroker, access_control
from tests.compat.test_tls import options, required, trusting
from tests.compat.toolchain import VERSIONS
from tests.support.certificates import Authority
from tests.support.ports import HOST
from tests.support.raw_client import RawClient
from tests.support.users import ADMINISTRATOR, signed

from halfmq.bench import load
from halfmq.bench.load import LoadConnection, Plan
from halfmq.model.address import TlsFiles
from halfmq.wire.remoting.codes import ResponseCode

#: The newest one.
VERSION: Final = VERSIONS[-1]
PRODUCTS: Final = ("halfmq", "rocketmq")
KINDS: Final = ("plain", "signed", "tls")
#: Load before the measured seconds of each turn: a broker that was stopped does then what became due meanwhile.
LEAD_S: Final = 1.0
#: RocketMQ's request codes.
_CREATE_USER, _CREATE_ACL = 3001, 3006


@dataclass
class Side:
    """One of the brokers."""

    name: str
    port: int
    #: The broker's.
    process: int
    tls: TlsFiles | None = None
    make: load.Make = LoadConnection
    #: Beside the broker: its name server.
    others: list[int] = field(default_factory=list)
    cipher: Any = None

    def stop(self) -> None:
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for process in (self.process, *self.others):
            os.kill(process, number)

    def transactions(self, seconds: float) -> Figures:
        """One turn, in which the other sides have to be stopped."""
        os.sync()  # else the system would write in this turn what the broker of the turn before has left
        self.go_on()
        try:
            return load.run(self._transactions(seconds))
        finally:
            self.stop()

    async def _transactions(self, seconds: float) -> Figures:
        plan = Plan(acked_end=True, end_names_topic=True, tls=self.tls)
        (connection,), _, finished = await load.connect(plan, HOST, self.port, self.make)
        if self.tls:
            self.cipher = connection.transport.get_extra_info("cipher")
        return await turn(connection, finished, self.process, seconds, LEAD_S)


def halfmq_sides(work: Path, authority: Authority, ends: contextlib.ExitStack) -> Iterator[Side]:
    for kind in ("plain", "signed"):
        made = users.Side(work / f"halfmq-{kind}", kind)
        ends.callback(made.served.stop)
        assert made.served.process is not None
        yield Side(f"halfmq {kind}", made.served.port, made.served.process.pid, make=made.make)
    files = TlsFiles(cafile=str(authority.certificate))
    with_tls = tls.Side(work / "halfmq-tls", files, *required(authority.issue("halfmq")))
    ends.callback(with_tls.served.stop)
    yield Side("halfmq tls", with_tls.served.port, with_tls.process, files)


def rocketmq_sides(work: Path, authority: Authority, ends: contextlib.ExitStack) -> Iterator[Side]:
    def start(kind: str, **more: Any) -> tuple[StockBroker, Side]:
        directory = work / f"rocketmq-{kind}"
        directory.mkdir()
        stock = StockBroker(VERSION, directory, is_measured=True, flushDiskType="ASYNC_FLUSH", **more)
        ends.enter_context(stock)
        names, broker = stock.processes
        return stock, Side(f"rocketmq {kind}", stock.broker_port, broker, more.get("tls"), others=[names])

    yield start("plain")[1]
    secret = "of an administrator"
    stock, side = start("signed", **access_control(ADMINISTRATOR, secret))
    side.make = partial(SignedConnection, user=users.USER, secret=asyncio.run(_add(stock.broker_port, secret)))
    yield side
    server = authority.issue("rocketmq")
    own = {"tls.server.certPath": str(server.certificate), "tls.server.keyPath": str(server.key)}
    jvm = ("-Dtls.server.mode=enforcing", *options(trusting(authority) | own))
    yield start("tls", options=jvm, tls=TlsFiles(cafile=str(authority.certificate)))[1]


async def _add(port: int, administrator_secret: str) -> str:
    """Make the user of the load, who may send to its topic; the secret."""
    secret = "of the load's user"
    user = {"username": users.USER, "password": secret, "userType": "Normal", "userStatus": "enable"}
    entry = {"resource": f"Topic:{Plan.topic}", "actions": ["Pub"], "decision": "Allow"}
    rights = {"subject": f"User:{users.USER}", "policies": [{"policyType": "CUSTOM", "entries": [entry]}]}
    client = await RawClient.connect(port)
    for code, ext, what in (
        (_CREATE_USER, {"username": users.USER}, user),
        (_CREATE_ACL, {"subject": rights["subject"]}, rights),
    ):
        body = json.dumps(what).encode()
        answer = await client.ask(code, signed(ext, body, ADMINISTRATOR, administrator_secret), body)
        assert answer.code == ResponseCode.SUCCESS, answer
    await client.close()
    return secret


@contextlib.contextmanager
def sides() -> Iterator[list[Side]]:
    """All six, stopped."""
    with contextlib.ExitStack() as ends:
        work = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-bench-users-rocketmq-")))
        authority = Authority(work / "certificates")
        made: list[Side] = []
        for product in (halfmq_sides, rocketmq_sides):
            for side in product(work, authority, ends):
                ends.callback(side.go_on)  # a stopped process does not end on SIGTERM
                side.stop()
                made.append(side)
        yield made


def java_version() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return said.stderr.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of measured load, in each round and for each broker"
    )
    parser.add_argument(
        "--warm-up", type=float, default=30.0, help="seconds of load of each broker before the first round"
    )
    arguments = parser.parse_args()
    began = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "load before": os.getloadavg()}
    rounds: list[Round] = []
    with sides() as made:
        for side in made:
            side.transactions(arguments.warm_up)
            print(f"{side.name}: warm", file=sys.stderr)
        for number in range(arguments.rounds):
            order = made[:: 1 if number % 2 else -1]
            rounds.append({side.name: side.transactions(arguments.seconds) for side in order})
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    pairs = [(f"{product} {kind}", f"{product} plain") for product in PRODUCTS for kind in KINDS[1:]]
    pairs += [(f"halfmq {kind}", f"rocketmq {kind}") for kind in KINDS]
    found = {
        **began,
        "load after": os.getloadavg(),
        "machine": {**machine(), "java": java_version()},
        "rocketmq": VERSION,
        "ciphers": {side.name: side.cipher for side in made if side.cipher},
        "warm-up seconds of each": arguments.warm_up,
        "seconds of load before each measurement": LEAD_S,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        **compared(rounds, pairs),
        "each round": [{name: {what: round(value, 3) for what, value in one.items()} for name, one in each.items()} for each in rounds],
    }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
