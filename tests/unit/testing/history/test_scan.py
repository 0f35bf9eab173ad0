"""The first pass: responses are joined with their requests, whatever the order of files."""

from halfmq.testing.history.events import Answered, AnyEvent, EndAsked, FileStarted, HalfSent
from halfmq.testing.history.reader import Block
from halfmq.testing.history.scan import ASKED, NO_ANSWER, OK, REQUESTED, Scan
from halfmq.testing.history.tables import Row, Tables


def rows(scan: Scan) -> tuple[list[Row], list[Row]]:
    scan.finish()
    return scan.messages.rows, scan.transactions.rows


def scanned(*events: AnyEvent, waiting_max: int = 100, at_once: int = 100) -> Scan:
    scan = Scan(Tables(8 << 20), waiting_max)
    for line in range(0, len(events), at_once):
        scan.block(Block(line + 1, list(events[line : line + at_once]), 1), 0)
    return scan


HALF = HalfSent(t_us=1, by="p", op="1", group="g", tx="T", message="M", topic="t")
END = EndAsked(t_us=3, by="p", op="2", group="g", tx="T", verdict="COMMITTED")
ANSWERS = (
    Answered(t_us=2, by="p", op="1", outcome="ok", offset=64),
    Answered(t_us=4, by="p", op="2", outcome="ok", position=128),
)


def test_a_response_may_be_read_before_its_request() -> None:
    forward = rows(scanned(HALF, END, *ANSWERS))
    backward = rows(scanned(*ANSWERS, HALF, END))
    for messages, transactions in (forward, backward):
        (half,), (end,) = messages, transactions
        assert (half[0], half[1], half[2], half[4], half[6], half[15]) == ("M", ASKED, 1, 2, OK, 64)
        assert (end[0], end[1], end[2], end[6], end[8], end[10]) == ("g\nT", REQUESTED, 3, 4, OK, 128)


def test_requests_that_were_moved_to_the_database_are_joined_with_their_responses() -> None:
    scan = scanned(HALF, END, FileStarted(t_us=0, by="q"), *ANSWERS, waiting_max=0, at_once=1)
    (half,), (end,) = rows(scan)
    assert (half[6], end[8]) == (OK, OK)
    assert scan.answers_alone == 0


def test_operations_in_the_database_are_counted_like_those_in_memory() -> None:
    """The same request twice, a response without a request, and the last of two responses."""
    again = Answered(t_us=5, by="p", op="1", outcome="ok", offset=128)
    alone = Answered(t_us=5, by="p", op="3", outcome="ok")
    scan = scanned(HALF, ANSWERS[1], END, END, alone, waiting_max=0, at_once=1)
    rows(scan)
    assert [why for _, why in scan.facts.wrong] == ["operation '2' of p was requested before"]
    assert scan.answers_alone == 1
    (half,), _ = rows(scanned(ANSWERS[0], again, HALF, waiting_max=0, at_once=1))
    assert (half[4], half[5], half[15]) == (5, 2, 128)


def test_operations_with_the_same_name_from_two_writers_are_different() -> None:
    other = Answered(t_us=2, by="q", op="1", outcome="ok")
    scan = scanned(HALF, other)
    (half,), _ = rows(scan)
    assert half[6] == NO_ANSWER
    assert scan.answers_alone == 1


def test_an_unknown_outcome_is_no_response() -> None:
    (half,), _ = rows(scanned(HALF, Answered(t_us=2, by="p", op="1", outcome="unknown")))
    assert half[6] == NO_ANSWER


def test_places_are_line_numbers() -> None:
    scan = Scan(Tables(8 << 20), 10)
    scan.block(Block(7, [FileStarted(t_us=0, by="p"), HALF, ANSWERS[0]], 1), 5 << 40)
    (half,), _ = rows(scan)
    assert (half[3], half[5]) == (5 << 40 | 8, 5 << 40 | 9)
