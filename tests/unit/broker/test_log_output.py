"""Nobody waits for whoever should read the log, and what peers chose cannot forge lines in it."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmq import limits
from halfmq.broker.log_output import FIELDS, LogFormat, LogOutput, OneLine, one_line

LINE = "x" * 200


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(read end, write end) that nobody reads until the test does."""
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        try:
            os.close(end)
        except OSError:
            pass  # the test did


def logger_of(output: LogOutput, name: str) -> logging.Logger:
    logger = logging.Logger(f"test.{name}")
    logger.addHandler(output)
    return logger


def read_all(end: int) -> list[str]:
    parts = []
    while part := os.read(end, 1 << 20):
        parts.append(part)
    return b"".join(parts).decode().splitlines()


def test_a_full_pipe_stops_nobody_and_what_was_dropped_is_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = LogOutput(writing)
    logger = logger_of(output, "full")
    count = 3 * limits.LOG_WAITING_BYTES_MAX // len(LINE)
    for number in range(count):  # the pipe holds 64 KiB: a write to it in this thread would never return
        logger.warning("%d %s", number, LINE)
    assert output._queue._bytes <= limits.LOG_WAITING_BYTES_MAX
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_all(reading)))
    reader.start()
    assert output.end(20)
    os.close(writing)
    reader.join()
    said = [line for line in lines if line.endswith("nobody read them in time")]
    dropped = int(said[0].split()[0])
    whole = [line for line in lines if line.endswith(LINE)]
    assert len(whole) + dropped == count
    assert [int(line.split()[-2]) for line in whole] == list(range(len(whole))), "the first ones, in their order"


def test_the_end_waits_for_what_can_be_written_and_no_longer(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = LogOutput(writing)
    for _ in range(1_000):
        logger_of(output, "end").error(LINE)
    assert not output.end(0.05), "the process ends all the same: the thread does not hold it"
    assert output._queue._thread.daemon
    logger_of(output, "end").error("late")
    drain = threading.Thread(target=read_all, args=(reading,))
    drain.start()
    output._queue._thread.join(20)
    os.close(writing)
    drain.join()
    assert not output._queue._thread.is_alive()


def test_the_last_line_comes_behind_all_others_whatever_waits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    output = LogOutput(fd)
    logger_of(output, "last").warning("first")
    output.say_last("halfmq: it is over")
    assert output.end(20)
    os.close(fd)
    first, last = path.read_text().splitlines()
    assert first.endswith(" WARNING test.last: first")
    assert last == "halfmq: it is over"


def test_nobody_at_the_other_end_is_no_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    output = LogOutput(writing)
    for _ in range(10):
        logger_of(output, "gone").error(LINE)
    assert output.end(20)


def test_a_descriptor_that_does_not_block_is_written_to_in_parts(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    output = LogOutput(writing)
    for number in range(1_000):
        logger_of(output, "parts").error("%d %s", number, LINE)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(read_all(reading)))
    reader.start()
    assert output.end(20)
    os.close(writing)
    reader.join()
    assert [int(line.split()[-2]) for line in lines] == list(range(1_000))


def test_a_line_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    output = LogOutput(fd)
    logger_of(output, "broken").error("%d", "no number")
    assert output.end(20)
    os.close(fd)
    assert "could not be formatted" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain Grüße", "plain Grüße"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x1b[2Jgone\x00", r"\x1b[2Jgone\x00"),
        ("half \ud800", r"half \ud800"),
        ("right\u202eleft", r"right\u202eleft"),
        ("z" * 30, "z" * 20 + "... (10 more characters)"),
    ],
)
def test_text_of_peers_is_one_line_of_bounded_length(text: str, expected: str) -> None:
    assert one_line(text, 20) == expected


def test_a_traceback_has_lines_of_its_own_and_its_error_none() -> None:
    try:
        raise ValueError("bad\n2026-01-01 CRITICAL forged")
    except ValueError as error:
        record = logging.LogRecord("n", logging.ERROR, "", 1, "what %s", ("a\nb",), (type(error), error, None))
    text = OneLine("%(message)s").format(record)
    assert text.splitlines()[0] == r"what a\nb"
    assert "  ValueError: bad" in text
    assert all(line.startswith("  ") for line in text.splitlines()[1:])


def test_as_json_each_line_is_an_object_whatever_is_logged(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = LogOutput(writing, log_format=LogFormat.JSON)
    logger = logger_of(output, "json")
    logger.warning(
        "group %s", "a\nb\x1b[2K\u202e", extra={FIELDS: {"group": "a\nb", "check_count": 3, "tx_id": "x" * 100_000}}
    )
    try:
        raise ValueError("no\nline")
    except ValueError:
        logger.exception("it failed")
    logger.info("%d", "no number")
    output.say_last("halfmq: the end")
    assert output.end()
    os.close(writing)
    lines = read_all(reading)
    assert all(line.isprintable() for line in lines)
    warned, failed, broken, last = map(json.loads, lines)
    assert (warned["level"], warned["logger"], warned["text"]) == ("WARNING", "test.json", "group a\nb\x1b[2K\u202e")
    assert (warned["group"], warned["check_count"]) == ("a\nb", 3)
    assert len(warned["tx_id"]) < 2 * limits.LOG_LINE_CHARS_MAX
    assert warned["time"][-6:] == "+00:00"
    assert (failed["text"], "ValueError" in failed["traceback"]) == ("it failed", True)
    assert "could not be formatted" in broken["text"]
    assert last["text"] == "halfmq: the end"
