"""The library says nothing unless the application configures logging."""

import io
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from halfmq.client.log import log, logger


def test_the_logger_has_only_a_null_handler() -> None:
    assert [type(handler) for handler in log.handlers] == [logging.NullHandler]
    assert log.name == "halfmq.client"


def test_a_warning_in_an_unconfigured_program_prints_nothing() -> None:
    script = "from halfmq.client.log import log; log.warning('x'); log.error('y')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=30)
    assert done.stdout + done.stderr == b""


def shown(name: str, write: Callable[[logging.Logger], None]) -> str:
    """What an application sees that configured the logger with the standard library's formatter."""
    made, stream = logger(name), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    made.addHandler(handler)
    try:
        write(made)
    finally:
        made.removeHandler(handler)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["halfmq.client", "halfmq.spark", "halfmq.sql.transaction"])
def test_what_peers_chose_is_printable_in_the_lines_of_the_application(name: str) -> None:
    text = "\x1b[2K\nINFO forged\u202e"

    def write(log: logging.Logger) -> None:
        log.warning("%s, %r, %d, %.1f, %s", text, [text], 3, 0.25, None)
        log.warning("%(what)s", {"what": text})
        try:
            raise ValueError(text)
        except ValueError:
            log.exception("failed")

    escaped = "\\x1b[2K\\nINFO forged\\u202e"
    first, second, third, *trace = shown(name, write).splitlines()
    assert first == f"WARNING {escaped}, ['{escaped}'], 3, 0.2, None"
    assert second == f"WARNING {escaped}"
    assert third == "ERROR failed"
    assert trace[-1] == f"  ValueError: {escaped}"
    assert all(line.startswith("  ") for line in trace)
