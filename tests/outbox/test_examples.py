"""The programs in ``examples/``, as a reader runs them: each against real servers, and killed in the middle."""

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Engine, create_engine, text

from halfmq import Client, Outcome
from tests.documents.pages import ROOT, table
from tests.support.amount import amount, seed_of_commit
from tests.support.served import Served
from tests.unit.relay.targets import TARGETS, Target, fresh_name
from tests.unit.sql.faces import DRIVERS, MARKS, Driver, located

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"
LINES_MAX = 80
#: Of a run that is not killed: it may wait for the lease of a killed relay, and for a killed consumer to leave its group. Seconds.
RUN_MAX_S = 120
KILLS = amount(gate=1, everything=5, variable="HALFMQ_TEST_EXAMPLE_KILLS")
#: Orders of the first run of which consumers are to hear: it places 5, of which the last one is not paid for in the state table; here
#: one has no goods, and the card of another one is refused. The same of TCC: no goods for one, no money for another.
ORDERS = {"state_table": 4, "compensation": 3, "tcc": 3}
#: Database and statement of those orders, and of what the last consumer did because of them.
_ORDERS_OF = {
    "state_table": ("orders", "SELECT id FROM orders WHERE state = 'paid'"),
    "compensation": ("bank", "SELECT id FROM bank WHERE state = 'paid'"),
    "coordinator": ("bank", "SELECT id FROM credits"),
    "tcc": ("orders", "SELECT gid FROM orders"),
}
_EFFECTS_OF = {
    "compensation": ("orders", "SELECT id FROM shop WHERE state = 'paid'"),
    "coordinator": ("invoices", "SELECT id FROM notices"),
    "tcc": ("bank", "SELECT gid FROM bank WHERE state = 'done'"),
}
#: Prepared transactions, which SQLite has not.
_NEEDS_A_SERVER = {"coordinator"}
#: Program -> the fixture of its target; of the others it is a halfmq broker.
_TARGET_OF = {"to_rabbitmq": "rabbit", "to_kafka": "kafka", "to_rocketmq": "rocket_target"}
_MARKS_OF = {one.values[0]: one.marks for one in TARGETS}
_NAMES = ("half_message", "outbox", "fallback", "state_table", "compensation", "coordinator", "tcc", *_TARGET_OF)


def _first_database(name: str) -> str:
    return "postgresql" if name in _NEEDS_A_SERVER else "sqlite"


#: In the gate each on one database.
_ON_EACH_DATABASE = [
    pytest.param(
        name,
        driver,
        id=f"{name}-{driver.name}",
        marks=[
            *MARKS[driver.database],
            *_MARKS_OF.get(_TARGET_OF.get(name, ""), ()),
            *(() if driver.database == _first_database(name) else (pytest.mark.thorough,)),
        ],
    )
    for name in _NAMES
    for driver in DRIVERS
    if not driver.is_async and not (name in _NEEDS_A_SERVER and driver.database == "sqlite")
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("examples")
    served = Served(work / "data", work / "broker.log", "--check-immunity-ms", "100")
    served.start()
    yield served
    assert served.stop() == 0


class Found(NamedTuple):
    """What is in the two databases. ``orders``: those of which consumers are to hear."""

    orders: list[int]
    invoices: list[int]


class Example:
    """A program with its servers and databases, over many runs."""

    def __init__(self, name: str, directory: Path, shop: str, environment: dict[str, str]) -> None:
        self.name = name
        self._directory = directory
        self._engines: dict[str, Engine] = {"orders": create_engine(shop)}
        for other in ("invoices", "stock", "bank"):
            url = f"sqlite:///{directory}/{other}.db" if shop.startswith("sqlite") else shop
            self._engines[other] = create_engine(url)
        urls = {name: engine.url.render_as_string(hide_password=False) for name, engine in self._engines.items()}
        self._environment = {
            **os.environ, **environment, "DATABASE_URL": urls["orders"], "BILLING_DATABASE_URL": urls["invoices"],
            "STOCK_URL": urls["stock"], "BANK_URL": urls["bank"],
            "TOPIC": fresh_name(), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.topic = self._environment["TOPIC"]

    def start(self, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *options, EXAMPLES / f"{self.name}.py"], cwd=self._directory, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *options: str) -> str:
        """What it prints."""
        process = self.start(*options)
        try:
            said, _ = process.communicate(timeout=RUN_MAX_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, said
        return said

    def kill_after(self, seconds: float) -> float | None:
        """SIGKILL. If it ended by itself before: after how many seconds."""
        began = time.monotonic()
        process = self.start()
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None
        assert process.returncode == 0, said
        return time.monotonic() - began

    def found(self) -> Found:
        def ids(where: str, statement: str) -> list[int]:
            with self._engines[where].connect() as connection:
                return sorted(connection.scalars(text(statement)))

        return Found(
            ids(*_ORDERS_OF.get(self.name, ("orders", "SELECT id FROM orders"))),
            ids(*_EFFECTS_OF.get(self.name, ("invoices", "SELECT order_id FROM invoices"))),
        )

    def prepared(self) -> list[str]:
        """The branches that are prepared in its databases."""
        with self._engines["orders"].connect() as connection:
            names = [one if isinstance(one, str) else one.decode() for one in connection.recover_twophase()]
        return [name for name in names if name.startswith(self.topic)]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()


@pytest.fixture
async def example(request: pytest.FixtureRequest, name: str, driver: Driver, tmp_path: Path) -> Iterator[Example]:
    where, database = located(request, driver, tmp_path)
    target: Target | None = request.getfixturevalue(_TARGET_OF[name]) if name in _TARGET_OF else None
    servers = {"HALFMQ_URL": request.getfixturevalue("broker").url} if target is None else target.environment
    made = Example(name, tmp_path, driver.url.format(where=where, name=database), servers)
    if target is not None and name != "to_rabbitmq":  # which declares its queue
        await target.create(made.topic)
    yield made
    made.close()


@pytest.mark.parametrize(("name", "driver"), _ON_EACH_DATABASE)
def test_orders_and_invoices_agree_also_after_kills(example: Example, request: pytest.FixtureRequest) -> None:
    began = time.monotonic()
    said = example.run()
    run_s = time.monotonic() - began
    assert said.endswith(" agree\n"), said
    once = example.found()
    assert (len(once.orders), once.invoices) == (ORDERS.get(example.name, 5), once.orders)
    seed = f"{seed_of_commit()}-{request.node.name}"
    rng = random.Random(seed)
    kills, now = 0, once
    while kills < KILLS:
        after_s = rng.uniform(0.2, 1.0) * run_s
        if (ended_s := example.kill_after(after_s)) is not None:
            run_s = ended_s  # the first run began with cold caches
            continue
        kills += 1
        before, now = now, example.found()
        if now == before:
            run_s *= 1.2  # the machine is busy, and nothing had begun yet
        print(f"{seed}: killed after {after_s:.2f} s: {len(now.orders)} orders, {len(now.invoices)} invoices")
        # A notice may come before the second bank has ended its branch, since the decision is the broker's.
        assert example.name == "coordinator" or set(now.invoices) <= set(now.orders), "an invoice without its order"
    said = example.run()
    assert said.endswith(" agree\n"), said
    at_last = example.found()
    assert at_last.invoices == at_last.orders
    assert len(at_last.orders) > len(once.orders)


_STOPPED_AT_ITS_FIRST_BRANCH = """
import pathlib, runpy, sys, time
from sqlalchemy.engine import TwoPhaseTransaction

prepare = TwoPhaseTransaction.prepare

def wait(branch):
    TwoPhaseTransaction.prepare = prepare
    print("stopped", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    prepare(branch)

TwoPhaseTransaction.prepare = wait
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(("name", "driver"), [one for one in _ON_EACH_DATABASE if one.values[0] == "coordinator"])
def test_a_coordinator_that_another_one_overtook_leaves_no_branch_prepared(
    example: Example, broker: Served, tmp_path: Path
) -> None:
    """The other one looked for branches before this one prepared its own."""
    process = example.start("-c", _STOPPED_AT_ITS_FIRST_BRANCH)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        with Client(broker.url, group="bank") as mq:
            coordinator = mq.coordinator("transfers")
            for left in coordinator.recover():
                coordinator.settle(left.tx_id, Outcome.ROLLBACK)
        (tmp_path / "go").touch()
        said, _ = process.communicate(timeout=RUN_MAX_S)
    finally:
        process.kill()
        process.wait()
    assert "CoordinatorSuperseded" in said
    assert example.prepared() == []
    assert example.run().endswith(" agree\n")


_ANOTHER_ONE_IS_FASTER = """
import os, runpy, sys
from sqlalchemy import Connection, create_engine, text
from halfmq.client.sync import BlockingConsumer

engine = create_engine(os.environ["DATABASE_URL"])
commit, get = Connection.commit_prepared, BlockingConsumer.get

def commit_what_is_ended(connection, name, recover):
    Connection.commit_prepared = commit
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
        other.commit_prepared(name, recover=recover)
    print("a branch is gone")
    connection.commit_prepared(name, recover=recover)

def get_what_is_consumed(consumer, timeout):
    BlockingConsumer.get = get
    for _ in range(5):
        consumer.get(timeout=30).ack()
    with engine.begin() as other:
        other.execute(text("INSERT INTO notices SELECT id FROM credits"))
    print("the notices are there")
    return consumer.get(timeout)

Connection.commit_prepared, BlockingConsumer.get = commit_what_is_ended, get_what_is_consumed
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(("name", "driver"), [one for one in _ON_EACH_DATABASE if one.values[0] == "coordinator"])
def test_a_coordinator_does_not_mind_what_another_one_has_done_in_between(example: Example) -> None:
    """It ends a branch between this one's look and its command, and consumes the message that this one waits for."""
    began = time.monotonic()
    said = example.run("-c", _ANOTHER_ONE_IS_FASTER)
    assert time.monotonic() - began < RUN_MAX_S / 4, "it does not wait for a message that another one has handled"
    assert said == "a branch is gone\nthe notices are there\nbanks and notices agree\n"
    found = example.found()
    assert (len(found.orders), found.invoices, example.prepared()) == (5, found.orders, [])


def test_each_program_is_one_that_is_run_and_listed_and_is_short() -> None:
    programs = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert programs.keys() == set(_NAMES)
    listed = [re.sub(r"\[(\w+)\.py\].*", r"\1", row["program"]) for row in table("examples/README.md", "Programs")]
    assert listed == list(_NAMES)
    for name, program in programs.items():
        assert len(program.splitlines()) <= LINES_MAX, name
        assert not re.search(r"^(?:from|import) (?:examples|tests|\.)", program, re.MULTILINE), f"{name} stands alone"
        assert set(re.findall(r'environ\.get\("(\w+)"', program)) <= set(
            re.findall(r"`([A-Z_]+)`", (EXAMPLES / "README.md").read_text())
        ), name
