"""`manage.py halfmq_checks`: settles what killed processes have left, in each database, and ends by a signal."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.django.conftest import place_of
from tests.django.project import Project, undecided
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    def named(name: str) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        return place_of("sqlite", request, tmp_path / name)

    return {name: named(name) for name in ("default", "other")}


@contextmanager
def running(project: Project) -> Iterator["subprocess.Popen[str]"]:
    """The command, once it says that it answers."""
    process = project.run("halfmq_checks")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "answering checks of shop from default, other\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def ended_by(process: "subprocess.Popen[str]", number: int) -> int:
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert said == ""
    return process.returncode


def test_it_settles_what_killed_processes_have_left(served: Served, databases: dict[str, Any], tmp_path: Path) -> None:
    project = Project(databases, served.url, tmp_path / "log", SHOP_ANSWER_CHECKS="0")
    for using in databases:
        project.manage("migrate", "--verbosity", "0", "--database", using)
        project.place_and_die("before-local-commit", "lost", using)
        project.place_and_die("after-local-commit", "kept", using)
    assert len(undecided(served)) == 4
    assert visible(served, "orders") == []
    with running(project) as process:
        wait_until(lambda: not undecided(served), "every transaction is settled")
        assert ended_by(process, signal.SIGTERM) == 0
    assert sorted(project.orders()) == ["default kept", "other kept"]
    assert sorted(visible(served, "orders")) == [b"default kept", b"other kept"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_broker(number: int, databases: dict[str, Any], tmp_path: Path) -> None:
    project = Project(databases, "rocketmq://127.0.0.1:1", tmp_path / "log")
    for using in databases:
        project.manage("migrate", "--verbosity", "0", "--database", using)
    with running(project) as process:
        assert ended_by(process, number) == 0


def test_a_wrong_setting_is_said_and_not_tried(databases: dict[str, Any], tmp_path: Path) -> None:
    said = Project(databases, "http://nowhere", tmp_path / "log").manage("halfmq_checks", status=1)
    assert "halfmq.E001" in said
    assert "Traceback" not in said
