"""Commands of the shop's ``manage.py``, as processes of their own on the databases of a test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE_S, wait_until


class Commands:
    """``environment``: more for settings and handlers of the shop."""

    def __init__(self, databases: Mapping[str, Any], url: str, log: Path, **environment: str) -> None:
        self.log = log
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.django.shop.settings",
            "SHOP_DATABASES": json.dumps(databases),
            "SHOP_BROKER": url,
            **environment,
        }

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command that ends by itself."""
        return subprocess.run(
            _command(words), env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    @contextmanager
    def running(self, *words: str, ready: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A command that logs ``ready``; ended by SIGTERM with the block, unless it has ended before."""
        before = len(self.logged())
        with self.log.open("ab") as output:
            process = subprocess.Popen(_command(words), env=self._environment, stdout=output, stderr=output)
        try:
            wait_until(lambda: ready in self.logged()[before:], f"{ready!r} in {self.log}", unless=process.poll)
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0, self.logged()[-3000:]
        finally:
            process.kill()
            process.wait()

    def logged(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "tests.django.shop.manage", *words]
