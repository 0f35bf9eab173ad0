"""Who is connected, and who is told about it."""

from typing import get_args

from tests.support.core_log import CoreLog, consumer, end, half, producer
from tests.support.invariants import check

from halfmq.core import session as session_module
from halfmq.core.commands import FenceTransaction
from halfmq.core.session import ConnectionClosed, Heartbeat, MembersChanged, Published, Reachable, Unregistered
from halfmq.core.state import GROUPS_KEPT_MIN
from halfmq.core.transaction.check_schedule import next_check_ms


def test_a_new_consumer_is_told_to_all_members_and_a_known_one_to_nobody() -> None:
    log = CoreLog()
    assert log.session(consumer(1, 0)) == (MembersChanged("CG", (1,)),)
    assert log.session(consumer(2, 0)) == (MembersChanged("CG", (1, 2)),)
    assert log.session(consumer(2, 0)) == ()


def test_a_changed_subscription_is_told_and_the_newer_one_wins() -> None:
    log = CoreLog()
    log.session(consumer(1, 0, expression="A", version=5))
    assert log.session(consumer(1, 0, expression="B", version=6)) == (MembersChanged("CG", (1,)),)
    assert log.session(consumer(2, 0, expression="old", version=3)) == (MembersChanged("CG", (1, 2)),)
    assert log.state.session.consumers["CG"].subscriptions["orders"].expression == "B"
    assert log.session(consumer(1, 0, expression="B", version=7)) == (), "only its clock moved"


def test_a_topic_that_is_no_longer_subscribed_goes() -> None:
    log = CoreLog()
    log.session(consumer(1, 0, topic="orders"))
    assert log.session(consumer(1, 0, topic="loyalty")) == (MembersChanged("CG", (1,)),)
    assert set(log.state.session.consumers["CG"].subscriptions) == {"loyalty"}


def test_a_lost_connection_leaves_all_its_groups_and_the_rest_is_told() -> None:
    log = CoreLog()
    log.session(consumer(1, 0, group="A"))
    log.session(consumer(1, 0, group="B"))
    log.session(consumer(2, 0, group="B"))
    log.session(producer(1, 0, "PG"))
    assert set(log.session(ConnectionClosed(1))) == {MembersChanged("A", ()), MembersChanged("B", (2,))}
    assert not log.state.producer_groups["PG"].session.members
    assert not log.state.session.consumers["A"].subscriptions
    assert log.session(ConnectionClosed(1)) == ()


def test_unregistering_leaves_what_is_named() -> None:
    log = CoreLog()
    log.session(consumer(1, 0))
    log.session(producer(1, 0))
    assert log.session(Unregistered(1, "client-1", "PG", "")) == ()
    assert not log.state.producer_groups["PG"].session.members
    assert log.session(Unregistered(1, "client-1", "", "CG")) == (MembersChanged("CG", ()),)
    assert log.session(Unregistered(1, "client-1", "Nobody", "Nobody")) == ()


def test_names_that_hold_nothing_are_forgotten_when_they_collect() -> None:
    """Goal: names that clients make up do not stay for ever; what holds something does."""
    log = CoreLog()
    log.do(half("T1", group="Used"))
    log.do(end("T2", log.do(half("T2", group="Settled")), group="Settled"))
    log.session(producer(1, 0, "Live"))
    for number in range(GROUPS_KEPT_MIN):
        log.session(producer(2, 0, f"P{number}"))
    log.session(consumer(2, 0, "Gone"))
    log.session(ConnectionClosed(2))
    assert {"Used", "Settled", "Live"} <= set(log.state.producer_groups) <= {"Used", "Settled", "Live"}
    assert not log.state.session.consumers
    assert next_check_ms(log.state) is not None
    check(log.state)


def test_groups_of_forgotten_verdicts_make_room_where_no_more_may_be_known() -> None:
    """Seen: 131,072 groups, each with one fence, were known until the broker was restarted, and no other group could be fenced."""
    log = CoreLog()
    for number in range(GROUPS_KEPT_MIN + 1):
        log.do(FenceTransaction(1, f"P{number}", "tcc.1", 0, searched_to=1 << 40))
        log.session(Published(0, 0))
    assert len(log.state.producer_groups) > GROUPS_KEPT_MIN
    log.later(2 * log.state.settings.dedup_window_ms)
    log.do(FenceTransaction(1, "P0", "tcc.2", 0, searched_to=1 << 40))
    log.session(Published(0, 0))
    assert set(log.state.producer_groups) == {"P0"}
    check(log.state)


def test_a_producer_that_reads_again_is_asked_what_is_due_and_no_back_off_is_cut_short() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.session(producer(1, log.now_ms))
    group = log.state.producer_groups["PG"]
    group.session.early.clear()
    group.session.members.clear()
    log.state.session.asking.clear()
    log.session(Reachable(1, "client-1", "PG"))
    assert group.session.members == {1: "client-1"}
    assert not group.session.early
    assert not log.state.session.asking
    log.session(Unregistered(1, "client-1", "PG", ""))
    log.session(Reachable(1, "client-1", "PG"))
    assert not group.session.members, "who left meanwhile is not asked"


def test_names_that_one_connection_takes_and_gives_up_do_not_collect() -> None:
    log = CoreLog()
    for number in range(3 * GROUPS_KEPT_MIN):
        log.session(Heartbeat(1, "me", 409, "JAVA", (f"P{number}",), (), log.now_ms))
        log.session(Unregistered(1, "me", f"P{number}", ""))
        assert len(log.state.producer_groups) <= GROUPS_KEPT_MIN


def test_every_event_has_its_place() -> None:
    assert set(get_args(session_module.Event)) == set(session_module._APPLY)
