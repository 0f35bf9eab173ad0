"""Who is connected, and who is told about it."""

from tests.support.core_log import CoreLog, consumer, half, producer

from halfmq.core.session import ConnectionClosed, MembersChanged, Published, Unregistered


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
    assert log.state.consumers["CG"].subscriptions["orders"].expression == "B"
    assert log.session(consumer(1, 0, expression="B", version=7)) == (), "only its clock moved"


def test_a_topic_that_is_no_longer_subscribed_goes() -> None:
    log = CoreLog()
    log.session(consumer(1, 0, topic="orders"))
    assert log.session(consumer(1, 0, topic="loyalty")) == (MembersChanged("CG", (1,)),)
    assert set(log.state.consumers["CG"].subscriptions) == {"loyalty"}


def test_a_lost_connection_leaves_all_its_groups_and_the_rest_is_told() -> None:
    log = CoreLog()
    log.session(consumer(1, 0, group="A"))
    log.session(consumer(1, 0, group="B"))
    log.session(consumer(2, 0, group="B"))
    log.session(producer(1, 0, "PG"))
    assert set(log.session(ConnectionClosed(1))) == {MembersChanged("A", ()), MembersChanged("B", (2,))}
    assert not log.state.producer_groups["PG"].members
    assert not log.state.consumers["A"].subscriptions
    assert log.session(ConnectionClosed(1)) == ()


def test_unregistering_leaves_what_is_named() -> None:
    log = CoreLog()
    log.session(consumer(1, 0))
    log.session(producer(1, 0))
    assert log.session(Unregistered(1, "client-1", "PG", "")) == ()
    assert not log.state.producer_groups["PG"].members
    assert log.session(Unregistered(1, "client-1", "", "CG")) == (MembersChanged("CG", ()),)
    assert log.session(Unregistered(1, "client-1", "Nobody", "Nobody")) == ()


def test_the_pump_reports_what_has_left() -> None:
    log = CoreLog()
    log.session(Published(777, 888))
    assert (log.state.published, log.state.answered) == (777, 888)


def test_members_are_gone_after_a_restart_and_undecided_transactions_are_not() -> None:
    log = CoreLog()
    log.session(producer(1, 0))
    log.session(consumer(1, 0))
    log.do(half("T1"))
    log.restart()
    assert not log.state.producer_groups["PG"].members
    assert not log.state.consumers
    assert "T1" in log.state.producer_groups["PG"].undecided
