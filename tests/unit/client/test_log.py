"""The library says nothing unless the application configures logging."""

import logging
import subprocess
import sys

from halfmq.client.log import log


def test_the_logger_has_only_a_null_handler() -> None:
    assert [type(handler) for handler in log.handlers] == [logging.NullHandler]
    assert log.name == "halfmq.client"


def test_a_warning_in_an_unconfigured_program_prints_nothing() -> None:
    script = "from halfmq.client.log import log; log.warning('x'); log.error('y')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=30)
    assert done.stdout + done.stderr == b""
