"""Routes to the byte, and topics and groups made by administrators."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import RawClient

from halfmq import limits
from halfmq.client.async_client import AsyncClient
from halfmq.model.settings import BrokerSettings, GroupSettings


@pytest.mark.parametrize(("version", "quoted"), [(400, False), (401, True)])
async def test_route_is_compact_and_quotes_ids_for_clients_from_4_9_4(
    tmp_path: Path, version: int, quoted: bool
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client(names=True, version=version)
        await client.ask(17, {"topic": "T", "readQueueNums": "4", "writeQueueNums": "3", "perm": "6"})
        key = '"0"' if quoted else "0"
        assert (await client.ask(105, {"topic": "T"})).body.decode() == (
            f'{{"brokerDatas":[{{"brokerAddrs":{{{key}:"127.0.0.1:{running.ports.broker}"}},"brokerName":"halfmq",'
            '"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"halfmq","perm":6,'
            '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":3}]}'
        )


async def test_standard_json_is_given_to_who_asks_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client(version=317)
        asked = await client.ask(105, {"topic": "TBW102", "acceptStandardJsonOnly": "true"})
        assert json.loads(asked.body)["queueDatas"][0]["perm"] == 7


async def test_routes_name_the_advertised_host(tmp_path: Path) -> None:
    async with serving(tmp_path, advertise_host="broker.example") as running:
        client = await running.client()
        address = json.loads((await client.ask(105, {"topic": "TBW102"})).body)["brokerDatas"][0]["brokerAddrs"]["0"]
        assert address == f"broker.example:{running.ports.broker}"
        cluster = json.loads((await client.ask(106)).body)
        assert cluster["clusterAddrTable"] == {"DefaultCluster": ["halfmq"]}
        assert cluster["brokerAddrTable"]["halfmq"]["brokerAddrs"]["0"] == address


async def test_route_of_an_ipv6_broker_has_brackets_and_our_client_finds_it(tmp_path: Path) -> None:
    async with serving(tmp_path, hosts=("::1",)) as running:
        async with AsyncClient(f"rocketmq://[::1]:{running.ports.names}", group="orders") as mq:
            await mq.send("T", b"six")
        reader, writer = await asyncio.open_connection("::1", running.ports.names)
        client = RawClient(reader, writer, 409)
        address = json.loads((await client.ask(105, {"topic": "T"})).body)["brokerDatas"][0]["brokerAddrs"]["0"]
        assert address == f"[::1]:{running.ports.broker}"
        await client.close()


async def test_topic_is_made_listed_deleted_and_gone_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (
            await client.ask(17, {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"})
        ).code == 0
        assert "T" in json.loads((await client.ask(206)).body)["topicList"]
        refused = await client.ask(216, {"topic": "T", "clusterName": "DefaultCluster"})
        assert (refused.code, "delete it in the broker" in str(refused.remark)) == (1, True)
        assert (await client.ask(215, {"topic": "T"})).code == 0
        assert (await client.ask(216, {"topic": "T", "clusterName": "DefaultCluster"})).code == 0
        assert (await client.ask(105, {"topic": "T"})).code == 17
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(105, {"topic": "T"})).code == 17


async def test_tools_set_and_read_what_a_group_holds_and_change_the_rest_without_it(tmp_path: Path) -> None:
    """A tool of RocketMQ sends all settings, with the attributes to change or none; the dashboard sends back what it has read."""
    as_tool = {
        "brokerId": 0, "consumeBroadcastEnable": False, "consumeEnable": True, "consumeFromMinEnable": False, "groupName": "C",
        "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 3,
        "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip
    held = GroupSettings("C", 3, 1, True, ("orders", "stock"), 60_000, False, False)

    async def changed(client: RawClient, attributes: dict[str, str] | None, /, **more: object) -> int:
        body = {**as_tool, **more} if attributes is None else {**as_tool, "attributes": attributes, **more}
        return (await client.ask(200, body=json.dumps(body).encode())).code

    async with serving(tmp_path) as running:
        client = await running.client()
        assert await changed(client, {"+hold.topics": "stock:orders", "+hold.ms": "60000"}) == 0
        assert running.state.groups["C"] == held
        for attributes in (None, {}):
            assert await changed(client, attributes) == 0
            assert running.state.groups["C"] == held
        shown = json.loads((await client.ask(201)).body)["subscriptionGroupTable"]["C"]
        assert shown["attributes"] == {"hold.topics": "orders:stock", "hold.ms": "60000"}
        assert await changed(client, None, **{**shown, "retryMaxTimes": 4}) == 0
        assert running.state.groups["C"] == dataclasses.replace(held, retry_max_times=4)
        body = b'{"groupName": "C", "attributes": {"+hold.topics": "orders"}}'
        assert (await client.ask(200, body=body)).code == 0
        only = dataclasses.replace(held, retry_max_times=4, hold_topics=("orders",))
        assert running.state.groups["C"] == only, "ours sends nothing else"
        assert running.state.groups["C"].broadcast_enabled is False, "as the tool says by default"
        assert await changed(client, {"+priority.factor": "1"}) == 1
        assert await changed(client, {"+hold.ms": "long"}) == 1
        assert await changed(client, {"+hold.topics": "no way"}) == 29
        assert (await client.ask(200, body=b'{"retryMaxTimes":3}')).code == 1, "no name"
        assert (await client.ask(200, body=b"no json")).code == 1
    async with serving(tmp_path) as running:
        client = await running.client()
        assert running.state.groups["C"].hold_topics == ("orders",)
        assert await changed(client, {"-hold.topics": ""}) == 0
        assert running.state.groups["C"] == dataclasses.replace(held, hold_topics=(), hold_ms=limits.HOLD_MS)
        shown = json.loads((await client.ask(201)).body)["subscriptionGroupTable"]["C"]
        assert shown["attributes"] == {}


async def test_a_group_is_deleted_as_mqadmin_asks_and_gives_its_room_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        group = {"groupName": "CG", "retryMaxTimes": 3}
        assert (await client.ask(200, None, json.dumps(group).encode())).code == 0
        await client.send("T", b"x", unique="A" * 32)
        await client.send("%RETRY%CG", b"x", unique="B" * 32)
        offset = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
        assert (await client.ask(15, {**offset, "commitOffset": "1"})).code == 0
        before = running.state.derived.base_bytes
        gone = await client.ask(207, {"groupName": "CG", "cleanOffset": "true"})
        assert (gone.code, gone.remark) == (0, "what is in %RETRY%CG stays, see deleteTopic")
        assert running.state.derived.base_bytes < before
        assert "CG" not in running.state.groups
        assert (await client.ask(207, {"groupName": "CG", "cleanOffset": "true"})).code == 0, "absent is as good"
        assert (await client.ask(207, {"groupName": "CG"})).code == 0, "as earlier versions ask"
    async with serving(tmp_path) as running:
        assert "CG" not in running.state.groups
        assert (await (await running.client()).ask(14, {**offset, "setZeroIfNotFound": "false"})).code == 22


async def test_groups_are_not_made_where_only_an_administrator_may(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(auto_create_groups=False)) as running:
        client = await running.client()
        await client.send("T", b"x", unique="1" * 32)
        assert (await client.pull("T", group="New")).code == 26
        assert (await client.heartbeat("me", consumers={"New": ["T"]})).code == 0
        assert (await client.ask(38, {"consumerGroup": "New"})).code == 1, "skipped, as in RocketMQ"
        assert not running.state.groups
        assert (await client.ask(200, body=b'{"groupName":"New"}')).code == 0
        assert (await client.pull("T", group="New")).code == 0


async def test_an_ordered_topic_is_made_to_the_end(tmp_path: Path) -> None:
    """The second half of making one is a setting at the name server: taken where it says what is so, and never stored."""
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    async with serving(tmp_path) as running:
        client = await running.client(names=True)
        assert (await client.ask(101, order)).code == 22
        assert (await client.ask(100, {**order, "value": "halfmq:3"})).code == 1, "the topic is made first"
        await client.ask(17, {"topic": "T", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6", "order": "true"})
        assert (await client.ask(100, {**order, "value": "halfmq:3"})).code == 0
        assert (await client.ask(100, {**order, "value": "halfmq:3;"})).code == 0
        assert (await client.ask(101, order)).ext == {"value": "halfmq:3"}
        for wrong in ("halfmq:4", "halfmq:3;other:3", ""):
            refused = await client.ask(100, {**order, "value": wrong})
            assert refused.code == 1
            assert "ordered on halfmq:3" in str(refused.remark)
        assert (await client.ask(100, {**order, "namespace": "MINE", "value": "x"})).code == 1
        assert (await client.ask(101, {**order, "namespace": "MINE"})).code == 22
        refused = await client.ask(102, order)
        assert (refused.code, "for as long as it exists" in str(refused.remark)) == (1, True)
        assert (await client.ask(101, order)).ext == {"value": "halfmq:3"}, "so nothing was deleted"
        assert (await client.ask(102, {**order, "key": "Nowhere"})).code == 0
        assert (await client.ask(102, {**order, "namespace": "MINE"})).code == 0, "there is nothing to delete"
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(101, order)).ext == {"value": "halfmq:3"}
