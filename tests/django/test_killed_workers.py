"""Orders by chance in a project with ATOMIC_REQUESTS and two databases under gunicorn --preload, whose workers are killed at each step: the
orders in the databases are the messages that a consumer sees."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from halfmq.testing import TRANSACTION_POINTS
from tests.django.conftest import POSTGRES, place_of
from tests.django.project import Project, undecided
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import wait_until

KILLS = ("killed in the block", "killed after the block", *TRANSACTION_POINTS)
RAISES = ("raises in the block", "raises after the block")
STATUSES = {"returns": 200, **dict.fromkeys(RAISES, 500), **dict.fromkeys(KILLS, 0)}
#: The transactions of the request (ATOMIC_REQUESTS), or none.
PATHS = ("/orders", "/direct")
#: An order in one database, or in both.
PLACES = ("default", "other", "default other", "other default")


def drawn(rng: random.Random, number: int) -> list[tuple[str, str, str]]:
    """(end, path, databases) of each order: each end at least once on each path, then by chance."""
    first = [(end, path) for end in STATUSES for path in PATHS]
    orders = [(end, path, rng.choice(PLACES)) for end, path in first]
    while len(orders) < number:
        ends = ("returns", rng.choice(RAISES), rng.choice(KILLS))
        orders.append((*rng.choices(ends, (2, 1, 2)), rng.choice(PATHS), rng.choice(PLACES)))
    return orders


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [POSTGRES, pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.thorough])])
@pytest.mark.parametrize("number", [40, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_orders_in_the_databases_are_the_messages(
    kind: str, number: int, served: Served, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    databases = {
        "default": place_of(kind, request, tmp_path),
        "other": place_of("sqlite", request, tmp_path),
    }
    project = Project(databases, served.url, tmp_path / "web.log")
    for using in databases:
        project.manage("migrate", "--verbosity", "0", "--database", using)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    orders = drawn(random.Random(seed), number)
    began = time.monotonic()
    try:
        project.start()
        for at, (end, path, using) in enumerate(orders):
            status = project.status(path, note=f"n{at}", using=using, end=end)
            assert status == STATUSES[end], f"order {at}, {end}, {path}, {using}\n{project.last_lines()}"
        wait_until(lambda: project.status("/none") == 404, "a worker, which answers checks")
        wait_until(lambda: not undecided(served), "every transaction is settled", 120)
    finally:
        project.stop()
    sold = Counter(project.orders())
    seen = Counter(body.decode() for body in visible(served, "orders"))
    kills = Counter(end for end, _, _ in orders if end in KILLS)
    lost, phantoms = sold - seen, seen - sold
    print(f"{number} orders in {time.monotonic() - began:.0f} s, kills {kills.total()}: {dict(sorted(kills.items()))}")
    print(f"rows {sold.total()}, messages {seen.total()}, lost {lost.total()}, phantoms {phantoms.total()}")
    assert (lost, phantoms) == ({}, {})
    # Without this, nothing might have been compared, or every end might have committed.
    assert number // 4 < len({row.split()[1] for row in sold}) < number
