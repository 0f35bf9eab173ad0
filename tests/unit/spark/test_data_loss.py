"""What is lost, by name."""

from halfmq.errors import DataLost
from halfmq.spark.data_loss import is_regressed, lost, restricted, resume
from halfmq.spark.offsets import QueueBoundsSnapshot, StreamOffset

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
    assert "store cd" in resume(AT, other).losses[0]
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
    assert all("created again" in loss for loss in resume(AT, again).losses)
    assert len(resume(AT, again).losses) == 2
    assert not is_regressed(AT, again)


def test_a_topic_that_is_gone_is_a_loss_only_if_something_was_read_of_it() -> None:
    gone = QueueBoundsSnapshot("ab", 2, 200, {}, {})
    assert "no longer exists" in resume(AT, gone).losses[0]
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
    assert restricted(both, ("orders",)) == AT


def test_the_error_says_what_to_do() -> None:
    error = lost(("messages 1 to 2 of queue 0 of topic t are past retention",))
    assert isinstance(error, DataLost)
    assert "messages 1 to 2" in str(error)
    assert "failOnDataLoss=false" in error.hint
