"""The programs of README.md, docs/database.md and docs/check-history.md, as a reader runs them: in a directory of their own, against a
broker.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine, text

from halfmq import Branch, Client
from tests.documents.blocks import blocks_of, in_test
from tests.documents.pages import ROOT, commands, output, same
from tests.documents.shell import shell
from tests.support.ports import free_port
from tests.support.served import SEGMENT_BYTES, Served
from tests.support.waiting import wait_until

_HERE = "tests/documents/test_programs.py"
#: What an installation from a checkout needs of it.
_INSTALLED = ("src", "pyproject.toml", "README.md")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("documents")
    served = Served(work / "data", work / "broker.log", "--check-immunity-ms", "100")
    served.start()
    yield served
    served.stop()


def printed(program: str, directory: Path, python: Path | str = sys.executable) -> str:
    """What a program prints that is run in ``directory`` and succeeds."""
    (directory / "program.py").write_text(program)
    done = subprocess.run(
        [python, "program.py"], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_program_runs_where_it_was_just_installed(tmp_path: Path) -> None:
    install, program = blocks_of(f"{_HERE}::test_the_first_program_runs_where_it_was_just_installed")
    for name in _INSTALLED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    port, name_port, ports_file = free_port(), free_port(), tmp_path / "ports.json"
    (serve,) = re.findall(r"^halfmq serve .*$", install.text, re.MULTILINE)
    options = f"--port {port} --name-port {name_port} --ports-file {ports_file} --segment-bytes {SEGMENT_BYTES}"
    # The python3 in front is the one that the tests run with; the checkout's own packages are not to be found by accident.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    environment["PIP_NO_COMPILE"] = "1"  # of all packages; what is imported is compiled then
    log = tmp_path / "log.txt"
    with log.open("wb") as said:
        broker = subprocess.Popen(
            ["sh", "-e", "-c", install.text.replace(serve, f"exec {serve} {options}")],
            cwd=tmp_path, stdout=said, stderr=said, env=environment,
        )  # fmt: skip
    try:
        wait_until(ports_file.exists, "listening broker", 240, unless=lambda: broker.poll() and log.read_text())
        shown = re.search(r"print\(message\.json\(\)\) +# (.*) on the first run", program.text)
        assert shown
        said = printed(
            in_test(program.text, f"127.0.0.1:{name_port}", tmp_path), tmp_path, tmp_path / "venv/bin/python"
        )
        assert said == f"{shown[1]}\n"
        again = printed(
            in_test(program.text, f"127.0.0.1:{name_port}", tmp_path), tmp_path, tmp_path / "venv/bin/python"
        )
        assert again == "{'id': 2}\n", "the group of the first run has read the first message"
    finally:
        broker.terminate()
        assert broker.wait(60) == 0, log.read_text()
    with create_engine(f"sqlite:///{tmp_path / 'shop.db'}").connect() as database:
        assert database.execute(text("SELECT count(*) FROM orders")).scalar_one() == 2


#: What docs/database.md takes for granted: an application's own table, its database, its address; and what is to be read at the end.
_APPLICATION = """
import threading
from sqlalchemy import MetaData, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from halfmq import Client
from halfmq.sql import Inbox, MarkerTable

url = "rocketmq://127.0.0.1:9876"
engine = create_engine("sqlite:///shop.db")

class Base(DeclarativeBase): ...
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    def to_event(self):
        return {"id": self.id, "sku": self.sku}
class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]

order = Order(sku="tea")
Base.metadata.create_all(engine)
"""
_CONSUMER = """
with Client(url, group="orders") as mq, mq.consumer("order-created", group="billing", start="earliest") as messages:
    message = next(iter(messages))
    for _ in range(2):
        with Session(engine) as session:
"""
_RESULT = """
with Session(engine) as session:
    print([row.order_id for row in session.scalars(select(Invoice))], session.scalar(select(func.count()).select_from(markers.table)))
"""


@pytest.mark.slow
def test_the_database_page_is_one_program(tmp_path: Path, broker: Served) -> None:
    """The parts of the page in its order. The second delivery of the message leaves nothing in the database."""
    block, prune, inbox = blocks_of(f"{_HERE}::test_the_database_page_is_one_program")
    made, _, in_consumer = inbox.text.partition("\n\n")
    program = [
        _APPLICATION,
        block.text,
        "with Client(url, group='orders') as mq, Session(engine) as session:",
        indented(prune.text, 4),
        made,
        _CONSUMER,
        indented(in_consumer, 12),
        _RESULT,
    ]
    said = printed(in_test("\n".join(program), f"127.0.0.1:{broker.name_port}", tmp_path), tmp_path)
    assert said == "[1] 3\n", "one invoice; the marker, and the two rows about the table"


def test_the_coordinator_page_is_one_program(tmp_path: Path, broker: Served) -> None:
    """It has no databases, so that there are no branches to end."""
    (block,) = blocks_of(f"{_HERE}::test_the_coordinator_page_is_one_program")
    program = [
        "from halfmq import Client, Outcome, Xid, compose",
        "def end_branches(): ...",
        f"with Client('rocketmq://127.0.0.1:{broker.name_port}', group='bank') as mq:",
        indented(block.text, 4),
        "    print(coordinator.outcome(prepared.tx_id), prepared.tx_id == Xid(1, b'transfer-7', b'halfmq').tx_id)",
    ]
    assert printed("\n".join(program), tmp_path) == "COMMITTED True\n"


def test_the_page_of_requests_is_one_program(tmp_path: Path, broker: Served) -> None:
    (block,) = blocks_of(f"{_HERE}::test_the_page_of_requests_is_one_program")
    program = in_test(block.text, f"127.0.0.1:{broker.name_port}", tmp_path)
    assert printed(program, tmp_path) == "{'article': 7, 'price': 20}\n"


@pytest.mark.slow
def test_the_page_of_traces_is_one_program(tmp_path: Path, broker: Served) -> None:
    program, output = blocks_of(f"{_HERE}::test_the_page_of_traces_is_one_program")
    said = printed(in_test(program.text, f"127.0.0.1:{broker.name_port}", tmp_path), tmp_path)
    assert said == output.text


@pytest.mark.slow
def test_cancels_of_a_lost_broker_are_taken_out(tmp_path: Path, broker: Served) -> None:
    """One waits in the retry queue, as those that a participant puts off. Another one is of a broker that lives, and is kept."""
    (block,) = blocks_of(f"{_HERE}::test_cancels_of_a_lost_broker_are_taken_out")
    with Client(broker.url, group="shop") as mq, mq.consumer("stock-cancel", group="stock") as messages:
        for gid, name in (("G1", "broker-a"), ("G2", "broker-b")):
            mq.send("stock-cancel", b"7", properties=Branch(gid, "shop", "1", "cancel", name, 0).properties())
        for _ in range(2):
            message = messages.get(timeout=30)
            assert message is not None
            message.retry(delay=1)
    program = in_test(block.text, f"127.0.0.1:{broker.name_port}", tmp_path)
    assert "timeout=90" in program
    assert printed(program.replace("timeout=90", "timeout=3"), tmp_path) == "ended by hand: G1 1\n"
    again = printed(program.replace("timeout=90", "timeout=1"), tmp_path)
    assert again == "", "it was taken out"


#: What the page has before: the barrier's block of the participant, and addresses.
_TRY: Final = """
import json, threading, urllib.error, urllib.request, uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from halfmq import Branch, BranchRefused

api, reserved = FastAPI(), []

def reserve(branch, body):
    if body["article"] == 9:
        raise BranchRefused("there are no nine")
    reserved.append((branch.gid, branch.op, body["article"]))
"""
_TRIED: Final = """
server = uvicorn.Server(uvicorn.Config(api, port=%d, log_level="error"))
serving = threading.Thread(target=server.run)
serving.start()
while not server.started:
    pass
stock = "http://127.0.0.1:%d"
try_(Branch("G1", "shop", "1", "try", "b", 0), {"article": 7})
try:
    try_(Branch("G2", "shop", "1", "try", "b", 0), {"article": 9})
except urllib.error.HTTPError as error:
    print(reserved, error.code)
server.should_exit = True
serving.join()
"""


@pytest.mark.slow
def test_a_try_over_http(tmp_path: Path) -> None:
    (block,) = blocks_of(f"{_HERE}::test_a_try_over_http")
    port = free_port()
    assert printed(f"{_TRY}\n{block.text}\n{_TRIED % (port, port)}", tmp_path) == "[('G1', 'try', 7)] 409\n"


#: What the service of docs/database.md takes for granted.
_SERVICE = """
import asyncio
from typing import Annotated
from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from halfmq import App, AsyncClient, HalfmqError, Message
from halfmq.sql import MarkerTable

database_url = "sqlite+aiosqlite:///shop.db"

class Base(DeclarativeBase): ...
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
class NewOrder(BaseModel):
    sku: str
    def to_row(self):
        return Order(sku=self.sku)

markers = MarkerTable(Base.metadata)

async def create_tables():
    made = create_async_engine(database_url)
    async with made.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await made.dispose()
asyncio.run(create_tables())
"""


@contextmanager
def served_by_the_database_page(directory: Path, url: str) -> Iterator[Callable[..., str]]:
    """Its service, with a broker's address; gives what it answers to GET, or with a body to POST."""
    (block,) = blocks_of(f"{_HERE}::test_the_web_service_of_the_database_page_serves")
    (directory / "service.py").write_text(_SERVICE + block.text)
    port, log = free_port(), directory / "log.txt"
    with log.open("wb") as said:
        service = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "service:api", "--port", str(port)],
            cwd=directory, stdout=said, stderr=said, env=os.environ | {"HALFMQ_URL": url},
        )  # fmt: skip

    def answer(path: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode()}"
        except OSError as error:
            return repr(error)

    try:
        wait_until(
            lambda: "URLError" not in answer("/ready"),
            "service",
            unless=lambda: service.poll() is not None and log.read_text(),
        )
        yield answer
    finally:
        service.terminate()
        service.wait(60)


_NEW_ORDER: Final = b'{"sku":"tea"}'


@pytest.mark.slow
def test_the_web_service_of_the_database_page_serves(tmp_path: Path, broker: Served) -> None:
    with served_by_the_database_page(tmp_path, broker.url) as answer:
        wait_until(lambda: answer("/ready") == "true", (tmp_path / "log.txt").read_text)
        assert answer("/orders", _NEW_ORDER) == "1", (tmp_path / "log.txt").read_text()
    with (
        Client(broker.url, group="reader") as mq,
        mq.consumer("order-created", group="web", start="earliest") as messages,
    ):
        # The page's other program has sent to the topic, too.
        assert next(message for message in messages if message.json() == {"id": 1}).key == "1"


@pytest.mark.slow
def test_the_web_service_of_the_database_page_answers_while_the_broker_is_away(tmp_path: Path) -> None:
    with served_by_the_database_page(tmp_path, f"rocketmq://127.0.0.1:{free_port()}") as answer:
        assert answer("/ready") == "503: false"
        assert answer("/orders", _NEW_ORDER) == "503: try again later", (tmp_path / "log.txt").read_text()


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


_RECORDING = """
from pathlib import Path
Path("history").mkdir()
tx_id, message_id = "T1", "M1"
"""


@pytest.mark.slow
def test_a_history_is_recorded_and_checked(tmp_path: Path) -> None:
    """The recording is run as it stands. What the command prints is compared but for its figures, on the log of an empty store."""
    shown, recording = blocks_of(f"{_HERE}::test_a_history_is_recorded_and_checked")
    printed(_RECORDING + recording.text, tmp_path)
    recorded = tmp_path / "history" / "shop-1.jsonl"
    assert [json.loads(line)["e"] for line in recorded.read_text().splitlines()] == ["began", "half", "answered"]
    recorded.write_text(recorded.read_text().partition("\n")[0] + "\n")
    (command,) = commands(shown)
    store = tmp_path / "var" / "lib" / "halfmq"
    store.mkdir(parents=True)
    broker = Served(store, tmp_path / "log.txt")
    broker.start()
    assert broker.stop() == 0
    said = shell(f"{in_test(command, '', tmp_path)} --allow-empty", tmp_path).stdout
    head, title, *rows, last = [line for line in output(shown).splitlines() if line.strip() not in ("", "...")]
    assert same(f"{head.partition('faults')[0]}faults: ... {title} ...", said.replace("nothing to check: ", "")), said
    for row in rows:
        promise, violation, found, _, what = re.split(r" {2,}", row.strip())[:5]
        pattern = rf"{promise} +{violation} +{found} +[-\d,]+ +(nothing to check: )?{re.escape(what.removeprefix('nothing to check: '))}\n"
        assert re.search(pattern, said), (row, said)
    assert (last, "clean" in said or "nothing to check" in said) == ("clean", True)


@pytest.mark.slow
def test_the_example_of_a_history_has_the_violation_that_is_shown(tmp_path: Path) -> None:
    history, violation = blocks_of(f"{_HERE}::test_the_example_of_a_history_has_the_violation_that_is_shown")
    (tmp_path / "example.jsonl").write_text(history.text)
    done = shell("halfmq check-history example.jsonl", tmp_path, status=1)
    assert same(f"...{violation.text}...", done.stdout), done.stdout
