"""The story of a transaction says why it waits and who could settle it."""

from msgspec.structs import replace
from tests.support.core_log import CoreLog, changed, end, half, half_batch, part, producer

from halfmq.core.commands import CopyForward, RequestedVerdict, ResolveTransaction, SetProducer, TrimLog
from halfmq.core.decision import Done
from halfmq.core.session import ConnectionClosed
from halfmq.core.state import InFlight
from halfmq.core.transaction.story import check_is_open, story
from halfmq.model.durations import span
from halfmq.model.records import Committed
from halfmq.model.settings import PastLimit, ProducerSettings


def told(log: CoreLog, tx_id: str = "T1", group: str = "PG") -> str:
    return " ".join(story(log.state, group, tx_id, log.now_ms))


def test_missing_messages_are_told() -> None:
    log = CoreLog()
    log.do(part("T1", 0))
    assert "their total is not known yet" in told(log)
    log.do(part("T1", 2, count=3))
    assert "2 of 3 messages" in told(log)
    assert "cannot be committed before the missing messages arrive" in told(log)


def test_the_whole_story_from_one_message_to_its_commit() -> None:
    log = CoreLog()
    reply = log.do(half("T1", topic="orders", body=b"12345"))
    log.later(2_000)
    (known,) = log.state.producer_groups["PG"].undecided.values()
    assert story(log.state, "PG", "T1", log.now_ms) == (
        "Transaction T1 was prepared by producer group PG 2 s ago.",
        f"It has 1 of 1 messages for orders, {known.halves[0].message_bytes} bytes; its first half is number 0, prepared "
        f"at log offset {reply.log_offset}.",
        "No check was sent yet.",
        "It is undecided and in its grace period: no check is sent for another 4 s.",
    )
    position = log.do(end("T1", reply)).position
    log.later(3_000)
    assert story(log.state, "PG", "T1", log.now_ms) == (
        f"Transaction T1 of producer group PG is COMMITTED since 3 s ago, at log position {position}, decided by its "
        "producer; its message became visible at that position.",
    )


def test_the_story_names_the_users_who_prepared_and_who_settled() -> None:
    log = CoreLog()
    reply = log.do(half("T1", user="shop"))
    first, *_ = story(log.state, "PG", "T1", log.now_ms)
    assert first == "Transaction T1 was prepared by producer group PG, by user shop, 0 ms ago."
    position = log.do(changed(end("T1", reply), user="alice")).position
    (settled,) = story(log.state, "PG", "T1", log.now_ms, settled_by=log.of(Committed)[0].user)
    assert settled == (
        f"Transaction T1 of producer group PG is COMMITTED since 0 ms ago, at log position {position}, decided by its "
        "producer, by user alice; its message became visible at that position."
    )


def test_the_whole_story_of_several_messages_that_were_carried_and_rolled_back() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0, topic="orders"))
    log.do(part("T1", 1, topic="stock"))
    log.do(part("T1", 2, topic="orders"))
    log.roll()
    trim_to(log, 65_536)
    known = log.state.producer_groups["PG"].undecided["T1"]
    size = sum(one.message_bytes for one in known.halves)
    assert story(log.state, "PG", "T1", log.now_ms)[:4] == (
        "Transaction T1 was prepared by producer group PG 0 ms ago.",
        f"It has 3, and their total is not known yet, messages for orders, stock, {size} bytes; its first half is number 0, "
        f"prepared at log offset {first.log_offset}.",
        f"Its first half was copied forward to log offset {known.halves[0].offset}.",
        "It cannot be committed before the missing messages arrive; it can be rolled back.",
    )
    reply = log.do(ResolveTransaction("PG", "T1", RequestedVerdict.ROLLBACK, "ann"))
    assert story(log.state, "PG", "T1", log.now_ms) == (
        f"Transaction T1 of producer group PG is ROLLED_BACK since 0 ms ago, at log position {reply.position}, decided by "
        "an operator; its 3 messages: never visible.",
    )


def test_several_messages_became_visible_together() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    log.do(part("T1", 1, count=2))
    log.do(end("T1", first, from_check=True))
    assert told(log).endswith(
        "decided by its producer, in response to a check; its 2 messages became visible at that position."
    )


def trim_to(log: CoreLog, start: int) -> None:
    while log.do(CopyForward(start, 10)) == Done(again=True):
        pass
    assert log.do(TrimLog(start)) == Done()


def test_a_topic_that_is_gone_is_told_by_its_id() -> None:
    log = CoreLog()
    log.do(half("T1"))
    (topic_id,) = log.state.topics_by_id
    log.state.topics_by_id.clear()
    assert f"messages for topic id {topic_id}, " in told(log)


def test_the_policy_of_the_group_is_told() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.do(SetProducer(ProducerSettings("PG", 15, PastLimit.ROLLBACK)))
    text = (
        "No check was sent yet. The policy of its group says that it is rolled back after 15 checks without a verdict."
    )
    assert text in told(log)
    log.do(SetProducer(ProducerSettings("PG", 1, PastLimit.PARKED, 7_200_000)))
    assert (
        "The policy of its group says that it is parked after 1 check without a verdict. "
        "The policy of its group parks it when it is 2 h old."
    ) in told(log)
    log.do(SetProducer(ProducerSettings("PG")))
    assert "policy" not in told(log)


def test_why_it_was_parked_is_told_and_the_policy_no_more() -> None:
    log = CoreLog()
    log.do(SetProducer(ProducerSettings("PG", 0, PastLimit.WAIT, 7_200_000)))
    log.do(half("T1"))
    log.run_to(log.now_ms + 7_300_000)
    assert told(log).endswith(
        "No check was sent yet. The policy of group PG parked it because of its age: no further checks are sent "
        "automatically. It is still undecided; its producer or an operator can settle it, and `halfmq tx check` sends a check."
    )


def test_how_long_it_waits_for_whom_is_told() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    reply = log.do(half("T1"))
    log.checks_after(6_100)
    log.later(1_000)
    assert "got 1 check" in told(log)
    assert told(log).endswith("It waits for the response of client-3, for another 4 s; then it is checked again.")
    log.state.producer_groups["PG"].session.members.clear()
    assert "It waits for the response of connection 3, " in told(log)
    log.session(producer(3, log.now_ms))
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    log.later(2_000)
    assert "The last response came 2 s ago and was UNKNOWN. The next check is due in " in told(log)
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True, remark="database down"))
    assert "was UNKNOWN, with the remark: database down" in told(log)
    waits_ms = log.state.producer_groups["PG"].undecided["T1"].next_check - log.now_ms
    assert told(log).endswith(f"The next check is due in {span(waits_ms)}.")
    log.later(waits_ms)
    assert told(log).endswith("Its check is due now.")


def test_a_check_is_open_while_an_answer_to_it_may_come_soon() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))

    def is_open() -> bool:
        return check_is_open(log.state, "PG", "T1", log.now_ms)

    assert not is_open(), "never prepared"
    reply = log.do(half("T1"))
    assert not is_open(), "in its grace period"
    log.checks_after(6_100)
    assert is_open(), "sent"
    log.do(end("T1", reply, RequestedVerdict.UNKNOWN, from_check=True))
    assert not is_open(), "answered with UNKNOWN"
    log.later(60_000)
    assert is_open(), "due"
    log.session(ConnectionClosed(3))
    assert not is_open(), "nobody is there to answer"
    log.do(end("T1", reply))
    assert not is_open(), "settled"


def test_what_is_told_of_others_and_of_nobody() -> None:
    log = CoreLog()
    unknown = (
        "is not undecided, and not among the recent verdicts. It was settled longer ago, when the transaction table may "
        "still know it, or it was never prepared here."
    )
    assert told(log) == f"Transaction T1 of producer group PG {unknown}"
    assert told(log, group="") == f"Transaction T1 {unknown}"
    log.do(half("T1", group="A"))
    log.do(end("T1", log.do(half("T1", group="B")), group="B"))
    assert told(log) == "Transaction T1 is not of producer group PG but of A and B."


def test_a_group_that_fetches_its_checks_is_told_who_gets_it() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.later(7_000)
    log.state.producer_groups["PG"].session.pollers[5] = "poller-5"
    assert told(log).endswith("It is due, and goes to the next client that fetches the checks of group PG.")
    log.state.producer_groups["PG"].session.in_flight["T1"] = InFlight(log.now_ms + 2_000, 5)
    assert "It waits for the response of poller-5, for another 2 s" in told(log)


def test_a_verdict_by_a_newer_version_names_nobody() -> None:
    log = CoreLog()
    position = log.do(end("T1", log.do(half("T1")))).position
    settled = log.state.producer_groups["PG"].settled
    settled["T1"] = replace(settled["T1"], decided_by=99)
    assert told(log).endswith(f"at log position {position}; its message became visible at that position.")


def test_immunity_and_the_wait_for_an_answer_end_exactly_then() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    log.do(half("T1"))
    log.later(5_999)
    assert told(log).endswith("in its grace period: no check is sent for another 1 ms.")
    log.later(1)
    assert "in its grace period" not in told(log)
    log.checks_after(100)
    log.later(4_999)
    assert "waits for the response of client-3, for another 1 ms" in told(log)
    log.later(1)
    assert "waits for the response" not in told(log)


def test_that_nobody_is_connected_is_said_to_its_end() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.later(60_000)
    assert told(log).endswith(
        "It waits because no producer of group PG is connected; one that connects gets a check at once, and an operator can decide."
    )


def test_a_full_budget_is_full_at_exactly_that_number() -> None:
    log = CoreLog()
    log.session(producer(3, log.now_ms))
    object.__setattr__(log.state.settings, "checks_in_flight_max", 2)
    for number in range(3):
        log.do(half(f"T{number}"))
    asked = {effect.tx_id for effect in log.checks_after(6_100)}
    assert len(asked) == 2
    (waiting,) = {"T0", "T1", "T2"} - asked
    assert told(log, waiting).endswith("Its check is due, after 2 checks of its group that await responses.")
    log.state.producer_groups["PG"].session.in_flight.popitem()
    assert told(log, waiting).endswith("Its check is due now.")


def test_batch_of_a_query_is_named_with_what_can_be_done() -> None:
    log = CoreLog()
    for index in range(2):
        log.do(half_batch(index=index, messages=40))
    text = " ".join(story(log.state, "PG", "q1:0:r1", log.now_ms))
    assert "It has 80 messages in 2 half batches for orders" in text
    assert "batch 0 of query q1, run r1" in text
    log.do(half_batch("T1", "", index=0, count=2))
    assert "missing messages" in " ".join(story(log.state, "PG", "T1", log.now_ms))
