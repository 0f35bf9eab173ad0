"""Servers that several folders use; and where CI=true nothing is left out: one that nobody runs proves nothing."""

import os
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest

from tests.support.certificates import authority
from tests.support.target_servers import kafka, kafka_broker, rabbit, rabbitmq_server, rocket_target

__all__ = ["authority", "kafka", "kafka_broker", "rabbit", "rabbitmq_server", "rocket_target"]

#: Where this is set nothing may be left out: what is skipped has failed.
_NOTHING_IS_SKIPPED = os.environ.get("CI", "").lower() == "true"
_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def _failed_if_skipped(report: _Report) -> _Report:
    if _NOTHING_IS_SKIPPED and report.outcome == "skipped":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {why}\nNothing may be skipped where CI=true."
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The brokers that who runs the tests has given names to (``halfmq context``) are none of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # behind what makes a skip of an expected failure
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _failed_if_skipped((yield))
