"""One at a time for each sharding key, in order; what failed keeps its turn."""

import random

import pytest
from tests.support.scripted_broker import _stored

from halfmq.client.key_order import Entry, KeyOrder, pause_s
from halfmq.client.message import Message
from halfmq.model import properties


def message(key: str | None, number: int = 0, topic: str = "t") -> Message:
    text = properties.encode({} if key is None else {properties.SHARDING_KEY: key})
    return Message(_stored(topic, 0, number, b"", text), number, b"")


def enter(key_order: KeyOrder[None], one: Message) -> bool:
    return key_order.enter(Entry(None, one))


def test_of_one_key_one_goes_and_the_others_wait() -> None:
    key_order: KeyOrder[None] = KeyOrder()
    first, second, third, other = message("a", 1), message("a", 2), message("a", 3), message("b")
    assert [enter(key_order, one) for one in (first, second, third, other)] == [True, False, False, True]
    assert key_order.leave(first) == Entry(None, second)
    assert enter(key_order, second)
    assert not enter(key_order, message("a", 4))
    assert key_order.leave(third) is None  # not its turn
    assert key_order.leave(second) == Entry(None, third)


def test_key_that_is_done_is_forgotten_and_one_of_another_topic_is_another() -> None:
    key_order: KeyOrder[None] = KeyOrder()
    assert enter(key_order, message("a"))
    assert enter(key_order, message("a", topic="u"))
    one = message("c")
    assert enter(key_order, one)
    assert key_order.leave(one) is None
    assert key_order.leave(one) is None
    assert enter(key_order, message("c", 1))


def test_messages_without_a_key_never_wait() -> None:
    key_order: KeyOrder[None] = KeyOrder()
    one, two = message(None, 1), message(None, 2)
    assert enter(key_order, one)
    assert enter(key_order, two)
    assert key_order.leave(one) is None


def test_any_interleaving_keeps_the_order_of_each_key() -> None:
    rng = random.Random(20)
    key_order: KeyOrder[None] = KeyOrder()
    waiting = [message(rng.choice("abc"), number) for number in range(300)]
    under_way: list[Message] = []
    done: list[Message] = []
    while waiting or under_way:
        if waiting and rng.random() < 0.6:
            one = waiting.pop(0)
            if enter(key_order, one):
                under_way.append(one)
                assert len({each.sharding_key for each in under_way}) == len(under_way)
        elif under_way:
            one = under_way.pop(rng.randrange(len(under_way)))
            done.append(one)
            following = key_order.leave(one)
            if following is not None:
                waiting.insert(0, following.message)
    for key in "abc":
        offsets = [one.offset for one in done if one.sharding_key == key]
        assert offsets == sorted(offsets)
    assert len(done) == 300


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1), (2, 2), (4, 8), (7, 64), (11, 600), (10_000, 600)])
def test_pause_doubles_up_to_ten_minutes(failures: int, seconds: float) -> None:
    assert pause_s(failures) == seconds
