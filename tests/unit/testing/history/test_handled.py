"""A handler that sends: the message that it handled and those that it sent are in one transaction, which commits once."""

from tests.support.tales import R, Tale

from halfmq.testing.history.report import DUPLICATE, LOST, PHANTOM, At


def handled(tale: Tale, tx: str, consumer: str = "stock", **fields: object) -> None:
    tale.local(tx, handled="M", consumer=consumer, messages=(f"{tx}-sent",), **fields)  # type: ignore[arg-type]


def test_a_message_may_be_handled_once_by_each_group_however_often_its_handler_rolled_back() -> None:
    tale = Tale()
    tale.plain("M")
    tale.half("A", "A-sent")
    tale.end("A", R)
    handled(tale, "A", outcome=R)
    tale.half("B", "B-sent")
    tale.end("B")
    handled(tale, "B")
    tale.half("C", "C-sent")
    tale.end("C")
    handled(tale, "C", "bank")
    handled(tale, "C", "bank")  # recorded by two processes
    report = tale.report()
    assert report.clean
    assert report.looked[At.HANDLED].looked == 2


def test_a_message_that_was_handled_and_compensated_is_found() -> None:
    tale = Tale()
    tale.plain("M")
    for tx in ("handler", "on_dead"):
        tale.half(tx, f"{tx}-sent")
        tale.end(tx)
        handled(tale, tx)
    assert tale.found() == {DUPLICATE: 1}
    assert tale.sentence() == "2 transactions of stock that handled it committed"


def test_what_a_handler_sent_is_there_if_and_only_if_its_transaction_committed() -> None:
    tale = Tale()
    tale.plain("M", to=0)
    tale.half("A", "A-sent")
    handled(tale, "A", outcome=R)
    tale.end("A", R)
    tale.half("B", "B-sent")
    handled(tale, "B")
    tale.end("B")
    tale.settled()
    tale.seen("M")
    tale.read(1)
    assert tale.found() == {LOST: 1}
    tale.seen("B-sent", tx="B", at=1)
    tale.seen("A-sent", tx="A", at=2)
    assert tale.found() == {PHANTOM: 1}
