"""Heartbeats, members, leaving, queue locks."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import RawClient

from halfmq.store.group_flush import HandFlush, Job
from halfmq.store.store import Durability


async def pushed_group(client: RawClient) -> str:
    push = await asyncio.wait_for(client.pushes.get(), 2)
    assert (push.code, push.flag) == (40, 2)
    return push.ext["consumerGroup"]


async def members(client: RawClient, group: str = "C") -> list[str]:
    answer = await client.ask(38, {"consumerGroup": group})
    found: list[str] = json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


async def test_heartbeat_says_what_this_broker_can(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await (await running.client()).heartbeat("me", producers=["P"])
        assert (answer.code, answer.ext) == (0, {"HMQ_VERSION": "1"})


async def test_first_heartbeat_of_a_group_makes_it_and_its_retry_topic_before_it_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await client.ask(105, {"topic": "%RETRY%C"})).code == 17
        await client.heartbeat("me", consumers={"C": ["T"], "D": ["T"]})
        for group in "CD":
            assert (await client.ask(105, {"topic": f"%RETRY%{group}"})).code == 0
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(105, {"topic": "%RETRY%C"})).code == 0


async def test_all_members_are_told_when_one_comes_leaves_or_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first, second, third = [await running.client() for _ in range(3)]
        await first.heartbeat("one", consumers={"C": ["T"]})
        assert await pushed_group(first) == "C"
        await second.heartbeat("two", consumers={"C": ["T"]})
        assert [await pushed_group(client) for client in (first, second)] == ["C", "C"]
        await third.heartbeat("three", consumers={"C": ["T"]})
        for client in (first, second, third):
            await pushed_group(client)
        assert sorted(await members(first)) == ["one", "three", "two"] == sorted(await members(second))
        await third.ask(35, {"clientID": "three", "consumerGroup": "C"})
        for client in (first, second):
            await pushed_group(client)
        await second.close()
        await pushed_group(first)
        assert await members(first) == ["one"]
        await first.heartbeat("one", consumers={"C": ["T"]})
        await asyncio.sleep(0.05)
        assert first.pushes.empty(), "nothing changed"


async def test_group_without_members_is_code_1(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(38, {"consumerGroup": "C"})).code == 1


# --- what comes behind a heartbeat whose groups are being made ----------------------------------------------------


class Hand:
    """The disk syncs when the test says so."""

    flush: HandFlush

    def __call__(self, job: Job) -> HandFlush:
        self.flush = HandFlush(job)
        return self.flush


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


async def test_who_leaves_in_the_write_of_its_first_heartbeat_is_no_member(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, other = await running.client(), await running.client()
        for number in range(5):
            group = f"C{number}"
            answers = await asyncio.gather(
                client.heartbeat("me", consumers={group: ["T"], f"{group}-2": ["T"]}),
                client.ask(35, {"clientID": "me", "consumerGroup": group}),
            )
            assert [answer.code for answer in answers] == [0, 0]
            assert await members(other, group) == []
            assert await members(other, f"{group}-2") == ["me"]


async def test_heartbeats_and_leaving_of_one_connection_count_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, other = await running.client(), await running.client()
        asked = [
            asyncio.create_task(client.heartbeat("me", consumers={"C": ["T", "U"]})),
            asyncio.create_task(client.ask(35, {"clientID": "me", "consumerGroup": "C"})),
            asyncio.create_task(client.heartbeat("me", consumers={"C": ["T"], "D": ["T"]})),
            asyncio.create_task(client.heartbeat("me", consumers={"C": ["V"]})),
        ]
        await until(lambda: running.broker._clients.waiting == 3 and hand.flush.asked is not None)
        assert not any(one.done() for one in asked)
        hand.flush.run()
        assert [(await one).code for one in asked[:2]] == [0, 0]
        assert await members(other, "C") == []
        await until(lambda: hand.flush.asked is not None)
        hand.flush.run()
        assert [(await one).code for one in asked[2:]] == [0, 0]
        assert running.broker._clients.waiting == 0
        assert list(running.state.consumers["C"].subscriptions) == ["V"]
        assert await members(other, "D") == ["me"]


async def test_connection_that_ends_while_its_groups_are_made_leaves_no_member(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, other = await running.client(), await running.client()
        asked = [asyncio.create_task(client.heartbeat("me", consumers={group: ["T"]})) for group in ("C", "D")]
        gateway = running.broker._gateway
        await until(lambda: gateway._backlog() == 2 and hand.flush.asked is not None)
        for one in asked:
            one.cancel()
        await client.close()
        await until(lambda: len(gateway.connections) == 1)
        hand.flush.run()
        await until(lambda: gateway._backlog() == 0)
        assert await members(other, "C") == await members(other, "D") == []
        assert not running.state.consumes


async def test_two_connections_that_name_the_same_many_new_groups_are_both_members_of_all(tmp_path: Path) -> None:
    names = [f"C{number}" for number in range(1_000)]
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        answers = await asyncio.gather(
            one.heartbeat("one", consumers={name: [] for name in names}),
            two.heartbeat("two", consumers={name: [] for name in reversed(names)}),
        )
        assert [answer.code for answer in answers] == [0, 0]
        for name in (names[0], names[500], names[-1]):
            assert sorted(await members(one, name)) == ["one", "two"]


async def lock(client: RawClient, code: int, who: str, queues: list[int]) -> list[int]:
    body = {
        "clientId": who, "consumerGroup": "C", "onlyThisBroker": False,
        "mqSet": [{"brokerName": "halfmq", "queueId": queue, "topic": "T"} for queue in queues],
    }  # fmt: skip
    answer = await client.ask(code, body=json.dumps(body).encode())
    assert answer.code == 0
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]) if answer.body else []


async def test_queue_is_locked_by_one_client_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        assert await lock(one, 41, "one", [0, 1]) == [0, 1]
        assert await lock(two, 41, "two", [1, 2]) == [2]
        assert await lock(one, 41, "one", [1]) == [1], "renewed"
        await lock(one, 42, "one", [1])
        assert await lock(two, 41, "two", [1]) == [1]


async def test_subscription_is_checked_before_a_consumer_starts(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()

        async def check(expression: str, kind: str) -> int:
            body = {
                "clientId": "c",
                "group": "C",
                "subscriptionData": {"topic": "T", "subString": expression, "expressionType": kind},
            }
            return (await client.ask(46, body=json.dumps(body).encode())).code

        assert await check("a || b", "TAG") == 0
        assert await check("a > 1", "SQL92") == 1
        assert await check("||", "TAG") == 23


async def test_heartbeat_with_a_name_that_is_none_or_with_too_many_registers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfmq.limits.GROUPS_PER_CONNECTION_MAX", 4)
    async with serving(tmp_path) as running:
        client = await running.client()
        for bad in ("", "no spaces", "x" * 121):
            answer = await client.heartbeat("me", producers=["P", bad])
            assert answer.code == 29
            assert "producer group" in (answer.remark or "")
        assert (await client.heartbeat("me", producers=[f"P{number}" for number in range(5)])).code == 29
        assert not running.state.producer_groups
        assert (await client.heartbeat("me", producers=["P1", "P2"], consumers={"C": ["T"]})).code == 0
        assert (await client.heartbeat("me", producers=["P1", "P2"], consumers={"C": ["T"]})).code == 0
        assert (await client.heartbeat("me", producers=["P3"])).code == 0
        answer = await client.heartbeat("me", producers=["P4"])
        assert (answer.code, answer.remark) == (29, "a connection may be in 4 groups at most")
        assert (await (await running.client()).heartbeat("me", producers=["P4"])).code == 0
