"""The fixtures, in projects of users: each test runs pytest in a directory of its own, with the plugins that are named."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow

_PLUGIN: Final = ("-p", "halfmq.testing.pytest_plugin")


def run(directory: Path, text: str, *options: str, status: int = 0) -> str:
    """What pytest says about a file of tests."""
    (directory / "test_service.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", directory, *options],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


_FIXTURES: Final = """
import pytest

addresses = set()

def test_messages(halfmq_client, halfmq_sent, halfmq_url, halfmq_broker):
    addresses.add(halfmq_url)
    assert halfmq_url == halfmq_broker.url
    assert halfmq_client.group == "test"
    halfmq_sent.nothing()
    with halfmq_client.begin() as tx:
        tx.send("orders", {"id": 7})
    assert [message.json() for message in halfmq_sent("orders")] == [{"id": 7}]

def test_a_fresh_view(halfmq_url, halfmq_sent, halfmq_broker):
    addresses.add(halfmq_url)
    assert len(addresses) == 1, "one broker"
    halfmq_sent.nothing()
    assert halfmq_broker.positions() == {}
    halfmq_broker.kill()

def test_it_is_started_again(halfmq_client, halfmq_url, halfmq_sent):
    addresses.add(halfmq_url)
    assert len(addresses) == 1
    halfmq_client.send("orders", "x")
    assert len(halfmq_sent("orders")) == 1

async def test_asynchronous(halfmq_async_client, halfmq_sent):
    await halfmq_async_client.send("orders", "y")
    assert [message.text() for message in halfmq_sent("orders")] == ["y"]
"""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_fixtures_give_each_test_a_fresh_view_of_one_broker(tmp_path: Path, mode: str) -> None:
    text = (
        _FIXTURES.replace("async def test", "@pytest.mark.asyncio\nasync def test") if mode == "strict" else _FIXTURES
    )
    said = run(tmp_path, text, *_PLUGIN, "-p", "pytest_asyncio.plugin", f"--asyncio-mode={mode}", "-p", "no:randomly")
    assert "4 passed" in said


def test_each_worker_of_xdist_has_its_own_broker(tmp_path: Path) -> None:
    text = """
import os, pathlib, time

def say(url):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(url)
    while len(list(pathlib.Path().glob("gw?"))) < 2:  # both workers run one
        time.sleep(0.01)

def test_one(halfmq_client, halfmq_url, halfmq_sent):
    say(halfmq_url)
    halfmq_client.send("orders", "x")
    assert len(halfmq_sent("orders")) == 1

test_other = test_one
"""
    assert "2 passed" in run(tmp_path, text, *_PLUGIN, "-p", "xdist.plugin", "-n", "2")
    assert len({(tmp_path / name).read_text() for name in ("gw0", "gw1")}) == 2


def test_a_project_that_does_not_use_it_loads_nothing_of_it(tmp_path: Path) -> None:
    text = """
import sys

def test_nothing_is_there():
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("halfmq", "msgspec", "sqlalchemy", "pytest_asyncio")}
    assert loaded == {"halfmq", "halfmq.testing", "halfmq.testing.pytest_plugin"}, loaded
"""
    assert "1 passed" in run(tmp_path, text, *_PLUGIN)


def test_what_the_broker_raises_fails_the_test_that_was_running(tmp_path: Path) -> None:
    text = """
def test_breaks(halfmq_broker):
    halfmq_broker._loop.call_soon_threadsafe(lambda: 1 // 0)
    halfmq_broker._loop.call_soon_threadsafe(lambda: None)
    import time
    while not halfmq_broker._problems:
        time.sleep(0.001)

def test_goes_on(halfmq_sent):
    halfmq_sent.nothing()

def test_of_something_else():
    pass
"""
    said = run(tmp_path, text, *_PLUGIN, status=1)
    assert "3 passed, 1 error" in said
    assert re.search(r"ERROR test_service.py::test_breaks - RuntimeError: the broker failed: ZeroDivisionError", said)


def test_settings_and_group_are_the_project_s(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("""
import pytest

@pytest.fixture(scope="session")
def halfmq_settings():
    return {"check_immunity_ms": 1_000}

@pytest.fixture(scope="session")
def halfmq_group():
    return "shop"
""")
    text = """
from halfmq import Outcome

def test_settings(halfmq_client, halfmq_broker):
    halfmq_client.add_check("order", lambda tx: Outcome.ROLLBACK)
    tx = halfmq_client.begin("order")
    tx.send("orders", "x")
    tx.prepare()
    halfmq_client._live().verdicts.left_open(tx.id)
    assert halfmq_broker.undecided() == [("shop", tx.id, 0)]
    halfmq_broker.advance(1.5)
    assert halfmq_broker.undecided() == []
"""
    assert "1 passed" in run(tmp_path, text, *_PLUGIN)
