"""An undecided transaction waits as long as it takes: no count, no clock and no silence ends it."""

from halfmq.model.settings import BrokerSettings, PastLimit
from tests.peer_bugs.stage import COMMIT, DAY, HOUR, LOG, MINUTE, ROLLBACK, SECOND, SEGMENT_BYTES, UNKNOWN, Half, Stage


def test_immune_transaction_is_neither_asked_nor_counted() -> None:
    """RocketMQ #8311: the count of checks is raised in every round before the immunity is looked at. A message that asked
    for 600 s of rest was thrown away at the fifteenth round, 450 s old, without its producer ever having been asked.

    Here: while others are asked again and again, and while producers come and go, a transaction that is immune for an
    hour costs nothing, also where its group opted into ROLLBACK after 15 checks; its first check comes when the hour is over,
    is number 1, and settles it.
    """
    stage = Stage()
    stage.opts_in("P", check_limit=15, past_limit=PastLimit.ROLLBACK)
    producer = stage.producer("orders-1", "P", "Q")
    stage.half("order-slow", b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    stage.half("order-busy", b"busy", group="Q")
    asked_of_the_other = 0
    for minute in range(60):
        stage.pass_time(MINUTE - (minute == 59), SECOND)
        for check in stage.checks(producer):
            assert check.tx_id == "order-busy", f"asked in minute {minute} about what is immune for an hour"
            asked_of_the_other = max(asked_of_the_other, check.number)
            stage.answers(producer, check, UNKNOWN)
        if minute % 20 == 19:
            stage.leaves(producer)
            producer = stage.producer(f"orders-{minute}", "P", "Q")
    assert asked_of_the_other > 15, f"the other one was asked {asked_of_the_other} times only"
    stage.checks(producer)
    stage.pass_time(2 * SECOND)
    checks = [check for check in stage.checks(producer) if check.tx_id == "order-slow"]
    assert [check.number for check in checks] == [1], f"the first checks after the immunity are {checks}"
    stage.answers(producer, checks[0], COMMIT)
    assert stage.visible() == [b"slow"], f"consumers see {stage.visible()}"


def test_transaction_waits_for_its_producer_and_no_attempt_is_counted() -> None:
    """RocketMQ (TransactionalMessageServiceImpl, AbstractTransactionalMessageCheckListener): the count is raised before
    it is known whether anybody can be asked. A service that is down for 7.5 minutes loses every message that it had not
    settled, those of committed orders too: they are moved aside and nobody is told.

    Here: with no producer alive for ten hours nothing is asked and nothing is counted, also where the group opted into
    ROLLBACK after 15 checks; the broker says why it waits, and the producer that comes back is asked at once, for the first
    time.
    """
    stage = Stage()
    stage.opts_in("P", check_limit=15, past_limit=PastLimit.ROLLBACK)
    producer = stage.producer("orders-1")
    stage.half("order-1")
    stage.leaves(producer)
    stage.pass_time(10 * HOUR, 10 * SECOND)
    assert stage.undecided() == {"order-1"}, "given up while there was nobody to ask"
    assert "connected" in story(stage, "order-1"), f"it does not say that nobody is there: {story(stage, 'order-1')}"
    producer = stage.producer("orders-2")
    stage.pass_time(SECOND)
    checks = stage.checks(producer)
    assert [check.number for check in checks] == [1], f"attempts that reached nobody were counted: {checks}"
    stage.answers(producer, checks[0], COMMIT)
    assert stage.visible() == [b"one"], f"consumers see {stage.visible()}"


def test_undecided_transaction_outlives_retention() -> None:
    """RocketMQ (TransactionalMessageServiceImpl.needSkip): a half older than the log's retention, 72 h, is skipped for good,
    and the line that says so speaks of too many checks. What was sent before a long weekend of an outage is gone.

    Here: the log of 30 days is trimmed behind it again and again, over restarts; the half is carried along, is asked about
    with its whole body, and is committed by the handle of its first answer.
    """
    stage = Stage(retention_ms=3 * DAY, retention_check_ms=HOUR, checkpoint_interval_ms=HOUR)
    half = stage.half("order-1", b"from last month")
    for day in range(30):
        for _ in range(18):  # a segment a day
            stage.send()
        stage.pass_time(DAY, HOUR)
        if day % 10 == 9:
            stage.power_fails()
    gone = stage.life.state.log_start // SEGMENT_BYTES
    assert gone > 20, f"only {gone} segments were trimmed"
    assert stage.undecided() == {"order-1"}, "given up by age"
    producer = stage.producer("orders-1")
    stage.pass_time(SECOND)
    checks = stage.checks(producer)
    assert [check.body for check in checks] == [b"from last month"], f"asked with {checks}"
    answer = stage.end(half, COMMIT)
    assert answer.code == 0, f"its body did not outlive retention: {answer}"
    assert stage.visible() == [b"from last month"], f"consumers see {stage.visible()}"


def test_clocks_of_clients_move_no_check() -> None:
    """RocketMQ #9640 (also #1517): the age of a half is the broker's clock less the time at which the client says that it
    was born. A client that is behind is checked at once, while its local transaction runs, and committed messages were
    checked; with one that is ahead the age is negative.

    Here: clients a day ahead, a day behind and right are asked at the same moment, when the immunity is over by the
    broker's clock; and a wall clock that was set back before a restart moves nothing either.
    """
    stage = Stage(settings=BrokerSettings(check_immunity_ms=60 * SECOND))
    producer = stage.producer("orders-1")
    now = stage.clock.now_ms
    for name, born_ms in (("ahead", now + DAY), ("right", now), ("behind", now - DAY)):
        stage.half(f"clock-{name}", name.encode(), born_ms=born_ms)
    stage.pass_time(59 * SECOND)
    early = {check.tx_id for check in stage.checks(producer)}
    assert early == set(), f"asked while immune: {early}"
    stage.pass_time(2 * SECOND)
    due = {check.tx_id for check in stage.checks(producer)}
    late = {"clock-ahead", "clock-right", "clock-behind"} - due
    assert late == set(), f"not asked though the immunity is over: {late}"

    stage.half("before-the-restart")
    stage.pass_time(30 * SECOND)
    stage.clock.now_ms -= 2 * DAY
    stage.power_fails()
    producer = stage.producer("orders-1")
    stage.pass_time(61 * SECOND)  # time that passed without a record is not known to have passed
    due = {check.tx_id for check in stage.checks(producer)}
    assert "before-the-restart" in due, "a wall clock set back kept the producer from being asked"


def test_full_disk_gives_up_nothing_and_counts_nothing() -> None:
    """RocketMQ (DefaultTransactionalMessageCheckListener): after fifteen checks a half is moved to another topic; if that
    write fails, a line is logged and the half is skipped all the same. It is in neither place.

    Here the record that sets a transaction aside, for a group that opted into it, finds no room, and neither does that of
    a check. Then nothing is parked, nobody is asked and nothing is counted, however long; when there is room again one is set
    aside and the other asked with the next number, and both are settled by their producer.
    """
    stage = Stage(settings=BrokerSettings(check_interval_max_ms=5 * SECOND))
    stage.opts_in("P", check_limit=15, past_limit=PastLimit.PARKED)
    producer = stage.producer("orders-1", "P", "Q")
    limited, patient = stage.half("order-1", b"limited"), stage.half("order-2", b"patient", group="Q")
    change = to_fill_the_disk_with(stage)
    last = {"order-1": 0, "order-2": 0}
    while min(last.values()) < 15:
        stage.pass_time(SECOND)
        for check in stage.checks(producer):
            last[check.tx_id] = check.number
            stage.answers(producer, check, UNKNOWN)
    assert last["order-1"] == 15, f"asked {last}, with a limit of 15"
    fill_the_disk(stage, change)
    stage.pass_time(20 * MINUTE, 10 * SECOND)
    assert stage.checks(producer) == [], "asked although it could not be recorded"
    assert stage.is_serving, "the broker stopped"
    left = stage.undecided("P") | stage.undecided("Q")
    assert left == {"order-1", "order-2"}, f"given up, since a write failed: {left} is left"
    assert "parked it because" not in story(stage, "order-1"), "parked in memory only"
    stage.disk.heal()
    stage.pass_time(2 * MINUTE)
    assert "parked it because" in story(stage, "order-1"), "it is not parked although there is room again"
    again = {check.tx_id: check.number for check in reversed(stage.checks(producer))}
    assert again == {"order-2": last["order-2"] + 1}, f"counted while nobody could be asked: {last}, then {again}"
    for half in (limited, patient):
        answer = stage.end(half, COMMIT)
        assert answer.code == 0, f"given up while the disk was full: {answer}"
    assert sorted(stage.visible()) == [b"limited", b"patient"], f"consumers see {stage.visible()}"


def to_fill_the_disk_with(stage: Stage) -> list[Half]:
    """Verdicts go on where messages are refused: COMMIT of a half in an older segment takes the room of its body, ROLLBACK
    hardly any. So they take what is left, to the last bytes."""
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "86400"}
    sizes = [4_000] * 50 + [0] * 80
    return [stage.half(f"{n}", bytes(size), topic="S", group="S", **immune) for n, size in enumerate(sizes)]


def fill_the_disk(stage: Stage, halves: list[Half]) -> None:
    stage.disk.fill(0)
    refused = [stage.end(half, COMMIT).code == 14 for half in halves[:50]]
    refused += [stage.end(half, ROLLBACK).code == 14 for half in halves[50:]]
    assert refused[-1], "there is still room for verdicts"


def story(stage: Stage, tx_id: str) -> str:
    """Why it waits, in the broker's words."""
    return stage.ask(29_003, {"txId": tx_id}).body.decode()


def test_half_that_cannot_be_moved_is_tried_for_ever_and_never_skipped() -> None:
    """RocketMQ (TransactionalMessageServiceImpl, slave acting master): a half that must go to another broker is tried ten
    times, with pauses of 2 XOR n, and then skipped: neither the old broker nor the new one has it any more.

    A half moves here when the segment that it lies in is to go. While its bytes cannot be read the segment stays, however
    often that is tried, and other transactions go on; when they can be read again it moves and is committed. Meanwhile it
    can still be rolled back, which needs no copy.
    """
    stage = Stage(retention_bytes=2 * SEGMENT_BYTES, retention_check_ms=SECOND, checkpoint_interval_ms=SECOND)
    stuck, given_up = stage.half("order-1", b"stuck" * 40), stage.half("order-2", b"given up" * 40)
    segment = stage.disk.list(LOG)[0]
    places = [stage.disk.content(LOG / segment).index(body * 40) for body in (b"stuck", b"given up")]
    for place in places:
        stage.disk.flip_bit(LOG / segment, place)
    for _ in range(80):
        stage.send()
    stage.pass_time(5 * MINUTE, SECOND)  # 300 attempts
    assert stage.life.state.log_start == 0, "the segment went, and what lies in it too"
    assert stage.undecided() == {"order-1", "order-2"}, f"skipped: {stage.undecided()} is left"
    other = stage.half("order-3", b"other")
    assert stage.end(other, COMMIT).code == 0, "others wait for what cannot be moved"
    assert stage.end(given_up, ROLLBACK).code == 0, "what cannot be moved cannot be rolled back"
    stage.disk.flip_bit(LOG / segment, places[0])
    stage.pass_time(MINUTE)
    assert stage.life.state.log_start > stuck.offset, "it can be moved again, and is not"
    answer = stage.end(stuck, COMMIT)
    assert answer.code == 0, f"skipped after many attempts: {answer}"
    assert sorted(stage.visible()) == [b"other", b"stuck" * 40], f"consumers see {stage.visible()}"
