"""In which order and in which company tests run when several workers share them: ``-n 4 --dist loadscope``.

Tests of one file stay with one worker: they share a broker, a JVM, a database. What shares nothing is spread: any free
worker takes the next one.
"""

import os
import re
from collections.abc import Generator
from typing import TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

#: What takes longest begins first, so that no worker is left with it at the end. The kills want as much of the
#: machine as they can get: what runs next to them mostly waits. Losses of power and all the rest fill the gaps.
FIRST = (
    "tests/soak/test_kills.py",
    "tests/soak/test_soak.py",
    "tests/compat/test_stock_history.py",
    "tests/compat/test_stock_broker.py",
    "tests/compat/test_stock_control.py",
    "tests/compat/test_java_client.py",
    "tests/compat/test_spark_rocketmq.py",
    "tests/spark/",
    "tests/demo/",
    "tests/scenarios/",
    "tests/properties/",
    "tests/unit/testing/history/test_planted_violations.py",
    "tests/crash_matrix/",
    "tests/simulation/",
)
#: All that begins so shares one worker, and one Spark session. With two, so many JVMs and Python processes start at once on two cores that Spark
#: gives some of them up.
TOGETHER = {"tests/spark/": "Spark", "tests/compat/test_spark_rocketmq.py": "Spark"}
SPREAD = (
    "tests/compat/test_java_client.py::test_a_thousand_transactions_have_one_outcome_each",
    "tests/compat/test_stock_history.py",
    "tests/demo/",
    "tests/simulation/test_power_loss.py",
)
#: Here tests share a broker and a JVM if the version of the Java code, and the header of the client, are the same.
BY_VERSION = ("tests/compat/test_java_client.py", "tests/compat/test_stock_broker.py")
_VERSION = re.compile(r"\[[\d.]+(-json|-rocketmq)?")


class Company(LoadScopeScheduling):
    """Whoever has the same scope runs in one worker, in the order of collection.

    The scope is made from the node id alone: what ``--dist loadgroup`` appends to it, pytest 9.2 drops.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPREAD):
            return nodeid
        if nodeid.startswith(BY_VERSION) and (version := _VERSION.search(nodeid)):
            return nodeid.partition("::")[0] + version[0]
        return next(
            (scope for prefix, scope in TOGETHER.items() if nodeid.startswith(prefix)), nodeid.partition("::")[0]
        )


#: Where this is set nothing may be left out: what is skipped has failed.
_NOTHING_IS_SKIPPED = os.environ.get("CI", "").lower() == "true"
_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def _failed_if_skipped(report: _Report) -> _Report:
    if _NOTHING_IS_SKIPPED and report.outcome == "skipped":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {why}\nNothing may be skipped where CI=true."
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # behind what makes a skip of an expected failure
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _failed_if_skipped((yield))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    if config.getoption("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False
    return Company(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process alone takes tests as they were named: mutmut names the fastest first, and a mutant is killed sooner."""
    if not hasattr(config, "workerinput"):
        return
    last = len(FIRST)
    items.sort(key=lambda item: next((n for n, prefix in enumerate(FIRST) if item.nodeid.startswith(prefix)), last))
