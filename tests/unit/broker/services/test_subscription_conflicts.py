"""Two clients of one group that want different things are told of in the log: once, with both names."""

import json
import logging
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.waiting import until

from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.core.state import Subscription


def wants(*expressions: str, topic: str = "orders", version: int = 1) -> list[Subscription]:
    return [Subscription(topic, expression, "TAG", version) for expression in expressions]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "halfmq.clients")
    return caplog


def test_difference_is_told_once_and_again_when_it_changes(told: pytest.LogCaptureFixture) -> None:
    watch = SubscriptionConflicts()
    for _ in range(3):
        watch.heard("C", 1, "shop@1", wants("TagA"))
        watch.heard("C", 2, "till@2", wants("TagB"))
    (line,) = [record.getMessage() for record in told.records]
    assert (
        "consumer group C: client till@2 subscribes to orders 'TagB', client shop@1 subscribes to orders 'TagA'" in line
    )
    watch.heard("C", 2, "till@2", wants("TagC"))
    watch.heard("C", 2, "till@2", wants("TagC", version=9))
    assert len(told.records) == 2
    watch.heard("C", 2, "till@2", wants("TagA"))
    assert len(told.records) == 2, "they agree now"
    watch.heard("C", 2, "till@2", [*wants("TagA"), *wants("*", topic="loyalty")])
    assert (
        "client till@2 subscribes to loyalty '*', client shop@1 subscribes to nothing beside"
        in told.records[-1].getMessage()
    )


def test_retry_topics_are_the_clients_own_affair(told: pytest.LogCaptureFixture) -> None:
    """A Java consumer that gets its queues from the broker subscribes to one more of them, in its own time."""
    watch = SubscriptionConflicts()
    watch.heard("C", 1, "shop@1", wants("TagA") + wants("*", topic="%RETRY%C_orders"))
    watch.heard("C", 2, "till@2", wants("TagA"))
    assert not told.records


def test_other_groups_clients_that_left_and_the_client_itself_on_an_older_connection_do_not_count(
    told: pytest.LogCaptureFixture,
) -> None:
    watch = SubscriptionConflicts()
    watch.heard("C", 1, "shop@1", wants("TagA"))
    watch.heard("D", 2, "till@2", wants("TagB"))
    watch.heard("C", 3, "shop@1", wants("TagB"))
    watch.left("C", 1)
    watch.left("C", 1)
    watch.heard("C", 4, "till@2", wants("TagB"))
    assert not told.records
    for connection, group in ((2, "D"), (3, "C"), (4, "C")):
        watch.left(group, connection)
    assert not watch._groups, "nothing is kept of who left"


async def test_heartbeats_are_compared(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    def body(client_id: str, tag: str) -> bytes:
        wanted = {"topic": "T", "subString": tag, "tagsSet": [tag], "subVersion": 1, "expressionType": "TAG"}
        group = {
            "groupName": "C", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [wanted],
        }  # fmt: skip
        return json.dumps({"clientID": client_id, "consumerDataSet": [group]}).encode()

    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        assert (await one.ask(34, {}, body("shop@1", "TagA"))).code == 0
        assert (await two.ask(34, {}, body("till@2", "TagB"))).code == 0
        (line,) = [record.getMessage() for record in told.records if record.name == "halfmq.clients"]
        assert "till@2 subscribes to T 'TagB'" in line
        assert "shop@1 subscribes to T 'TagA'" in line
        await two.ask(35, {"clientID": "till@2", "consumerGroup": "C"})
        await one.close()
        await until(lambda: len(running.broker._peers.connected) == 1)
        await (await running.client()).ask(34, {}, body("late@3", "TagC"))
        assert len([record for record in told.records if record.name == "halfmq.clients"]) == 1


def test_each_heartbeat_gets_to_know_a_difference_until_there_is_none() -> None:
    watch = SubscriptionConflicts()
    assert watch.heard("C", 1, "shop@1", wants("*")) == ""
    for _ in range(2):
        text = watch.heard("C", 2, "till@2", wants("*", topic="stock"))
        assert "client till@2 subscribes to stock '*', client shop@1 subscribes to orders '*'" in text
    text = watch.heard("C", 1, "shop@1", wants("*"))
    assert "client shop@1 subscribes to orders '*', client till@2 subscribes to stock '*'" in text
    watch.left("C", 2)
    assert watch.heard("C", 1, "shop@1", wants("*")) == ""
    watch.heard("C", 3, "till@3", wants("TagA"))
    watch.heard("C", 3, "till@3", wants("*"))
    assert watch.heard("C", 1, "shop@1", wants("*")) == ""
    watch.left("C", 1)
    watch.left("C", 3)
    assert not watch._groups, "nothing is kept of who left"
