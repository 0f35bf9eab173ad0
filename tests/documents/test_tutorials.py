"""docs/tutorials.md, as a reader follows it: each command in its order, in a checkout with a broker."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from demo.postgres_server import PostgresMissing, find_programs

from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT, Block, commands, output, same
from tests.documents.test_outbox_page import broker, follow
from tests.support.ports import free_port
from tests.support.served import Served

__all__ = ["broker"]

pytestmark = pytest.mark.slow

_HERE = "tests/documents/test_tutorials.py"
#: What the programs read; the reader has set nothing but what the page says.
_VARIABLES = ("DATABASE_URL", "BANK_URL", "BILLING_DATABASE_URL", "STOCK_URL", "TOPIC", "HALFMQ_GROUP", "NAMESRV_ADDR")


@pytest.fixture
def checkout(tmp_path: Path, broker: Served, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HALFMQ_URL", broker.url)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def walk(shown: Sequence[Block], directory: Path, *files: str) -> int:
    """Save each program under the next name of ``files``, and run all commands. Returns how many blocks of commands there were."""
    names, steps = iter(files), 0
    for block in shown:
        if block.language == "python":
            (directory / next(names)).write_text(block.text)
        else:
            follow(block, directory)
            steps += 1
    assert not [*names]
    return steps


def test_what_the_reader_does_and_sees(checkout: Path) -> None:
    shown = blocks_of(f"{_HERE}::test_what_the_reader_does_and_sees")
    assert walk(shown, checkout, "die.py") >= 9


@pytest.mark.thorough  # the cancels of each run wait for the time of their order
def test_the_tutorial_of_tcc(checkout: Path) -> None:
    die = blocks_of(f"{_HERE}::test_what_the_reader_does_and_sees")[0]
    shown = blocks_of(f"{_HERE}::test_the_tutorial_of_tcc")
    assert walk([die, *shown], checkout, "die.py", "left.py") == 5


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here: apt-get install curl")
def test_the_reader_kills_a_service(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    monkeypatch.setenv("UVICORN_PORT", port)
    shown = blocks_of(f"{_HERE}::test_the_reader_kills_a_service")
    try:
        walk([one._replace(text=one.text.replace(":8000", f":{port}")) for one in shown], checkout, "agree.py")
    finally:
        with contextlib.suppress(OSError):  # it ends by the last command of the page
            os.kill(int((checkout / "service.pid").read_text()), signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.postgres
def test_the_tutorial_of_coordinators(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        find_programs()
    except PostgresMissing as missing:
        pytest.skip(str(missing))
    start, *shown = blocks_of(f"{_HERE}::test_the_tutorial_of_coordinators")
    (command,) = commands(start)
    program, *arguments = shlex.split(command)
    assert program == "python"
    server = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert same(output(start), line)
        _, *exported = shlex.split(line)
        for one in exported:
            monkeypatch.setenv(*one.split("=", 1))
        assert walk(shown, checkout, "die_deciding.py", "branches.py") == 4
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode == 0
