"""What the client logs is seen in a program that configures no logging, and once in one that does."""

import io
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from halfmq.client.log import log, logger

FAILS = """
try:
    raise ValueError("of the application")
except ValueError:
    log.exception("handling failed")
log.info("not said")
"""


def errors_of(setting: str) -> str:
    script = f"import logging\nfrom halfmq.client.log import log\n{setting}\n{FAILS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    "setting", ["", "logging.basicConfig()", "logging.getLogger('halfmq').addHandler(logging.StreamHandler())"]
)
def test_a_failure_is_said_once_with_its_traceback(setting: str) -> None:
    said = errors_of(setting)
    assert said.count("handling failed") == said.count("ValueError: of the application") == 1
    assert "not said" not in said


def test_an_application_can_silence_it() -> None:
    assert errors_of("logging.getLogger('halfmq').addHandler(logging.NullHandler())") == ""
    assert errors_of("log.setLevel(logging.CRITICAL)") == ""


def test_the_logger_is_named_after_the_package() -> None:
    assert (log.name, log.handlers) == ("halfmq.client", [])


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


@pytest.mark.parametrize("name", ["halfmq.client", "halfmq.spark", "halfmq.sql.rules.block"])
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
