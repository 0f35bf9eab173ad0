"""The first pass: answers meet their requests, whatever the order of files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmq.testing.history.events import Answered, AnyEvent, Began, EndAsked, HalfAsked
from halfmq.testing.history.reader import Block
from halfmq.testing.history.scan import ASKED, NO_ANSWER, OK, SAID, Scan
from halfmq.testing.history.spill import Row, SpillDirectory

OPENED: list[SpillDirectory] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def rows(scan: Scan) -> tuple[list[Row], list[Row]]:
    scan.finish()
    return [row for part in scan.messages.partitions() for row in part], [
        row for part in scan.transactions.partitions() for row in part
    ]


def scanned(tmp_path: Path, *events: AnyEvent, waiting_max: int = 100, at_once: int = 100) -> Scan:
    OPENED.append(SpillDirectory(tmp_path))
    scan = Scan(3, OPENED[-1], waiting_max)
    for line in range(0, len(events), at_once):
        scan.block(Block(line + 1, list(events[line : line + at_once]), 1), 0)
    return scan


HALF = HalfAsked(t_us=1, by="p", op="1", group="g", tx="T", message="M", topic="t")
END = EndAsked(t_us=3, by="p", op="2", group="g", tx="T", verdict="COMMITTED")
ANSWERS = (
    Answered(t_us=2, by="p", op="1", outcome="ok", offset=64),
    Answered(t_us=4, by="p", op="2", outcome="ok", position=128),
)


def test_an_answer_may_be_read_before_its_request(tmp_path: Path) -> None:
    forward = rows(scanned(tmp_path, HALF, END, *ANSWERS))
    backward = rows(scanned(tmp_path, *ANSWERS, HALF, END))
    for messages, transactions in (forward, backward):
        (half,), (end,) = messages, transactions
        assert (half[0], half[1], half[2], half[4], half[6], half[15]) == ("M", ASKED, 1, 2, OK, 64)
        assert (end[0], end[1], end[2], end[6], end[8], end[10]) == ("g\nT", SAID, 3, 4, OK, 128)


def test_requests_that_were_put_off_to_files_still_meet_their_answers(tmp_path: Path) -> None:
    scan = scanned(tmp_path, HALF, END, Began(t_us=0, by="q"), *ANSWERS, waiting_max=0, at_once=1)
    (half,), (end,) = rows(scan)
    assert (half[6], end[8]) == (OK, OK)
    assert scan.answers_alone == 0


def test_operations_of_two_writers_with_one_name_are_two(tmp_path: Path) -> None:
    other = Answered(t_us=2, by="q", op="1", outcome="ok")
    scan = scanned(tmp_path, HALF, other)
    (half,), _ = rows(scan)
    assert half[6] == NO_ANSWER
    assert scan.answers_alone == 1


def test_giving_up_is_no_answer(tmp_path: Path) -> None:
    (half,), _ = rows(scanned(tmp_path, HALF, Answered(t_us=2, by="p", op="1", outcome="unknown")))
    assert half[6] == NO_ANSWER


def test_places_are_lines(tmp_path: Path) -> None:
    scan = Scan(1, SpillDirectory(tmp_path), 10)
    scan.block(Block(7, [Began(t_us=0, by="p"), HALF, ANSWERS[0]], 1), 5 << 40)
    (half,), _ = rows(scan)
    assert (half[3], half[5]) == (5 << 40 | 8, 5 << 40 | 9)
