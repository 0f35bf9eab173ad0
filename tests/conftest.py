"""In which order and in which company tests run when several workers share them (``-n 2 --dist loadgroup``).

Tests of one file stay with one worker: they share a broker, a JVM, a database. ``spread`` says that they share nothing:
any free worker takes the next one.
"""

import pytest

#: What takes longest begins first, so that no worker is left with it at the end. The crash test wants as much of the
#: machine as it can get: what stands next to it mostly waits. Power losses and all the rest fill the gaps.
FIRST = (
    "tests/crash/test_kill_nine.py",
    "tests/compat/test_stock_broker.py",
    "tests/compat/test_stock_control.py",
    "tests/compat/test_java_client.py",
    "tests/spark/",
    "tests/demo/",
    "tests/crash/",
    "tests/scenarios/",
    "tests/properties/",
    "tests/simulation/",
)


def _place(item: pytest.Item) -> int:
    return next((place for place, prefix in enumerate(FIRST) if item.nodeid.startswith(prefix)), len(FIRST))


def _group(item: pytest.Item) -> str:
    # All of Spark's tests share one session.
    return "spark" if item.nodeid.startswith("tests/spark/") else item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spread") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_place)
