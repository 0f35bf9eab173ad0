"""Consumer groups come into being when they are first named, durably, and only where that is allowed."""

from pathlib import Path

from tests.support.in_process import serving

from halfmq.model.settings import BrokerSettings


async def test_pull_makes_the_group_it_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"x", unique="1" * 32)
        assert (await client.pull("T", group="New")).code == 0
    async with serving(tmp_path) as running:
        assert "New" in running.state.groups


async def test_group_with_an_illegal_name_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"x", unique="1" * 32)
        assert (await client.pull("T", group="no way")).code == 29


async def test_groups_are_not_made_where_only_an_administrator_may(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=BrokerSettings(auto_create_groups=False)) as running:
        client = await running.client()
        await client.send("T", b"x", unique="1" * 32)
        assert (await client.pull("T", group="New")).code == 26
        assert (await client.heartbeat("me", consumers={"New": ["T"]})).code == 0
        assert (await client.ask(38, {"consumerGroup": "New"})).code == 1, "skipped, as in RocketMQ"
        assert (await client.ask(200, body=b'{"groupName":"New"}')).code == 0
        assert (await client.pull("T", group="New")).code == 0
