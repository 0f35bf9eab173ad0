"""One transaction, judged: who said what, what was told, what is in the log, what was seen."""

from typing import Any

import pytest
from tests.support.tales import TOPIC, C, R, Tale

from halfmq.testing.history.events import Fault
from halfmq.testing.history.report import BY_NOBODY, CHANGED, DUPLICATE, LOST, NOT_DURABLE, PHANTOM, STUCK, TORN


def test_a_committed_transaction_that_was_seen_is_clean() -> None:
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


def test_both_verdicts_told_is_a_changed_verdict() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=C)
    tale.end(verdict=R, by="check")
    assert tale.found() == {CHANGED: 1}
    assert tale.sentence() == "two verdicts: told COMMITTED at 140 us, told ROLLED_BACK at 160 us"


def test_told_one_way_and_logged_the_other_is_a_changed_verdict() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(verdict=C, outcome="ok", position=64)
    tale.end(verdict=R, outcome=None, by="check")
    tale.log("half", 0, tx="T", message="T")
    tale.log("rollback", 64, tx="T", decided_by="check")
    assert tale.found() == {CHANGED: 1}


def test_rolled_back_was_told_and_the_message_seen_by_a_commit_that_was_said_too() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=C, outcome=None)
    tale.end(verdict=R, by="check")
    tale.seen()
    assert tale.found() == {CHANGED: 1}


def test_the_same_verdict_told_again_is_no_change() -> None:
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


def test_two_commit_records_show_its_messages_twice() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(outcome=None)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0))
    tale.commit(128, (1, 0))
    assert tale.found() == {DUPLICATE: 1}


# --- promise 2


def test_a_verdict_that_nobody_said() -> None:
    tale = Tale()
    tale.half()
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (0, 0))
    assert tale.found() == {BY_NOBODY: 1}
    assert tale.sentence() == "COMMITTED was in the log, but nobody said so"


def test_a_verdict_that_is_told_before_anybody_said_it() -> None:
    """The second request is too late to have been what decided."""
    tale = Tale()
    tale.half()
    tale.half(outcome="settled", stands=R)
    tale.end(verdict=R, by="check")
    assert tale.found() == {BY_NOBODY: 1}
    assert "before anybody said so" in tale.sentence()


def test_a_verdict_against_the_database_is_nobodys_whoever_said_it_but_an_operator() -> None:
    for by, found in (("application", {BY_NOBODY: 1}), ("check", {BY_NOBODY: 1}), ("operator", {})):
        tale = Tale()
        tale.half()
        tale.local(outcome=C)
        tale.end(verdict=R, by=by)
        assert tale.found() == found, by


def test_a_policy_decides_only_in_its_groups() -> None:
    for groups, found in (((), {BY_NOBODY: 1}), (("g",), {})):
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
    assert tale.found() == {BY_NOBODY: 1}
    assert "none ever commits" in tale.sentence()


def test_in_a_group_with_a_policy_others_are_held_to_what_was_said() -> None:
    """The policy rolls back, and says so in its record: nothing else of the group may be decided by nobody."""
    for told, decided_by, found in (
        (C, "", {BY_NOBODY: 1}),
        (R, "check", {BY_NOBODY: 1}),
        (R, "policy", {}),
        (R, "", {}),
    ):
        tale = Tale(policy_groups=("g",))
        tale.half(outcome="settled", stands=told)
        if decided_by:
            tale.log("rollback", 64, tx="T", decided_by=decided_by)
        assert tale.found() == found, (told, decided_by)


def test_what_a_policy_rolled_back_is_not_seen() -> None:
    tale = Tale(policy_groups=("g",))
    tale.half()
    tale.seen()
    assert tale.found() == {PHANTOM: 1}


def test_a_rollback_that_is_asked_for_behind_a_policys_is_not_out_of_order() -> None:
    tale = Tale(policy_groups=("g",))
    tale.half("A", offset=0)
    tale.log("half", 0, tx="A", message="A")
    tale.log("rollback", 64, tx="A", decided_by="policy")
    tale.half("B", offset=128)
    tale.end(tx="A", verdict=R, position=64)
    tale.log("half", 128, tx="B", message="B")
    assert tale.found() == {}


def test_seen_although_the_database_rolled_back() -> None:
    tale = Tale()
    tale.half()
    tale.local(outcome=R)
    tale.seen()
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen, but the database says ROLLED_BACK"


def test_seen_although_nobody_committed_or_not_yet() -> None:
    tale = Tale()
    tale.half()
    tale.seen()
    assert tale.sentence() == "it was seen, but nobody said so"
    tale.end()
    assert tale.found() == {PHANTOM: 1}
    assert "before anybody said so" in tale.sentence()


def test_a_message_that_the_database_does_not_have_is_a_phantom_of_its_transaction() -> None:
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


def test_told_committed_and_not_seen_by_who_read_everything_is_lost() -> None:
    tale = committed()
    tale.end()
    tale.read(0)
    assert tale.found() == {LOST: 1}
    assert tale.sentence() == "it is committed, and r, who read everything, never saw it"


def test_what_was_read_before_the_verdict_was_told_is_no_loss() -> None:
    tale = committed()
    since = tale.now
    tale.end()
    tale.read(0, since_us=since)
    assert tale.found() == {}


def test_a_commit_that_nobody_acknowledged_must_be_visible_when_all_has_settled() -> None:
    for unresolved, found in (((), {LOST: 1}), (("g",), {})):
        tale = committed()
        tale.end(outcome=None)
        tale.settled(*unresolved)
        tale.read(0)
        assert tale.found() == found


def test_what_was_trimmed_before_it_was_read_is_not_judged() -> None:
    tale = committed()
    tale.end()
    tale.read(7, first=7)
    assert tale.found() == {}


def test_a_delayed_message_is_not_missed() -> None:
    tale = Tale()
    tale.half(delay_ms=5)
    tale.end()
    tale.read(0)
    assert tale.found() == {}


def test_acknowledged_then_a_restart_then_gone_was_not_durable() -> None:
    tale = committed()
    tale.end()
    tale.restart()
    tale.read(0)
    assert tale.found() == {NOT_DURABLE: 1}


def test_a_part_that_was_seen_is_torn_where_a_transaction_is_atomic() -> None:
    for atomic, found in ((True, {TORN: 1}), (False, {LOST: 1})):
        tale = committed(3, atomic=atomic)
        tale.end()
        tale.seen("m0", 0)
        tale.seen("m2", 1)
        tale.settled()
        tale.read(2)
        assert tale.found() == found


def test_a_commit_record_that_shows_a_part_is_torn() -> None:
    tale = Tale()
    for index in range(2):
        tale.half(message=f"m{index}", index=index, offset=index * 64)
    tale.end(position=128)
    for index in range(2):
        tale.log("half", index * 64, tx="T", message=f"m{index}", index=index)
    tale.commit(128, (0, 0))
    assert tale.found() == {TORN: 1}
    assert tale.sentence() == "the commit at log offset 128 shows 1 of its 2 messages"


def test_a_half_that_was_refused_is_not_expected() -> None:
    tale = committed()
    tale.half(message="no", index=1, outcome="refused")
    tale.end()
    tale.seen("m0")
    tale.settled()
    tale.read(1)
    assert tale.found() == {}


def test_seen_elsewhere_than_the_log_has_it_is_two_places() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.end(position=64)
    tale.seen(at=5)
    tale.log("half", 0, tx="T", message="T")
    tale.commit(64, (4, 0))
    assert tale.found() == {DUPLICATE: 1}


# --- promise 5


def test_an_acknowledged_half_that_the_log_does_not_have() -> None:
    tale = Tale()
    tale.half(offset=64)
    tale.log("other", 0)
    assert tale.found() == {NOT_DURABLE: 1}
    assert tale.sentence() == "it was acknowledged at log offset 64; the log has no record of it there"


def test_what_lies_before_the_start_of_the_log_was_trimmed() -> None:
    tale = Tale()
    tale.half(offset=64)
    tale.end(verdict=R, position=128)
    tale.log("other", 192)
    tale.log("trim", 256, log_start=192)
    assert tale.found() == {}


def test_an_acknowledged_verdict_that_the_log_does_not_have() -> None:
    for position in (128, -1):
        tale = Tale()
        tale.half(offset=64)
        tale.end(position=position)
        tale.log("half", 64, tx="T", message="T")
        assert tale.found() == {NOT_DURABLE: 1}


def test_without_durability_nothing_is_forgotten_by_a_power_loss() -> None:
    for what, found in (("power", {}), ("kill", {NOT_DURABLE: 1})):
        tale = Tale(durability="memory")
        tale.half(offset=64)
        tale.add(Fault, what=what)
        tale.log("other", 0)
        assert tale.found() == found


# --- promise 7


def test_a_half_in_the_log_without_a_verdict_after_all_settled_is_stuck() -> None:
    for unresolved, found in (((), {STUCK: 1}), (("g",), {})):
        tale = Tale()
        tale.half(offset=0)
        tale.local()
        tale.end(outcome=None)
        tale.settled(*unresolved)
        tale.read(0)
        tale.log("half", 0, tx="T", message="T")
        assert tale.found() == found


def test_what_is_asked_about_after_all_settled_is_stuck() -> None:
    tale = Tale()
    tale.half()
    tale.check()
    tale.settled()
    assert tale.found() == {}
    tale.check()
    assert tale.found() == {STUCK: 1}


def test_what_was_prepared_after_all_settled_is_not_judged() -> None:
    tale = Tale()
    tale.settled()
    tale.half(offset=0)
    tale.log("half", 0, tx="T", message="T")
    assert tale.found() == {}


@pytest.mark.parametrize("topic", ["%RETRY%readers", "%DLQ%readers"])
def test_a_copy_in_a_retry_topic_is_no_second_place_and_no_sighting(topic: str) -> None:
    tale = committed()
    tale.end()
    tale.seen("m0")
    tale.seen("m0", at=9, topic=topic)
    tale.read(1)
    assert tale.found() == {}
    assert TOPIC not in topic


# --- a refusal changed nothing


def test_who_was_refused_has_decided_nothing() -> None:
    """Unless somebody said so too: another request, of whoever it was, or the database."""
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
            assert tale.sentence() == "it was seen, but whoever said so was refused"
    tale = Tale()
    tale.half()
    tale.local()
    tale.end(outcome="refused")
    tale.seen()
    assert tale.found() == {}


def test_a_verdict_that_is_told_although_who_said_it_was_refused() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=R, outcome="refused")
    tale.half(outcome="settled", stands=R)
    assert tale.found() == {BY_NOBODY: 1}
    tale.end(verdict=R, outcome="ok")
    assert tale.found() == {BY_NOBODY: 1}
    assert "before anybody said so" in tale.sentence()


def test_an_operator_who_was_refused_is_no_match_for_the_database() -> None:
    for outcome, found in (("refused", {PHANTOM: 1}), ("ok", {})):
        tale = Tale()
        tale.half()
        tale.local(outcome=R)
        tale.end(by="operator", outcome=outcome)
        tale.seen()
        assert tale.found() == found


def test_what_was_told_rolled_back_is_a_changed_verdict_also_where_the_commit_was_refused() -> None:
    tale = Tale()
    tale.half()
    tale.end(verdict=R)
    tale.end(outcome="refused")
    tale.seen()
    assert tale.found() == {CHANGED: 1}


# --- what a commit record shows


def shows(*halves: int, trimmed: bool = False) -> Tale:
    """Two transactions of one half each, at 0 and 64; the first is committed, and its record shows these."""
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


def test_a_commit_record_that_shows_the_half_of_another_transaction_instead_of_its_own_is_torn() -> None:
    tale = shows(64)
    assert tale.found() == {TORN: 1}
    assert (
        tale.sentence()
        == "the commit at log offset 128 shows 0 of its 1 messages, and log offset 64, which is none of them"
    )


def test_a_commit_record_that_shows_the_half_of_another_transaction_beside_its_own_is_a_phantom() -> None:
    tale = shows(0, 64)
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "the commit at log offset 128 shows log offset 64, which is no half of it"


def test_a_commit_record_may_show_halves_that_were_trimmed() -> None:
    assert shows(0, trimmed=True).found() == {}
    tale = Tale()
    tale.half(outcome=None)
    tale.end(position=128)
    tale.log("other", 96)
    tale.commit(128, (0, 0))
    tale.log("trim", 192, log_start=96)
    assert tale.found() == {}


def test_a_commit_record_that_shows_a_trimmed_half_and_not_all_others_is_torn() -> None:
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


def test_a_copy_that_does_not_tell_its_message_is_the_half_of_its_index() -> None:
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


# --- what is not asked about, and who the log names


def test_an_acknowledged_half_that_nobody_ever_asked_about_is_stuck_where_no_log_was_read() -> None:
    tale = Tale()
    tale.half()
    tale.settled()
    assert tale.found() == {STUCK: 1}
    assert tale.sentence() == "its half was acknowledged, all was settled, and nobody ever asked about it or decided it"


def test_nothing_is_stuck_that_may_have_been_decided_or_need_not_be() -> None:
    for what in ("said", "refused", "checked", "in the database", "not acknowledged", "no resolver", "a policy"):
        tale = Tale(policy_groups=("g",) if what == "a policy" else ())
        tale.half(outcome=None if what == "not acknowledged" else "ok")
        if what in ("said", "refused"):
            tale.end(verdict=R, outcome="refused" if what == "refused" else None)
        elif what == "checked":
            tale.check()
        elif what == "in the database":  # its verdict may have been said by somebody who is not recorded
            tale.local(outcome=R)
        tale.settled(*(("g",) if what == "no resolver" else ()))
        assert tale.found() == {}, what
    tale = Tale()
    tale.settled()
    tale.half()
    assert tale.found() == {}


def test_a_verdict_that_the_log_gives_to_an_operator_was_said_by_one() -> None:
    for by, outcome, found in (
        ("application", "ok", {BY_NOBODY: 1}),
        ("operator", "ok", {}),
        ("operator", None, {}),
        ("operator", "refused", {BY_NOBODY: 1}),
    ):
        tale = Tale()
        tale.half(offset=0)
        tale.end(outcome=None)
        tale.end(outcome=outcome, by=by)
        tale.log("half", 0, tx="T", message="T")
        tale.commit(64, (0, 0), by="operator")
        assert tale.found() == found, (by, outcome)
        if found:
            assert tale.sentence() == "COMMITTED at log offset 64 was decided by an operator; none said so"
