"""Which topics a query reads."""

import pytest

from halfmq.spark.plan.subscription import Subscription

EXISTING = (
    "orders", "orders-eu", "xorders", "%RETRY%orders-group", "%DLQ%orders-group", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_wheel_timer",
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC",
)  # fmt: skip
BROKERS = ("broker-a", "DefaultCluster")


def test_named_topics_are_read_whether_they_exist_or_not() -> None:
    named = Subscription(("later", "%DLQ%g"))
    assert named.chosen(EXISTING, BROKERS) == ("later", "%DLQ%g")
    assert named.includes("later")
    assert not named.includes("orders")


def test_a_pattern_matches_whole_names_of_topics_that_exist() -> None:
    assert Subscription(pattern="orders.*").chosen(EXISTING) == ("orders", "orders-eu")
    assert Subscription(pattern="orders").chosen(EXISTING) == ("orders",)
    assert Subscription(pattern="nothing").chosen(EXISTING) == ()


def test_a_pattern_finds_topics_of_users_only() -> None:
    assert Subscription(pattern=".*").chosen(EXISTING, BROKERS) == ("orders", "orders-eu", "xorders")


@pytest.mark.parametrize("name", ["%RETRY%orders-group", "%DLQ%orders-group"])
def test_retries_and_dead_letters_need_their_prefix_in_the_pattern(name: str) -> None:
    prefix = name[: name.rindex("%") + 1]
    assert Subscription(pattern=f"{prefix}.*|orders").chosen(EXISTING) == tuple(sorted(("orders", name)))
    assert not Subscription(pattern=".*orders.*").includes(name)


def test_a_subscription_in_words() -> None:
    assert Subscription(("a", "b")).in_words() == "topic a, b"
    assert Subscription(pattern="a.*").in_words() == "a topic that matches 'a.*'"
    assert (str(Subscription(("a", "b"))), str(Subscription(pattern="a"))) == ("subscribe=a,b", "subscribePattern=a")
