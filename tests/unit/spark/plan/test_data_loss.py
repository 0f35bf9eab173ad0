"""What is lost, by name."""

from halfmq.errors import DataLost
from halfmq.spark.plan.data_loss import (
    answers_for_another_store,
    is_regressed,
    lost,
    restricted,
    resume,
    unreachable_brokers,
    with_unreachable,
)
from halfmq.spark.plan.offsets import NO_POSITION, QueueBoundsSnapshot, StreamOffset

AT = StreamOffset("ab", 2, 100, {("orders", "0"): 5, ("orders", "1"): 7}, {"orders": 1})
NOW = QueueBoundsSnapshot("ab", 2, 200, {("orders", "0"): (0, 9), ("orders", "1"): (7, 7)}, {"orders": 1})


def test_nothing_is_lost_while_the_queues_hold_what_comes_next() -> None:
    assert resume(AT, NOW) == ({("orders", "0"): 5, ("orders", "1"): 7}, ())
    assert not is_regressed(AT, NOW)


def test_messages_past_retention_are_counted() -> None:
    resumed = resume(AT, NOW._replace(queues={("orders", "0"): (8, 9), ("orders", "1"): (7, 7)}))
    assert resumed.starts["orders", "0"] == 8
    assert resumed.losses == ("messages 5 to 7 of queue 0 of topic orders are past retention",)


def test_another_store_is_named_and_waiting_does_not_help() -> None:
    other = NOW._replace(store="cd")
    assert resume(AT, other).starts == {("orders", "0"): 0, ("orders", "1"): 7}
    (loss,) = resume(AT, other).losses
    assert loss.startswith("this is store cd, the query has read store ab: ")
    assert "if store ab exists, start its broker" in loss, "it may be one of several brokers, and only be away"
    assert "lost for good, failOnDataLoss=false reads store cd from its first messages" in loss
    assert not is_regressed(AT, other)


def test_an_older_copy_of_the_store_is_behind_and_a_loss() -> None:
    for older in (NOW._replace(epoch=1), NOW._replace(position=99)):
        assert is_regressed(AT, older)
        assert "older copy" in resume(AT, older).losses[0]


def test_a_queue_that_ends_before_the_query_is_behind_and_a_loss() -> None:
    shorter = NOW._replace(queues={("orders", "0"): (0, 4), ("orders", "1"): (7, 7)})
    assert is_regressed(AT, shorter)
    assert resume(AT, shorter) == (
        {("orders", "0"): 4, ("orders", "1"): 7},
        ("queue 0 of topic orders ends at 4, but the query has read up to 5",),
    )


def test_a_topic_made_again_starts_at_its_beginning_and_waiting_does_not_help() -> None:
    again = QueueBoundsSnapshot("ab", 2, 200, {("orders", "0"): (0, 9), ("orders", "1"): (0, 2)}, {"orders": 5})
    assert resume(AT, again).starts == {("orders", "0"): 0, ("orders", "1"): 0}
    assert resume(AT, again).losses == ("topic orders was deleted and created again",)
    later = again._replace(queues={("orders", "0"): (0, 9), ("orders", "1"): (1, 2)})
    assert resume(AT, later).losses[1:] == ("topic orders was deleted and created again; queue 1 starts at 1",)
    assert not is_regressed(AT, again)


def test_a_topic_that_is_gone_is_a_loss_only_if_something_was_read_of_it() -> None:
    gone = QueueBoundsSnapshot("ab", 2, 200, {}, {})
    assert resume(AT, gone).losses == ("topic orders no longer exists",), "once, not for each queue"
    two = AT._replace(queues={**AT.queues, ("returns", "0"): 1, ("returns", "1"): 1})
    assert resume(two, gone).losses == ("topic orders no longer exists", "topic returns no longer exists")
    assert resume(AT._replace(queues={("orders", "0"): 0}), gone) == ({}, ())


def test_a_new_queue_starts_at_its_first_message() -> None:
    more = NOW._replace(queues={**NOW.queues, ("orders", "2"): (0, 3)})
    assert resume(AT, more).starts["orders", "2"] == 0
    assert resume(AT, more).losses == ()


def test_what_retention_took_of_a_new_queue_is_a_loss_by_name() -> None:
    more = NOW._replace(queues={**NOW.queues, ("orders", "2"): (2, 3)})
    assert resume(AT, more).starts["orders", "2"] == 2
    assert resume(AT, more).losses == (
        "messages 0 to 1 of queue 2 of topic orders, which is new to the query, are past retention",
    )


def test_topics_that_are_no_longer_subscribed_are_left_out() -> None:
    both = AT._replace(queues={**AT.queues, ("old", "0"): 3}, topics={"orders": 1, "old": 2})
    assert restricted(both, "orders".__eq__) == AT


def test_the_error_says_what_to_do() -> None:
    error = lost(("messages 1 to 2 of queue 0 of topic t are past retention",))
    assert isinstance(error, DataLost)
    assert "messages 1 to 2" in str(error)
    assert "failOnDataLoss=false" in error.hint


def test_a_broker_that_is_away_has_lost_nothing_and_its_queues_stay_where_they_are() -> None:
    at = StreamOffset(
        "rocketmq:c", 0, NO_POSITION, {("t", "a:0"): 5, ("t", "b:0"): 7, ("u", "b:1"): 3}, {"t": 0, "u": 0}
    )
    shown = QueueBoundsSnapshot(
        at.store, 0, NO_POSITION, {("t", "a:0"): (0, 9)}, {"t": 0}, {"a": "", "c": "no response"}
    )
    assert unreachable_brokers(at, shown) == {"b": "it is not registered with the name server", "c": "no response"}
    snapshot = with_unreachable(at, shown)
    assert resume(at, snapshot) == (at.queues, ())
    assert resume(at._replace(queues={**at.queues, ("t", "b:0"): 2}), snapshot).starts["t", "b:0"] == 2
    assert not is_regressed(at, snapshot)
    assert snapshot.topics == at.topics
    present = shown._replace(brokers={"a": "", "b": ""})
    assert with_unreachable(at, present) == present
    assert [loss.split(" of ")[0] for loss in resume(at, present).losses] == ["queue b:0", "topic u no longer exists"]


def test_an_offset_without_queues_has_read_nothing_of_any_store() -> None:
    young = StreamOffset("", 0, NO_POSITION, {}, {})
    assert resume(young, NOW) == (
        {("orders", "0"): 0, ("orders", "1"): 7},
        resume(young._replace(store="ab"), NOW).losses,
    )
    assert not is_regressed(young._replace(epoch=9), NOW)
    assert not answers_for_another_store(young, NOW._replace(queues={}, topics={}))


def test_another_store_without_the_topics_is_no_proof_of_a_loss() -> None:
    assert answers_for_another_store(AT, QueueBoundsSnapshot("cd", 9, 9, {}, {}))
    assert not answers_for_another_store(AT, NOW._replace(store="cd"))
    assert not answers_for_another_store(AT, QueueBoundsSnapshot("ab", 2, 200, {}, {}))


def test_clusters_of_one_name_server_are_one_store_unless_they_have_brokers_of_the_same_name() -> None:
    at = StreamOffset("rocketmq:c", 0, NO_POSITION, {("t", "a:0"): 5}, {"t": 0})
    other = QueueBoundsSnapshot("rocketmq:d", 0, NO_POSITION, {("t", "x:0"): (0, 9)}, {"t": 0}, {"x": ""})
    assert with_unreachable(at, other).store == "rocketmq:c,d"
    assert resume(at, with_unreachable(at, other)) == ({("t", "a:0"): 5, ("t", "x:0"): 0}, ())
    same_name = QueueBoundsSnapshot("rocketmq:d", 0, NO_POSITION, {("t", "a:0"): (0, 9)}, {"t": 0}, {"a": ""})
    assert "this is store rocketmq:d" in resume(at, same_name).losses[0]
    assert "this is store ab" in resume(at, NOW).losses[0]
