"""The shop as processes of its own: ``manage.py``, gunicorn, and programs that are killed."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.waiting import wait_until

_PLACE: Final = Path(__file__).parent / "shop" / "place.py"


class Project:
    """The shop, as its own processes. Its environment says where its databases and its broker are."""

    def __init__(self, databases: dict[str, Any], broker: str, log: Path, **environment: str) -> None:
        self.port = free_port()
        self._log = log
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.django.shop.settings",
            "SHOP_DATABASES": json.dumps(databases),
            "SHOP_BROKER": broker,
            "SHOP_ATOMIC_REQUESTS": "1",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def manage(self, *command: str, status: int = 0) -> str:
        """What the command has written."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.django.shop.manage", *command],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, *command: str) -> "subprocess.Popen[str]":
        """A command that runs until it is ended."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.django.shop.manage", *command],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def place_and_die(self, point: str, note: str, using: str) -> None:
        """An order of a process that is killed at a crash point."""
        done = subprocess.run(
            [sys.executable, "-m", "halfmq.testing.crashes", point, _PLACE, note, using],
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == -9, done.stdout + done.stderr

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

    def last_lines(self) -> str:
        """What the web service has written last."""
        return "\n".join(self._log.read_text().splitlines()[-150:])

    def orders(self) -> list[str]:
        """The orders in both databases, each with its database."""
        code = (
            "import django; django.setup(); from tests.django.shop.models import Order; "
            "[print(u, n) for u in ('default', 'other') for n in Order.objects.using(u).values_list('note', flat=True)]"
        )
        return subprocess.check_output([sys.executable, "-c", code], env=self._environment, text=True).splitlines()

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
