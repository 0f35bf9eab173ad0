"""Orders by chance in a project with ATOMIC_REQUESTS and two databases under gunicorn --preload, whose workers are killed at each step: the
orders in the databases are the messages that a consumer sees."""

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.django.conftest import POSTGRES, place_of
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.visible import visible
from tests.support.waiting import wait_until

ENDS = (
    "returns", "returns", "raises in the block", "raises after the block", "killed in the block", "killed after prepare",
    "killed after COMMIT", "killed after the verdict", "killed after the block",
)  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    soon = [
        "--check-immunity-ms", "300", "--check-interval-ms", "200", "--check-interval-max-ms", "500", "--check-answer-ms", "1000",
    ]  # fmt: skip
    made = Served(tmp_path / "data", tmp_path / "log", "--durability", "memory", *soon)
    made.start()
    yield made
    made.stop()


class Project:
    """The shop, as its own processes. Its environment says where its databases and its broker are."""

    def __init__(self, databases: dict[str, Any], broker: Served, log: Path) -> None:
        self.port = free_port()
        self._log = log
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.django.shop.settings",
            "SHOP_DATABASES": json.dumps(databases),
            "SHOP_BROKER": broker.url,
            "SHOP_ATOMIC_REQUESTS": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def manage(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.django.shop.manage", *command],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{self.port}",
                 "tests.django.shop.wsgi:application"],
                env=self._environment, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(lambda: self.status("/none") == 404, f"a web service, whose log is {self._log}")

    def status(self, path: str, **form: str) -> int:
        """The status of a response; 0: none, such as from a worker that was killed."""
        data = urllib.parse.urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=60) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException):
            return 0

    def notes(self) -> list[str]:
        """The orders in both databases."""
        code = (
            "import django; django.setup(); from tests.django.shop.models import Order; "
            "print(*[n for u in ('default', 'other') for n in Order.objects.using(u).values_list('note', flat=True)])"
        )
        return sorted(subprocess.check_output([sys.executable, "-c", code], env=self._environment, text=True).split())

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(40)
            self._process.kill()
            self._process.wait()


def undecided(broker: Served) -> list[Any]:
    shown = subprocess.check_output(
        [sys.executable, "-m", "halfmq", "tx", "list", "--url", broker.url, "--json"], text=True
    )
    return json.loads(shown)["transactions"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [POSTGRES, pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.thorough])])
@pytest.mark.parametrize("orders", [40, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_orders_in_the_databases_are_the_messages(
    kind: str, orders: int, served: Served, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    databases = {
        "default": place_of(kind, request, tmp_path),
        "other": place_of("sqlite", request, tmp_path),
    }
    project = Project(databases, served, tmp_path / "web.log")
    for using in databases:
        project.manage("migrate", "--verbosity", "0", "--database", using)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    try:
        project.start()
        statuses: dict[str, set[int]] = {}
        # Each way of ending at least once at each place, then by chance.
        drawn = [(end, path) for end in ENDS for path in ("/orders", "/direct")]
        while len(drawn) < orders:
            drawn.append((rng.choice(ENDS), rng.choice(("/orders", "/direct"))))
        for number, (end, path) in enumerate(drawn):
            using = rng.choice(("default", "default", "other"))
            statuses.setdefault(end, set()).add(project.status(path, note=f"n{number}", using=using, end=end))
        assert statuses == {
            end: {200} if end == "returns" else {500} if end.startswith("raises") else {0} for end in ENDS
        }
        wait_until(lambda: project.status("/none") == 404, "a worker, which answers checks")
        wait_until(lambda: not undecided(served), "every transaction is settled", 120)
        sold = project.notes()
        seen = sorted(body.decode() for body in visible(served, "orders"))
        assert seen == sold
        assert orders // 4 < len(sold) < orders
    finally:
        project.stop()
