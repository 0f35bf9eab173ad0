"""The projects below ``examples/``, as a reader copies them: outside of the repository, with the wheel and what their requirements name,
by the commands of their own pages.

Their tests pass; and what they run is killed between the commit of its database and what it would have told the broker, is started again,
and database and messages agree.
"""

import ast
import contextlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.client import HTTPException
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest

from halfmq import Client
from halfmq.testing import HANDLER_POINTS, TRANSACTION_POINTS
from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT, Block, commands
from tests.documents.shell import running, shell
from tests.documents.test_wheel import built, environment, install, normal
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import PATIENCE_S, wait_until

_HERE: Final = "tests/documents/test_example_projects.py"
#: Project -> its test of a sent message, how many tests it has beside its crash points, and those.
PROJECTS: Final = {
    "script": ("test_an_order_is_announced", 1, TRANSACTION_POINTS),
    "worker": ("test_an_order_that_comes_twice_is_billed_once", 2, HANDLER_POINTS),
    "fastapi-service": ("test_an_order_is_announced", 2, TRANSACTION_POINTS),
    "django-service": ("test_an_order_is_announced", 1, TRANSACTION_POINTS),
}
CONFTEST_LINES_MAX: Final = 5
#: That test plugins of the other projects say, since one environment serves all.
_OF_OTHERS: Final = "ignore::pytest.PytestDeprecationWarning"
#: Package that a file imports -> the extra of halfmq that it needs.
_EXTRAS: Final = {"halfmq.sql": "sql", "halfmq.django": "django", "halfmq.testing": "server"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def folders() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))


def shown(test: str, project: str) -> Block:
    (block,) = [one for one in blocks_of(f"{_HERE}::{test}") if one.page == f"examples/{project}/README.md"]
    return block


def how_to_run(project: str) -> tuple[list[str], str]:
    """(commands that prepare it, the command that runs it), as its page shows them behind the installation, its tests, and the broker."""
    *before, last = commands(shown("test_its_tests_pass", project))
    assert before[:3] == ["pip install CHECKOUT -r requirements.txt", "pytest", "halfmq serve --data data &"]
    return before[3:], last


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the environment of all projects."""
    work = tmp_path_factory.mktemp("installed")
    made = environment(work / "venv")
    wanted = [word for folder in folders() for word in ("-r", folder / "requirements.txt")]
    install(made, built(ROOT, work / "wheel"), *wanted)
    return made


@pytest.fixture
def copied(tmp_path: Path, project: str) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / project, tmp_path / project))


def run_by(python: Path, **settings: str) -> dict[str, str]:
    """The variables of a reader whose environment is active."""
    return {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONUNBUFFERED": "1", **settings}


@pytest.mark.parametrize("project", PROJECTS)
def test_its_tests_pass(project: str, copied: Path, python: Path) -> None:
    sent, others, points = PROJECTS[project]
    (command,) = [one for one in commands(shown("test_its_tests_pass", project)) if one.startswith("pytest")]
    done = subprocess.run(
        ["sh", "-c", f"{command} -W error -W {_OF_OTHERS} --durations=0 -vv --color=no"],
        cwd=copied, env=run_by(python), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"=+ {others + len(points)} passed in ", done.stdout), done.stdout
    took = re.findall(r"^([\d.]+)s (setup|call|teardown) +\S+::(\S+)$", done.stdout, re.MULTILINE)
    announced = sum(float(seconds) for seconds, phase, test in took if phase == "call" and test == sent)
    crashed = sum(float(seconds) for seconds, _, test in took if re.search(r"\[(before|after)-", test))
    print(f"{project}: {sent} {announced:.2f} s, {len(points)} crash points {crashed:.2f} s")


def test_the_conftest_of_each_project_is_short_and_its_requirements_are_complete() -> None:
    assert [folder.name for folder in folders()] == sorted(PROJECTS)
    distributions = packages_distributions()
    for folder in folders():
        lines = (folder / "conftest.py").read_text().splitlines()
        assert len([line for line in lines if line.strip()]) <= CONFTEST_LINES_MAX, folder.name
        wanted = (folder / "requirements.txt").read_text().split()
        halfmq = re.fullmatch(r"halfmq\[([\w,]+)\]", wanted[0])
        assert halfmq
        own = {path.stem for path in folder.iterdir()}
        for module in imports(folder):
            root = module.partition(".")[0]
            extra = _EXTRAS.get(".".join(module.split(".")[:2]))
            assert extra is None or extra in halfmq[1].split(","), module
            brought = {"sqlalchemy": "sql", "django": "django"}.get(root)
            is_known = root in own or root in sys.stdlib_module_names or root == "halfmq"
            assert (
                is_known
                or brought in halfmq[1].split(",")
                or {normal(one) for one in distributions.get(root, [root])} & {*wanted, "pydantic"}
            ), f"{folder.name} imports {module}"


def imports(folder: Path) -> set[str]:
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    soon = ("--check-immunity-ms", "300", "--check-interval-ms", "200", "--check-interval-max-ms", "500")
    served = Served(tmp_path / "data", tmp_path / "broker.log", "--durability", "memory", *soon)
    served.start()
    yield served
    served.stop()


class Reader:
    """Somebody in a directory with an active environment, and a port for what serves there."""

    def __init__(self, directory: Path, python: Path, broker: Served) -> None:
        self.directory = directory
        self.port = free_port()
        self._broker = broker
        self._environment = run_by(
            python,
            HALFMQ_URL=broker.url,
            UVICORN_PORT=str(self.port),
            GUNICORN_CMD_ARGS=f"--bind 127.0.0.1:{self.port}",
        )

    def said(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "out").read_text()
        return ""

    def running(self, command: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """In the background; what it writes is ``said``."""
        return running(["sh", "-c", f"exec {command}"], self.directory, self._environment)

    def run(self, command: str, *statuses: int) -> str:
        """What it prints. ``statuses``: one of them is expected, by default 0."""
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        done = subprocess.run(
            ["sh", "-c", f"exec {command}"], cwd=self.directory, env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE_S * 2, check=False,
        )  # fmt: skip
        assert done.returncode in (statuses or (0,)), done.stdout + done.stderr
        return done.stdout

    def answer(self, path: str) -> Any:
        """Of a web service, from JSON; None: nobody answered, or not with success."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return json.loads(response.read())
        return None

    def ids(self, database: str, statement: str) -> list[int]:
        with contextlib.closing(sqlite3.connect(self.directory / database)) as connection:
            return [number for (number,) in connection.execute(statement)]

    def announced(self) -> list[int]:
        """The orders of which consumers can read."""
        return sorted(json.loads(body)["id"] for body in visible(self._broker, "orders"))

    def halfmq(self, command: str) -> Any:
        """What a command prints as JSON."""
        done = shell(f"halfmq {command} --json", self.directory, environment={"HALFMQ_URL": self._broker.url})
        return json.loads(done.stdout)

    def undecided(self) -> int:
        return len(self.halfmq("tx list")["transactions"])


@pytest.fixture
def reader(copied: Path, python: Path, broker: Served) -> Reader:
    return Reader(copied, python, broker)


#: Web service -> its database, and its table of orders.
_TABLES: Final = {"fastapi-service": ("service.db", "orders"), "django-service": ("shop.db", "shop_order")}
#: Of curl: the server sent nothing; it closed the connection while curl read.
_NO_ANSWER: Final = (52, 56)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here: apt-get install curl")
@pytest.mark.parametrize("project", _TABLES)
def test_a_web_service_is_killed(project: str, reader: Reader) -> None:
    database, orders = _TABLES[project]
    prepare, run = how_to_run(project)
    kill, place = commands(shown("test_a_web_service_is_killed", project))
    for command in prepare:
        reader.run(command)
    with reader.running(run) as service:
        wait_until(lambda: reader.answer("/orders") == [], reader.said, unless=service.poll)
        assert reader.run(place) == "1", reader.said()
    with reader.running(kill.removesuffix(" &")) as service:
        wait_until(lambda: reader.answer("/orders") == [1], reader.said, unless=service.poll)
        reader.run(place, *_NO_ANSWER)
        assert (
            reader.ids(database, f"SELECT id FROM {orders} ORDER BY id"),
            reader.announced(),
            reader.undecided(),
        ) == ([1, 2], [1], 1)
        if project == "fastapi-service":  # of the other one a worker is killed, and its master starts another one
            assert service.wait(PATIENCE_S) == -signal.SIGKILL
    with reader.running(run) as service:
        wait_until(lambda: reader.answer("/orders") == [1, 2], reader.said, unless=service.poll)
        wait_until(lambda: reader.announced() == [1, 2], reader.said, unless=service.poll)
        assert reader.undecided() == 0
        assert reader.run(place) == "3", reader.said()


@pytest.mark.parametrize("project", ["script"])
def test_a_script_is_killed(project: str, reader: Reader) -> None:
    orders = "SELECT id FROM orders ORDER BY id"
    prepare, run = how_to_run(project)
    assert prepare == []
    said = reader.run(run).splitlines()
    assert said[:2] == ["placed: 1", "placed: 2"]
    assert sorted(said[2:]) == ["read: {'id': 1, 'item': 'tea'}", "read: {'id': 2, 'item': 'milk'}"]
    (kill,) = commands(shown("test_a_script_is_killed", project))
    reader.run(kill, -signal.SIGKILL)
    assert (reader.ids("orders.db", orders), reader.announced(), reader.undecided()) == ([1, 2, 3], [1, 2], 1)
    said = reader.run(run).splitlines()
    assert "read: {'id': 3, 'item': 'milk'}" in said
    assert reader.ids("orders.db", orders) == reader.announced() == [1, 2, 3, 4, 5]
    assert reader.undecided() == 0


@pytest.mark.parametrize("project", ["worker"])
def test_a_worker_is_killed(project: str, reader: Reader, broker: Served) -> None:
    invoices = "SELECT order_id FROM invoices ORDER BY order_id"
    _, run = how_to_run(project)
    with Client(broker.url) as mq:
        mq.send("orders", {"id": 7, "item": "tea"})
        (kill,) = commands(shown("test_a_worker_is_killed", project))
        reader.run(kill, -signal.SIGKILL)
        assert reader.ids("billing.db", invoices) == [7], "committed, and not acknowledged"
        with reader.running(run) as worker:
            mq.send("orders", {"id": 8, "item": "milk"})
            wait_until(lambda: reader.ids("billing.db", invoices) == [7, 8], reader.said, unless=worker.poll)
            wait_until(lambda: reader.halfmq("group lag billing")["lag"] == 0, reader.said, unless=worker.poll)
        assert worker.returncode == 0, reader.said()
        assert "Traceback" not in reader.said(), "the second delivery of order 7 is no error"
