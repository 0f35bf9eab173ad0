"""Administrators make and remove users, and there is always one of them; what a user does is in the log under its name."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, changed, end, half, half_batch, part, refused, sent, winner
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq import limits
from halfmq.core import base as base_module
from halfmq.core.base import base_payload
from halfmq.core.base_bytes import user_bytes
from halfmq.core.commands import (
    Actor,
    CopyForward,
    DecideBatch,
    FenceTransaction,
    RemoveUser,
    RequestedVerdict,
    ResolveTransaction,
    SetUser,
    TrimLog,
)
from halfmq.core.decision import BatchDecided, Done, Settled, UserIsSet, UserRemoved, Why
from halfmq.core.schema import set_user
from halfmq.core.state import State
from halfmq.errors import InvariantViolated
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import (
    Base,
    Committed,
    CopiedHalf,
    CopiedHalfBatch,
    Decided,
    HalfBatch,
    HalfRecord,
    OperatorActed,
    OperatorAction,
    RolledBack,
    UserSet,
)
from halfmq.model.settings import USERS_PART, BrokerSettings
from halfmq.model.users import ALL_PERMISSIONS, User, UserLimits, UserSecret

ADA = Actor("ada", "a test", "10.0.0.1:5")
SECRET = UserSecret(b"sealed")
ROOT = User((SECRET,), "$argon2id$root", ("administer:broker",))
SHOP = User((SECRET,), "", ("send:topic:orders-*",))
SEGMENT = 65_536
COMMIT, ROLLBACK = RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK


def counts(state: State) -> dict[str, int]:
    return {name: held.transactions for name, held in state.derived.undecided_of_user.items()}


def add(log: CoreLog, name: str, user: User = SHOP) -> Any:
    return log.do(SetUser(name, user, True, ADA))


def put(log: CoreLog, name: str, user: User) -> Any:
    return log.do(SetUser(name, user, False, ADA))


def remove(log: CoreLog, name: str) -> Any:
    return log.do(RemoveUser(name, ADA))


def with_users(segment_bytes: int = SEGMENT) -> CoreLog:
    log = CoreLog(BrokerSettings(segment_bytes=segment_bytes))
    assert add(log, "root", ROOT) == UserIsSet()
    assert add(log, "shop", SHOP) == UserIsSet()
    return log


def trim(log: CoreLog) -> None:
    """Let the log begin at its newest segment."""
    log.roll()
    start = max(log.state.bases)
    while log.do(CopyForward(start, 100)) == Done(again=True):
        pass
    assert log.do(TrimLog(start)) == Done()


def acted(log: CoreLog) -> Sequence[tuple[int, str, str]]:
    return [(one.action, one.subject, one.name) for one in log.of(OperatorActed)]


# --- making and removing them --------------------------------------------------------------------------------------


def test_a_user_is_made_changed_and_removed_and_the_log_says_by_whom() -> None:
    log = with_users()
    more = changed(SHOP, permissions=("send:topic:*",), limits=UserLimits(connections=3))
    assert put(log, "shop", more) == UserIsSet()
    assert log.state.users == {"root": ROOT, "shop": more}
    assert remove(log, "shop") == UserRemoved()
    assert log.state.users == {"root": ROOT}
    check(log.state)
    assert acted(log) == [
        (OperatorAction.SET_USER, "root", "ada"), (OperatorAction.SET_USER, "shop", "ada"),
        (OperatorAction.SET_USER, "shop", "ada"), (OperatorAction.REMOVE_USER, "shop", "ada"),
    ]  # fmt: skip
    assert [one.name for one in log.of(UserSet)] == ["root", "shop", "shop", "shop"]


def test_users_are_there_after_a_start_from_the_log_from_a_base_and_from_a_snapshot() -> None:
    log = with_users()
    users = log.state.users
    assert log.redone().users == users
    chunks = log.snapshot()
    trim(log)
    assert not [one for batch in log.remaining() for one in batch.records if isinstance(one, UserSet)]
    assert log.redone().users == users
    assert log.reloaded(chunks).users == users
    log.restart()
    assert remove(log, "shop") == UserRemoved()
    assert log.redone().users == {"root": ROOT}


def test_a_state_that_forgets_a_user_at_redo_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import halfmq.core.apply as module

    log = with_users()
    monkeypatch.setitem(module._APPLY, UserSet, lambda state, record: None)
    assert durable_digest(log.redone()) != durable_digest(log.state)


def test_a_base_without_users_has_the_bytes_that_it_had_before_there_were_any() -> None:
    log = CoreLog()
    (before,) = log.of(Base)
    names = [part.name for part in base_module._PARTS]
    assert names[-3:] == ["users", "restored_half_index", "settings"], "a further part is behind it, with a default"
    assert before.payload == base_payload(State(log.settings))


def test_a_difference_of_users_says_no_secret() -> None:
    log = with_users()
    other = CoreLog()
    log.roll()
    with pytest.raises(InvariantViolated, match="the users differ") as raised:
        base_module.apply_base(other.state, replace(log.of(Base)[-1], payload=with_users_of(other, log)))
    assert "sealed" not in str(raised.value)


def with_users_of(log: CoreLog, other: CoreLog) -> bytes:
    """The base of ``log``, with the users of ``other``."""
    state = log.redone()
    for name, user in other.state.users.items():
        set_user(state, name, user)
    return base_payload(state)


def test_a_new_user_has_a_new_name_and_a_change_needs_a_known_one() -> None:
    log = with_users()
    records = len(log.records)
    assert "exists already" in refused(add(log, "shop"), Why.USER_EXISTS).text
    assert "'ship'" in refused(put(log, "ship", SHOP), Why.NOT_FOUND).text
    refused(remove(log, "ship"), Why.NOT_FOUND)
    assert len(log.records) == records


def test_the_first_user_is_an_administrator_and_the_last_administrator_stays() -> None:
    log = CoreLog()
    assert "administer:broker" in refused(add(log, "shop"), Why.NOT_NOW).text
    assert log.state.users == {}
    add(log, "root", ROOT)
    refused(remove(log, "root"), Why.NOT_NOW)
    add(log, "shop", SHOP)
    refused(remove(log, "root"), Why.NOT_NOW)
    refused(put(log, "root", SHOP), Why.NOT_NOW)
    assert put(log, "shop", ROOT) == UserIsSet()
    assert remove(log, "root") == UserRemoved()
    refused(put(log, "shop", SHOP), Why.NOT_NOW)
    assert list(log.state.users) == ["shop"]
    check(log.state)


def test_the_right_to_administer_topics_makes_nobody_an_administrator() -> None:
    refused(add(CoreLog(), "shop", changed(SHOP, permissions=("administer:topic:*",))), Why.NOT_NOW)


def test_secrets_that_are_over_are_dropped_when_a_user_is_set() -> None:
    log = CoreLog()
    old = [UserSecret(b"old", log.now_ms), UserSecret(b"over", log.now_ms - 1), UserSecret(b"valid", log.now_ms + 1)]
    add(log, "root", changed(ROOT, secrets=(SECRET, *old)))
    assert log.state.users["root"].secrets == (SECRET, old[2])
    log.later(1)
    assert log.state.users["root"].secrets == (SECRET, old[2]), "only a change drops one"
    put(log, "root", log.state.users["root"])
    assert log.state.users["root"].secrets == (SECRET,)


def test_there_are_only_so_many_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "USERS_MAX", 3)
    log = with_users()
    add(log, "third")
    text = refused(add(log, "fourth"), Why.LIMIT_REACHED).text
    assert text == "user 'fourth' was not stored: this broker has 3 users, and may have 3"
    assert put(log, "third", SHOP) == UserIsSet()
    assert remove(log, "third") == UserRemoved()
    assert add(log, "fourth") == UserIsSet()


def test_users_have_a_part_of_a_base_and_the_refusal_says_the_figures() -> None:
    log = with_users()
    most = USERS_PART.bytes_max(SEGMENT)
    assert most == 896
    for number in range(limits.USERS_MAX):
        reply = add(log, f"user-{number}", changed(SHOP, permissions=ALL_PERMISSIONS[:number]))
        if reply != UserIsSet():
            break
    taken = sum(user_bytes(*one) for one in log.state.users.items())
    assert taken <= most
    text = refused(reply, Why.LIMIT_REACHED).text
    assert (
        f"{len(log.state.users)} users take {taken} of {most} bytes in the base of a segment of {SEGMENT} bytes" in text
    )
    assert put(log, "shop", changed(SHOP, permissions=())) == UserIsSet(), "less is always possible"
    check(log.state)
    log.roll()
    assert len(base_payload(log.state)) <= log.state.derived.base_bytes


def test_a_thousand_users_fit_in_the_base_of_a_usual_segment() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 28))
    add(log, "root", ROOT)
    most = changed(SHOP, secrets=(UserSecret(b"s" * 60),) * 2, password="$" * 100, permissions=ALL_PERMISSIONS)
    for number in range(limits.USERS_MAX - 1):
        assert add(log, f"user-{number}".ljust(limits.USER_NAME_CHARS_MAX, "x"), most) == UserIsSet()
    refused(add(log, "more"), Why.LIMIT_REACHED)
    assert len(log.state.users) == limits.USERS_MAX
    check(log.state)


# --- who prepared and who settled ----------------------------------------------------------------------------------


def test_a_half_and_its_verdict_say_their_users_also_after_a_trim() -> None:
    log = with_users()
    first = sent(log.do(half("T1", user="shop")))
    sent(log.do(half("T2", user="shop")))
    assert log.of(HalfRecord)[0].user == "shop"
    assert b"HMQ_USER\x01shop\x02" in log.of(HalfRecord)[0].properties
    trim(log)
    assert [one.user for one in log.of(CopiedHalf)] == ["shop", "shop"]
    log.restart()
    assert log.state.producer_groups["PG"].undecided["T1"].user == "shop"
    assert counts(log.state) == {"shop": 2}
    assert log.do(changed(end("T1", first), user="alice")).committed
    assert log.do(ResolveTransaction("PG", "T2", ROLLBACK, "ada", by=ADA, user="root")) != ()
    assert (log.of(Committed)[0].user, log.of(RolledBack)[0].user) == ("alice", "root")
    assert counts(log.state) == {}
    check(log.state)
    log.restart()


def test_without_users_records_are_as_they_were() -> None:
    log = CoreLog()
    log.do(end("T1", sent(log.do(half("T1")))))
    (prepared,), (verdict,) = log.of(HalfRecord), log.of(Committed)
    assert (prepared.user, verdict.user) == ("", "")
    assert b"HMQ_USER" not in prepared.properties
    assert counts(log.state) == {}


def test_several_halves_are_of_one_user_and_those_of_another_are_refused() -> None:
    """Else it would depend on which half is read first whose transaction it is."""
    log = with_users()
    first = part("T1", 0, user="shop")
    reply = sent(log.do(first))
    assert log.do(first) == reply, "sent again"
    for user in ("root", ""):
        text = refused(log.do(part("T1", 1, 2, user=user)), Why.STILL_UNDECIDED).text
        assert "another user prepared it" in text
    sent(log.do(part("T1", 1, 2, user="shop")))
    assert counts(log.state) == {"shop": 1}
    assert log.do(changed(end("T1", reply), user="shop")).committed
    log.roll()
    log.restart()


def test_half_batches_and_decisions_on_them_say_their_users() -> None:
    log = with_users()
    found = [half_batch(index=index, user="shop", size=3_000) for index in range(2)]
    for command in found:
        sent(log.do(command))
    assert [one.batch.user for one in log.of(HalfBatch)] == ["shop", "shop"]
    refused(log.do(half_batch(index=2, user="root")), Why.INVALID_PARAMETER)
    trim(log)
    assert [(one.user, one.half.batch.user) for one in log.of(CopiedHalfBatch)] == [("shop", "shop")] * 2
    log.restart()
    assert counts(log.state) == {"shop": 1}
    decision = DecideBatch(1, "PG", QueryBatch("q1", 0, "r1"), b"d" * 16, (winner(*found),), user="shop")
    while (reply := log.do(decision)) == Done(again=True):
        pass
    assert isinstance(reply, BatchDecided)
    assert log.of(Decided)[0].user == "shop"
    for run in ("r1", "r2"):  # the second one rolls back what the first one has prepared
        sent(log.do(half_batch(QueryBatch("q1", 1, run), user="root")))
    assert [one.user for one in log.of(RolledBack)] == ["root"]
    check(log.state)
    log.restart()


def test_a_commit_of_half_batches_of_an_application_says_its_user() -> None:
    log = with_users()
    reply = sent(log.do(half_batch("T", "", count=1, user="shop")))
    assert log.do(changed(end("T", reply), user="shop")).committed
    assert [one.user for one in log.of(Decided)] == ["shop"]
    log.restart()


def test_copies_for_a_commit_and_several_messages_keep_the_size_of_their_records() -> None:
    log = with_users()
    reply = sent(log.do(part("T1", 0, user="shop")))
    log.roll()
    sent(log.do(part("T1", 1, 2, user="shop")))
    assert isinstance(log.do(changed(end("T1", reply), user="s" * 64)), Settled)
    assert log.of(Committed)[0].user == "s" * 64
    log.restart()


def test_a_fence_says_its_user() -> None:
    log = with_users()
    log.do(FenceTransaction(1, "PG", "F1", 0, user="shop"))
    assert [one.user for one in log.of(RolledBack)] == ["shop"]
    log.restart()


# --- limit -----------------------------------------------------------------------------------------------------------


def limited(most: int) -> CoreLog:
    log = with_users()
    put(log, "shop", changed(SHOP, limits=UserLimits(undecided=most)))
    return log


def test_a_user_has_only_so_many_undecided_transactions_over_all_groups() -> None:
    log = limited(2)
    reply = sent(log.do(half("T1", user="shop", group="G1")))
    sent(log.do(part("T2", 0, user="shop", group="G2")))
    text = refused(log.do(half("T3", user="shop", group="G3")), Why.LIMIT_REACHED).text
    assert text == "user 'shop' has 2 undecided transactions, as many as it may (`halfmq user set --undecided`)"
    refused(log.do(half_batch(user="shop")), Why.LIMIT_REACHED)
    refused(log.do(half_batch("B", "", count=1, user="shop")), Why.LIMIT_REACHED)
    assert log.do(half("T1", user="shop", group="G1")) == reply, "sent again"
    sent(log.do(part("T2", 1, 2, user="shop", group="G2")))
    sent(log.do(half("T3", user="root")))
    log.restart()
    refused(log.do(half("T4", user="shop")), Why.LIMIT_REACHED)
    log.do(end("T1", reply, ROLLBACK, group="G1"))
    sent(log.do(half("T4", user="shop")))
    check(log.state)


def test_a_limit_that_was_lowered_says_both_figures() -> None:
    log = limited(0)
    for number in range(3):
        sent(log.do(half(f"T{number}", user="shop")))
    put(log, "shop", changed(SHOP, limits=UserLimits(undecided=1)))
    text = refused(log.do(half("T3", user="shop")), Why.LIMIT_REACHED).text
    assert text == "user 'shop' has 3 undecided transactions, and may have 1 (`halfmq user set --undecided`)"


def test_what_a_removed_user_has_prepared_still_counts_and_is_settled_as_before() -> None:
    log = limited(1)
    reply = sent(log.do(half("T1", user="shop")))
    remove(log, "shop")
    log.restart()
    assert counts(log.state) == {"shop": 1}
    add(log, "shop", changed(SHOP, limits=UserLimits(undecided=1)))
    refused(log.do(half("T2", user="shop")), Why.LIMIT_REACHED)
    assert log.do(end("T1", reply)).committed
    sent(log.do(half("T2", user="shop")))


def test_a_count_of_a_user_that_is_wrong_is_noticed() -> None:
    log = with_users()
    sent(log.do(half("T1", user="shop")))
    log.state.derived.undecided_of_user["shop"].transactions = 2
    with pytest.raises(InvariantViolated, match="of users"):
        check(log.state)
    log.state.derived.undecided_of_user["shop"].transactions = 1
    log.state.derived.undecided_of_user["shop"].message_bytes += 1
    with pytest.raises(InvariantViolated, match="of users"):
        check(log.state)


# --- without a limit of its own --------------------------------------------------------------------------------------


def shared(**settings: int) -> CoreLog:
    """Two users without limits in a broker with these ones over all groups."""
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20, **settings))
    for name, user in (("root", ROOT), ("flood", SHOP), ("shop", SHOP)):
        assert add(log, name, user) == UserIsSet()
    return log


def test_one_user_leaves_others_a_quarter_of_the_undecided_transactions() -> None:
    log = shared(undecided_total_max=8)
    for number in range(6):
        sent(log.do(half(f"F{number}", user="flood", group=f"F{number}")))
    log.restart()
    text = refused(log.do(half("F6", user="flood", group="F6")), Why.LIMIT_REACHED).text
    assert text == (
        "user 'flood' has 6 of 8 undecided transactions, as many as one user may (--undecided-total-max, or "
        "`halfmq user set --undecided`); settle some, see halfmq tx stats"
    )
    refused(log.do(half_batch("B", "", count=1, user="flood", group="F7")), Why.LIMIT_REACHED)
    for number in range(2):
        sent(log.do(half(f"S{number}", user="shop", group="S")))
    text = refused(log.do(half("S2", user="shop", group="S")), Why.LIMIT_REACHED).text
    assert "8 undecided transactions (6 of them by user 'flood'), and may have 8 (--undecided-total-max)" in text
    check(log.state)


def test_a_limit_of_its_own_may_be_more_than_the_share() -> None:
    log = shared(undecided_total_max=4)
    put(log, "flood", changed(SHOP, limits=UserLimits(undecided=4)))
    for number in range(4):
        sent(log.do(half(f"F{number}", user="flood")))
    refused(log.do(half("F4", user="flood")), Why.LIMIT_REACHED)


def test_one_user_leaves_others_a_quarter_of_the_undecided_bytes() -> None:
    log = shared(undecided_total_bytes_max=8_000)
    body = b"x" * 1_700
    first = sent(log.do(part("F0", 0, user="flood", group="F0", body=body)))
    sent(log.do(part("F1", 0, user="flood", group="F1", body=body)))
    sent(log.do(part("F1", 1, user="flood", group="F1", body=body)))
    trim(log)
    log.restart()
    held = log.state.derived.undecided_of_user["flood"].message_bytes
    for command in (
        half("F3", user="flood", group="F2", body=body), part("F1", 2, 3, user="flood", group="F1", body=body),
        half_batch("B", "", count=1, user="flood", size=2_000),
    ):  # fmt: skip
        text = refused(log.do(command), Why.LIMIT_REACHED).text
        assert text == (
            f"user 'flood' has {held} bytes of undecided messages; 6000 of 8000 are allowed to one user "
            "(--undecided-total-bytes-max); settle some, see halfmq tx stats"
        )
    sent(log.do(half("S0", user="shop", group="S", body=body)))
    text = refused(log.do(half("S1", user="shop", group="S", body=body)), Why.LIMIT_REACHED).text
    assert f"({held} of them by user 'flood'), and may have 8000 (--undecided-total-bytes-max)" in text
    log.do(end("F0", first, ROLLBACK, group="F0"))
    sent(log.do(half("F4", user="flood", body=b"x" * 1_000)))
    check(log.state)


def test_bytes_of_a_user_are_those_of_what_is_undecided_also_of_half_batches() -> None:
    log = shared()
    for index in range(2):
        sent(log.do(half_batch(index=index, user="shop", size=3_000)))
    trim(log)
    check(log.state)
    log.restart()
    assert log.state.derived.undecided_of_user["shop"].message_bytes > 6_000
    for run in ("r2", "r3"):
        sent(log.do(half_batch(QueryBatch("q1", 0, run), user="flood")))
    assert set(log.state.derived.undecided_of_user) == {"flood"}
    check(log.state)


def test_a_snapshot_brings_back_what_users_have_undecided() -> None:
    log = shared()
    sent(log.do(half("T0", user="shop", group="S")))
    for index in range(2):
        sent(log.do(half_batch(index=index, user="shop", size=3_000)))
    state = log.reloaded(log.snapshot())
    check(state)
    assert counts(state) == {"shop": 2}
    assert state.derived.undecided_of_user == log.state.derived.undecided_of_user
