"""The story of a transaction says why it waits and who could settle it."""

from tests.support.core_log import CoreLog, end, half, part, producer

from halfmq.core.commands import Wanted
from halfmq.core.session import ConnectionClosed
from halfmq.core.transaction.story import span, story


def told(log: CoreLog, tx_id: str = "T1", group: str = "PG") -> str:
    return " ".join(story(log.state, group, tx_id, log.now_ms))


def test_a_fresh_transaction_is_immune() -> None:
    log = CoreLog()
    log.do(half("T1", topic="orders"))
    log.later(1_000)
    text = told(log)
    assert "prepared by producer group PG 1 s ago" in text
    assert "orders" in text
    assert "Nobody was asked" in text
    assert "immune: nobody is asked for another 5 s" in text


def test_without_a_producer_it_says_that_nobody_is_connected() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.later(60_000)
    assert "no producer of group PG is connected" in told(log)


def test_a_check_in_flight_names_who_is_asked() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    log.do(half("T1"))
    log.checks_after(6_100)
    assert "asked once" in told(log)
    assert "waits for the answer of client-3" in told(log)


def test_an_unknown_answer_and_its_remark_are_told() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    log.do(end("T1", reply, Wanted.UNKNOWN, from_check=True, remark="database down"))
    log.later(1_000)
    text = told(log)
    assert "1 s ago and was UNKNOWN, with the remark: database down" in text
    assert "asked about again in" in text
    log.session(ConnectionClosed(3))
    log.later(60_000)
    assert "no producer of group PG is connected" in told(log)


def test_a_full_budget_is_a_reason() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    object.__setattr__(log.state.settings, "checks_in_flight_max", 1)
    for number in range(2):
        log.do(half(f"T{number}"))
    (asked,) = log.checks_after(6_100)
    waiting = "T1" if asked.tx_id == "T0" else "T0"
    assert "behind 1 checks of its group" in told(log, waiting)


def test_missing_messages_are_told() -> None:
    log = CoreLog()
    log.do(part("T1", 0))
    assert "how many is not said yet" in told(log)
    log.do(part("T1", 2, count=3))
    assert "2 of 3 messages" in told(log)
    assert "cannot be committed before the missing messages are here" in told(log)


def test_a_verdict_is_told_with_its_position() -> None:
    log = CoreLog()
    reply = log.do(end("T1", log.do(half("T1"))))
    log.later(125_000)
    text = told(log)
    assert f"COMMITTED since 2 min ago, at log position {reply.position}" in text
    log.do(end("T2", log.do(half("T2")), Wanted.ROLLBACK))
    assert "ROLLED_BACK" in told(log, "T2")
    assert "never visible" in told(log, "T2")


def test_an_unknown_transaction_is_not_made_up() -> None:
    log = CoreLog()
    assert "never prepared here" in told(log)
    assert story(log.state, "", "T1", log.now_ms)[0].startswith("Transaction T1 is not undecided, ")
    log.do(half("T1", group="Other"))
    assert "but of Other" in told(log)


def test_spans_are_for_people() -> None:
    assert [span(ms) for ms in (-5, 999, 1_000, 119_000, 120_000, 7_200_000, 200_000_000)] == [
        "0 ms", "999 ms", "1 s", "119 s", "2 min", "2 h", "2 days",
    ]  # fmt: skip
