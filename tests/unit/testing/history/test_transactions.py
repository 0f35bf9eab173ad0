"""Checks of one transaction: requested, acknowledged and logged verdicts, the database, and received messages."""

from typing import Any

import pytest
from tests.support.tales import TOPIC, C, R, Tale

from halfmq.testing.history.events import Fault
from halfmq.testing.history.report import CHANGED, DUPLICATE, LOST, NOT_DURABLE, PHANTOM, STUCK, TORN, UNREQUESTED


def test_a_committed_transaction_that_was_received_is_clean() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.local()
    tale.end(position=64)
    tale.seen()
    tale.settled()
    tale.read(1)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0))
    assert tale.found() == {}


# --- promise 1


def test_two_acknowledged_verdicts_are_a_changed_verdict() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=C)
    tale.end(verdict=R, by="check")
    assert tale.found() == {CHANGED: 1}
    assert tale.sentence() == "two verdicts: COMMITTED acknowledged at 140 us, ROLLED_BACK acknowledged at 160 us"


def test_one_verdict_acknowledged_and_the_other_logged_is_a_changed_verdict() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(verdict=C, outcome="ok", position=64)
    tale.end(verdict=R, outcome=None, by="check")
    tale.log("half", 0, tx="T", message="T")
    tale.log("rollback", 64, tx="T", decided_by="check")
    assert tale.found() == {CHANGED: 1}


def test_rollback_acknowledged_but_message_received_after_a_requested_commit_is_a_changed_verdict() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=C, outcome=None)
    tale.end(verdict=R, by="check")
    tale.seen()
    assert tale.found() == {CHANGED: 1}


def test_the_same_verdict_acknowledged_again_is_no_change() -> None:
    tale = Tale()
    tale.half()
    tale.end(position=64)
    tale.restart()
    tale.end(position=64)
    tale.end(verdict=R, outcome="settled", by="operator", position=64, stands=C)
    assert tale.found() == {}


def test_a_verdict_at_another_position_after_a_restart_was_not_durable() -> None:
    for restart, kind in ((True, NOT_DURABLE), (False, CHANGED)):
        tale = Tale()
        tale.half()
        tale.end(position=64)
        if restart:
            tale.restart()
        tale.end(position=128)
        assert tale.found() == {kind: 1}


def test_two_commit_records_make_its_messages_visible_twice() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(outcome=None)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0))
    tale.commit(128, (1, 0))
    assert tale.found() == {DUPLICATE: 1}


# --- promise 2


def test_a_verdict_that_nobody_requested_is_reported() -> None:
    tale = Tale()
    tale.half()
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0))
    assert tale.found() == {UNREQUESTED: 1}
    assert tale.sentence() == "COMMITTED was in the log, but nobody requested COMMITTED"


def test_a_verdict_acknowledged_before_it_was_requested_is_reported() -> None:
    """The second request came too late to have caused it."""
    tale = Tale()
    tale.half()
    tale.half(outcome="settled", stands=R)
    tale.end(verdict=R, by="check")
    assert tale.found() == {UNREQUESTED: 1}
    assert "before ROLLED_BACK was requested" in tale.sentence()


def test_only_an_operator_may_decide_against_the_database() -> None:
    for by, found in (("application", {UNREQUESTED: 1}), ("check", {UNREQUESTED: 1}), ("operator", {})):
        tale = Tale()
        tale.half()
        tale.local(outcome=C)
        tale.end(verdict=R, by=by)
        assert tale.found() == found, by


def test_a_policy_decides_only_in_its_groups() -> None:
    for groups, found in (((), {UNREQUESTED: 1}), (("g",), {})):
        tale = Tale(policy_groups=groups)
        tale.half(offset=0)
        tale.local(outcome=C)
        tale.settled()
        tale.read(0)
        tale.log("half", 0, tx="T", message="T")
        tale.log("rollback", 64, tx="T", decided_by="policy")
        assert tale.found() == found


def test_a_policy_never_commits() -> None:
    tale = Tale(policy_groups=("g",))
    tale.half(offset=0)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0), by="policy")
    assert tale.found() == {UNREQUESTED: 1}
    assert "policies never commit" in tale.sentence()


def test_in_a_group_with_a_policy_other_verdicts_must_still_be_requested() -> None:
    """A rollback by the policy has a record that says so; any other verdict of the group must have been requested."""
    for told, decided_by, found in (
        (C, "", {UNREQUESTED: 1}),
        (R, "check", {UNREQUESTED: 1}),
        (R, "policy", {}),
        (R, "", {}),
    ):
        tale = Tale(policy_groups=("g",))
        tale.half(outcome="settled", stands=told)
        if decided_by:
            tale.log("rollback", 64, tx="T", decided_by=decided_by)
        assert tale.found() == found, (told, decided_by)


def test_messages_that_a_policy_rolled_back_must_not_be_received() -> None:
    tale = Tale(policy_groups=("g",))
    tale.half()
    tale.seen()
    assert tale.found() == {PHANTOM: 1}


def test_a_rollback_requested_after_that_of_a_policy_is_not_out_of_order() -> None:
    tale = Tale(policy_groups=("g",))
    tale.half("A", offset=0)
    tale.log("half", 0, tx="A", message="A")
    tale.log("rollback", 64, tx="A", decided_by="policy")
    tale.half("B", offset=128)
    tale.end(tx="A", verdict=R, position=64)
    tale.log("half", 128, tx="B", message="B")
    assert tale.found() == {}


def test_a_message_received_although_the_database_rolled_back_is_a_phantom() -> None:
    tale = Tale()
    tale.half()
    tale.local(outcome=R)
    tale.seen()
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen, but the database says ROLLED_BACK"


def test_a_message_received_before_or_without_a_commit_is_a_phantom() -> None:
    tale = Tale()
    tale.half()
    tale.seen()
    assert tale.sentence() == "it was seen, but nobody requested COMMITTED"
    tale.end()
    assert tale.found() == {PHANTOM: 1}
    assert "before COMMITTED was requested" in tale.sentence()


def test_a_message_that_the_database_does_not_list_is_a_phantom_of_its_transaction() -> None:
    tale = Tale()
    tale.half(message="a")
    tale.half(message="b", index=1)
    tale.local(messages=("a",))
    tale.end()
    tale.seen("a")
    assert tale.found() == {}
    tale.seen("b", at=1)
    assert tale.found() == {PHANTOM: 1}


# --- promises 3 and 4


def committed(count: int = 1, **began: Any) -> Tale:
    tale = Tale(**began)
    for index in range(count):
        tale.half(message=f"m{index}", index=index)
    tale.local()
    return tale


def test_a_committed_message_that_a_complete_read_did_not_receive_is_lost() -> None:
    tale = committed()
    tale.end()
    tale.read(0)
    assert tale.found() == {LOST: 1}
    assert tale.sentence() == "it is committed, and r, which read everything, never received it"


def test_a_read_before_the_verdict_was_acknowledged_proves_no_loss() -> None:
    tale = committed()
    since = tale.now
    tale.end()
    tale.read(0, since_us=since)
    assert tale.found() == {}


def test_an_unacknowledged_commit_must_be_visible_when_the_history_has_settled() -> None:
    for unresolved, found in (((), {LOST: 1}), (("g",), {})):
        tale = committed()
        tale.end(outcome=None)
        tale.settled(*unresolved)
        tale.read(0)
        assert tale.found() == found


def test_messages_trimmed_before_they_were_read_are_not_checked() -> None:
    tale = committed()
    tale.end()
    tale.read(7, first=7)
    assert tale.found() == {}


def test_a_delayed_message_is_not_reported_as_missing() -> None:
    tale = Tale()
    tale.half(delay_ms=5)
    tale.end()
    tale.read(0)
    assert tale.found() == {}


def test_an_acknowledged_commit_that_is_missing_after_a_restart_was_not_durable() -> None:
    tale = committed()
    tale.end()
    tale.restart()
    tale.read(0)
    assert tale.found() == {NOT_DURABLE: 1}


def test_a_partly_received_atomic_transaction_is_torn() -> None:
    for atomic, found in ((True, {TORN: 1}), (False, {LOST: 1})):
        tale = committed(3, atomic=atomic)
        tale.end()
        tale.seen("m0", 0)
        tale.seen("m2", 1)
        tale.settled()
        tale.read(2)
        assert tale.found() == found


def test_a_commit_record_with_a_part_of_the_messages_is_torn() -> None:
    tale = Tale()
    for index in range(2):
        tale.half(message=f"m{index}", index=index, offset=index * 64)
    tale.end(position=128)
    for index in range(2):
        tale.log("half", index * 64, tx="T", message=f"m{index}", index=index)
    tale.commit(128, (0, 0))
    assert tale.found() == {TORN: 1}
    assert tale.sentence() == "the commit at log offset 128 shows 1 of its 2 messages"


def test_a_refused_half_is_not_expected() -> None:
    tale = committed()
    tale.half(message="no", index=1, outcome="refused")
    tale.end()
    tale.seen("m0")
    tale.settled()
    tale.read(1)
    assert tale.found() == {}


def test_a_message_received_at_another_place_than_logged_is_at_two_places() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(position=64)
    tale.seen(at=5)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (4, 0))
    assert tale.found() == {DUPLICATE: 1}


# --- promise 5


def test_an_acknowledged_half_that_is_missing_in_the_log_is_reported() -> None:
    tale = Tale()
    tale.half(offset=64)
    tale.log("other", 0)
    assert tale.found() == {NOT_DURABLE: 1}
    assert tale.sentence() == "it was acknowledged at log offset 64; the log has no record of it"


def test_halves_before_the_start_of_the_log_were_trimmed() -> None:
    tale = Tale()
    tale.half(offset=64)
    tale.end(verdict=R, position=128)
    tale.log("other", 192)
    tale.log("trim", 256, log_start=192)
    assert tale.found() == {}


def test_an_acknowledged_verdict_that_is_missing_in_the_log_is_reported() -> None:
    for position in (128, -1):
        tale = Tale()
        tale.half(offset=64)
        tale.end(position=position)
        tale.log("half", 64, tx="T", message="T")
        assert tale.found() == {NOT_DURABLE: 1}


def test_a_power_loss_with_durability_memory_gives_no_durability_violation() -> None:
    for what, found in (("power", {}), ("kill", {NOT_DURABLE: 1})):
        tale = Tale(durability="memory")
        tale.half(offset=64)
        tale.add(Fault, what=what)
        tale.log("other", 0)
        assert tale.found() == found


# --- promise 7


def test_a_logged_half_without_a_verdict_is_stuck_when_the_history_has_settled() -> None:
    for unresolved, found in (((), {STUCK: 1}), (("g",), {})):
        tale = Tale()
        tale.half(offset=0)
        tale.local()
        tale.end(outcome=None)
        tale.settled(*unresolved)
        tale.read(0)
        tale.log("half", 0, tx="T", message="T")
        assert tale.found() == found


def test_a_transaction_still_checked_after_the_history_settled_is_stuck() -> None:
    tale = Tale()
    tale.half()
    tale.check()
    tale.settled()
    assert tale.found() == {}
    tale.check()
    assert tale.found() == {STUCK: 1}


def test_transactions_prepared_after_the_history_settled_are_not_checked() -> None:
    tale = Tale()
    tale.settled()
    tale.half(offset=0)
    tale.log("half", 0, tx="T", message="T")
    assert tale.found() == {}


@pytest.mark.parametrize("topic", ["%RETRY%readers", "%DLQ%readers"])
def test_a_copy_in_a_retry_topic_is_no_second_place_and_no_receipt(topic: str) -> None:
    tale = committed()
    tale.end()
    tale.seen("m0")
    tale.seen("m0", at=9, topic=topic)
    tale.read(1)
    assert tale.found() == {}
    assert TOPIC not in topic


# --- a refused request changed nothing


def test_a_refused_request_decided_nothing() -> None:
    """Unless another request, by anybody, asked for the same verdict, or the database has it."""
    for others, found in (
        ([], {PHANTOM: 1}),
        (["refused"], {PHANTOM: 1}),
        (["ok"], {}),
        ([None], {}),
    ):
        tale = Tale()
        tale.half()
        tale.end(outcome="refused")
        for outcome in others:
            tale.end(outcome=outcome, by="check")
        tale.seen()
        assert tale.found() == found, others
        if found:
            assert tale.sentence() == "it was seen, but every request for COMMITTED was refused"
    tale = Tale()
    tale.half()
    tale.local()
    tale.end(outcome="refused")
    tale.seen()
    assert tale.found() == {}


def test_an_acknowledged_verdict_whose_every_request_was_refused_is_reported() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=R, outcome="refused")
    tale.half(outcome="settled", stands=R)
    assert tale.found() == {UNREQUESTED: 1}
    tale.end(verdict=R, outcome="ok")
    assert tale.found() == {UNREQUESTED: 1}
    assert "before ROLLED_BACK was requested" in tale.sentence()


def test_a_refused_operator_does_not_override_the_database() -> None:
    for outcome, found in (("refused", {PHANTOM: 1}), ("ok", {})):
        tale = Tale()
        tale.half()
        tale.local(outcome=R)
        tale.end(by="operator", outcome=outcome)
        tale.seen()
        assert tale.found() == found


def test_an_acknowledged_rollback_is_a_changed_verdict_even_if_the_commit_request_was_refused() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=R)
    tale.end(outcome="refused")
    tale.seen()
    assert tale.found() == {CHANGED: 1}


# --- halves in a commit record


def shows(*halves: int, trimmed: bool = False) -> Tale:
    """Two transactions of one half each, at offsets 0 and 64. The first is committed, and its record contains ``halves``."""
    tale = Tale()
    tale.half(offset=0)
    tale.half("U", offset=64)
    tale.end(position=128)
    if trimmed:
        tale.log("trim", 192, log_start=96)
    else:
        tale.log("half", 0, tx="T", message="T")
        tale.log("half", 64, tx="U", message="U")
    tale.log("other", 96)
    tale.commit(128, *((at, half) for at, half in enumerate(halves)))
    return tale


def test_a_commit_record_with_the_half_of_another_transaction_instead_of_its_own_is_torn() -> None:
    tale = shows(64)
    assert tale.found() == {TORN: 1}
    assert (
        tale.sentence()
        == "the commit at log offset 128 shows 0 of its 1 messages, and log offset 64, which is none of them"
    )


def test_a_commit_record_with_the_half_of_another_transaction_besides_its_own_is_a_phantom() -> None:
    tale = shows(0, 64)
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "the commit at log offset 128 shows log offset 64, which is not one of its halves"


def test_a_commit_record_may_contain_halves_that_were_trimmed() -> None:
    assert shows(0, trimmed=True).found() == {}
    tale = Tale()
    tale.half(outcome=None)
    tale.end(position=128)
    tale.log("other", 96)
    tale.commit(128, (0, 0))
    tale.log("trim", 192, log_start=96)
    assert tale.found() == {}


def test_a_commit_record_with_a_trimmed_half_but_without_one_of_the_others_is_torn() -> None:
    tale = Tale()
    for index in range(3):
        tale.half(message=f"m{index}", index=index, outcome=None)
    tale.end(position=256)
    for index in (1, 2):
        tale.log("half", 96 + index * 64, tx="T", message=f"m{index}", index=index)
    tale.commit(256, (0, 0), (1, 160))
    tale.log("trim", 320, log_start=96)
    assert tale.found() == {TORN: 1}
    assert tale.sentence() == "the commit at log offset 256 shows 2 of its 3 messages"


def test_a_copy_without_a_message_id_is_identified_by_its_index() -> None:
    for shown, found in (((96, 160), {}), ((96, 192), {TORN: 1})):
        tale = Tale()
        for index in range(2):
            tale.half(message=f"m{index}", index=index, offset=index * 64)
            tale.log("half", index * 64, tx="T", message=f"m{index}", index=index)
        tale.end(position=256)
        tale.log("copy", 96, tx="T", index=0)
        tale.log("copy", 160, tx="T", index=1)
        tale.log("copy", 192, tx="U", index=0)
        tale.commit(256, *enumerate(shown))
        assert tale.found() == found


# --- transactions without a check, and operators named by the log


def test_an_acknowledged_half_that_was_never_checked_is_stuck_if_no_log_was_read() -> None:
    tale = Tale()
    tale.half()
    tale.settled()
    assert tale.found() == {STUCK: 1}
    assert tale.sentence() == "its half was acknowledged and the history settled, but it was never checked or decided"


def test_transactions_that_may_be_decided_or_need_no_verdict_are_not_stuck() -> None:
    for what in ("said", "refused", "checked", "in the database", "not acknowledged", "no resolver", "a policy"):
        tale = Tale(policy_groups=("g",) if what == "a policy" else ())
        tale.half(outcome=None if what == "not acknowledged" else "ok")
        if what in ("said", "refused"):
            tale.end(verdict=R, outcome="refused" if what == "refused" else None)
        elif what == "checked":
            tale.check()
        elif what == "in the database":  # an unrecorded process may have requested its verdict
            tale.local(outcome=R)
        tale.settled(*(("g",) if what == "no resolver" else ()))
        assert tale.found() == {}, what
    tale = Tale()
    tale.settled()
    tale.half()
    assert tale.found() == {}


def test_a_verdict_that_the_log_attributes_to_an_operator_must_be_requested_by_one() -> None:
    for by, outcome, found in (
        ("application", "ok", {UNREQUESTED: 1}),
        ("operator", "ok", {}),
        ("operator", None, {}),
        ("operator", "refused", {UNREQUESTED: 1}),
    ):
        tale = Tale()
        tale.half(offset=0)
        tale.end(outcome=None)
        tale.end(outcome=outcome, by=by)
        tale.log("half", 0, tx="T", message="T")
        tale.commit(64, (0, 0), by="operator")
        assert tale.found() == found, (by, outcome)
        if found:
            assert tale.sentence() == "COMMITTED at log offset 64 was decided by an operator; no operator requested it"
