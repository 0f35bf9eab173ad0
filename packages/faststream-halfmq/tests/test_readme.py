"""The programs of README.md do what it says."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

README: Final = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
WITHIN_S: Final = 120.0

pytestmark = pytest.mark.slow


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With the programs."""
    for block in blocks():
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block, encoding="utf-8")
    return tmp_path


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "HALFMQ_URL": url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def ran(directory: Path, url: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environment(url), capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own(lines: list[str]) -> list[str]:
    """Without those of the log, which begin with a date."""
    return [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d ", line)]


def test_the_service_bills_what_was_committed_and_nothing_else(directory: Path, halfmq_url: str) -> None:
    (shown,) = [block for block in blocks() if block.startswith("an order of -1 is refused")]
    assert served(directory, halfmq_url) == sorted(shown.splitlines())
    again = shown.replace("order 2", "order 4").replace("order 1", "order 3")
    assert served(directory, halfmq_url) == sorted(again.splitlines()), "the database assigns the ids"


def served(directory: Path, url: str) -> list[str]:
    """What the service prints until it has as many lines as orders, and is ended by Ctrl-C."""
    service = subprocess.Popen(
        [sys.executable, "shop.py"], cwd=directory, env=environment(url), stdout=subprocess.PIPE, text=True
    )
    try:
        assert service.stdout is not None
        said: list[str] = []
        while len(said) < 3:
            said += own([next(service.stdout)])
        service.send_signal(signal.SIGINT)
        rest = own(service.communicate(timeout=WITHIN_S)[0].splitlines())
    finally:
        service.kill()
        service.wait()
    assert rest == []
    assert service.returncode == 0
    return sorted(line.strip() for line in said)


def test_the_tests_pass_in_each_run(directory: Path) -> None:
    for _ in range(2):
        said = ran(directory, "rocketmq://127.0.0.1:1", "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_shop.py")
        assert "2 passed" in said


def test_the_document_has_the_topic(directory: Path) -> None:
    channels = json.loads(ran(directory, "rocketmq://127.0.0.1:1", "document.py"))["channels"]
    assert "order-placed" in [channel["address"] for channel in channels.values()]


def test_every_block_is_run_or_compared() -> None:
    begun = [block.partition("\n")[0] for block in blocks()]
    assert begun == [
        "pip install '.[server,sql]' ./packages/faststream-halfmq aiosqlite",  # test_package
        "# shop.py",
        "an order of -1 is refused",
        "# conftest.py",
        "# test_shop.py",
        "# document.py",
    ]
