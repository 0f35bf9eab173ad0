"""Where dead letters were handed back from: remembered by message id, for a while."""

from halfmq.client.dead_letter_origins import REMEMBERED_MAX, DeadLetterOrigins


def test_message_comes_to_where_it_was_handed_back_from_however_often() -> None:
    origins = DeadLetterOrigins()
    origins.handed_back("1", "a")
    origins.handed_back("2", "b")
    assert [origins.origin(number, {"a", "b"}) for number in ("1", "2", "1", "2", "3")] == ["a", "b", "a", "b", None]


def test_of_several_topics_the_one_that_handed_back_last_is_given_the_next() -> None:
    """Each copy is one of the message's; each topic that handed one back is given one."""
    origins = DeadLetterOrigins()
    both = {"a", "b"}
    origins.handed_back("1", "a")
    origins.handed_back("1", "b")
    assert {origins.origin("1", both), origins.origin("1", both)} == both
    origins.handed_back("1", "b")
    assert origins.origin("1", both) == "b"
    origins.handed_back("1", "b")
    assert origins.origin("1", both) == "b"
    assert origins.origin("1", both) == "a"


def test_topic_that_is_consumed_goes_before_one_that_is_not() -> None:
    origins = DeadLetterOrigins()
    origins.handed_back("1", "a")
    origins.handed_back("1", "b")
    assert [origins.origin("1", {"a"}) for _ in range(3)] == ["a", "a", "a"]
    assert origins.origin("1", set()) in {"a", "b"}


def test_the_oldest_is_forgotten_and_one_that_is_handed_back_again_is_young() -> None:
    origins = DeadLetterOrigins()
    for number in range(REMEMBERED_MAX):
        origins.handed_back(str(number), "a")
    origins.handed_back("0", "a")
    origins.handed_back("new", "a")
    assert origins.origin("0", {"a"}) == "a"
    assert origins.origin("1", {"a"}) is None
    assert len(origins) == REMEMBERED_MAX
