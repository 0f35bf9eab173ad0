"""`halfmq dead` against a running broker, with dead letters of a real consumer."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq import App, AsyncClient, Message, Retry
from halfmq.cli import dead
from halfmq.model.settings import BrokerSettings

pytestmark = pytest.mark.timeout(90)
ONE_QUEUE = BrokerSettings(default_topic_queues=1)
AT_ONCE = Retry(times=0)


def url_of(running: Running) -> str:
    return f"127.0.0.1:{running.ports.names}"


async def run(running: Running, *arguments: str) -> Result:
    invoke: Any = CliRunner().invoke
    return await asyncio.to_thread(invoke, dead.app, [*arguments, "--url", url_of(running)])


async def listed(running: Running, *arguments: str) -> list[Any]:
    done = await run(running, "list", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: list[Any] = json.loads(done.stdout)["letters"]
    return found


async def given_up(running: Running, *bodies: str, retry: Retry = AT_ONCE, sharding_key: str | None = None) -> None:
    """A consumer of group billing gives these messages of topic orders up, each at its first failure if ``retry`` does not say else."""
    app = App(url_of(running), group="shop")
    seen: list[str] = []

    @app.consumer("orders", group="billing", start="earliest", retry=retry)
    async def handle(message: Message) -> None:
        seen.append(message.text())
        raise ValueError(f"no account\x1b for {message.text()}")

    async with app.run() as client:
        for body in bodies:
            await client.send("orders", body, key=body, sharding_key=sharding_key)

        async def are_dead() -> bool:
            return len(await listed(running, "--group", "billing")) >= len(bodies)

        await until(are_dead, "all of them are dead letters")
    assert sorted(seen) == sorted((1 + retry.times) * bodies)


async def read(running: Running, group: str, count: int) -> list[Message]:
    async with AsyncClient(url_of(running)) as mq, mq.consumer("orders", group=group, start="latest") as messages:
        found = []
        while len(found) < count:
            message = await messages.get(20)
            assert message is not None, found
            message.ack()
            found.append(message)
        assert await messages.get(0.5) is None, "nothing is sent twice"
        return found


async def test_a_dead_letter_says_why_and_is_sent_again_once_to_its_group_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await given_up(running, "one", "two", "three")
        found = await listed(running)
        assert [(one["group"], one["topic"], one["body"], one["attempts"], one["redriven_at"]) for one in found] == [
            ("billing", "orders", body, 1, "") for body in ("one", "two", "three")
        ]
        assert found[0]["reason"] == "ValueError: no account\\x1b for one"
        said = (await run(running, "show", "billing", found[1]["id"])).stdout
        assert "reason: ValueError: no account\\x1b for two" in said
        assert "re-driven: no" in said
        preview = await run(running, "redrive", "--group", "billing", "--reason", "for two", "--preview")
        assert (preview.exit_code, "1 dead letters of group billing would be sent again" in preview.stdout) == (0, True)
        assert all(one["redriven_at"] == "" for one in await listed(running)), "a preview sends nothing"
        assert (await run(running, "redrive", "--group", "billing")).exit_code == 2, "without a terminal it takes --yes"

        done = await run(running, "redrive", "--group", "billing", "--reason", "for two", "--yes")
        assert (done.exit_code, "1 dead letters of group billing are sent again" in done.stdout) == (0, True), (
            done.output
        )
        assert [bool(one["redriven_at"]) for one in await listed(running)] == [False, True, False], "they stay"
        some = await run(running, "list", "--max", "2")
        assert "3 dead letters, 2 shown, 1 of them re-driven" in some.stderr
        assert json.loads((await run(running, "list", "--max", "2", "--json")).stdout)["total"] == 3
        done = await run(running, "redrive", "--group", "billing", "--reason", "for two", "--yes")
        assert (done.exit_code, "0 dead letters" in done.stdout) == (0, True), "each at most once"
        assert "nothing to send: 1 such dead letters" in done.stderr
        done = await run(running, "redrive", "--group", "billing", "--yes")
        assert (done.exit_code, "2 dead letters" in done.stdout) == (0, True), done.output

        again = await read(running, "billing", 3)
        assert sorted(one.text() for one in again) == ["one", "three", "two"]
        assert {one.message_id for one in again} == {one["id"] for one in found}
        assert {(one.topic, one.attempt) for one in again} == {("orders", 1)}
        async with (
            AsyncClient(url_of(running)) as mq,
            mq.consumer("orders", group="other", start="earliest") as messages,
        ):
            others = [await messages.get(10) for _ in range(3)]
            assert [one.text() for one in others if one is not None] == ["one", "two", "three"]
            assert await messages.get(0.5) is None, "other groups do not read what was sent again"


@pytest.mark.parametrize("sharding_key", [None, "k"])
async def test_a_dead_letter_says_how_often_it_was_handled(tmp_path: Path, sharding_key: str | None) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await given_up(running, "one", retry=Retry(times=2, delays=(0,)), sharding_key=sharding_key)
        (found,) = await listed(running)
        assert (found["attempts"], "attempt" in found) == (3, False)
        assert (await run(running, "list")).stdout.split()[11] == "3"
        assert ", after 3 attempts" in (await run(running, "show", "billing", found["id"])).stdout
        await run(running, "redrive", "--group", "billing", "--yes")
        (again,) = await read(running, "billing", 1)
        assert again.attempt == 1


async def test_a_copy_whose_response_was_lost_is_not_sent_a_second_time(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await given_up(running, "one")

        def send() -> None:
            """As a run that ends before the response."""
            with dead.Cluster(dead._COMMANDS, url_of(running), 5.0) as cluster:
                desk = dead._Desk(cluster)
                (letter,) = desk.letters(dead.Selection("billing", "", 0, "", ""))
                desk.send(letter, to_topic=False)

        await asyncio.to_thread(send)
        done = await run(running, "redrive", "--group", "billing", "--yes")
        assert (done.exit_code, "nothing to send" in done.stderr) == (0, True)
        assert [one.text() for one in await read(running, "billing", 1)] == ["one"]


async def test_what_another_run_sent_while_this_one_asks_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, settings=ONE_QUEUE) as running:
        await given_up(running, "one")

        def other_run(*_: object) -> None:
            with dead.Cluster(dead._COMMANDS, url_of(running), 5.0) as cluster:
                desk = dead._Desk(cluster)
                (letter,) = desk.letters(dead.Selection("billing", "", 0, "", ""))
                desk.send(letter, to_topic=False)
                desk.settle("billing")

        monkeypatch.setattr(dead._COMMANDS, "require_typed", other_run)
        done = await run(running, "redrive", "--group", "billing")
        assert (done.exit_code, "0 dead letters of group billing are sent again" in done.stdout) == (0, True), (
            done.output
        )
        async with AsyncClient(url_of(running)) as mq, mq.consumer("orders", group="billing") as messages:
            once = await messages.get(20)
            assert once is not None
            assert once.text() == "one"
            once.ack()
            assert await messages.get(0.5) is None, "it came twice"


async def test_filters_select_and_what_is_absent_has_its_status(tmp_path: Path) -> None:
    # Without deduplication: sent to everybody, a message would repeat the one that was sent a moment ago.
    settings = BrokerSettings(default_topic_queues=1, dedup_window_ms=0)
    async with serving(tmp_path, settings=settings) as running:
        await given_up(running, "one", "two")
        found = await listed(running)
        for arguments, count in (
            (("--group", "billing"), 2), (("--group", "nobody"), 0), (("--topic", "orders"), 2), (("--topic", "stock"), 0),
            (("--since", "1h"), 2), (("--since", "2999-01-01"), 0), (("--id", found[0]["id"]), 1), (("--id", found[0]["offset_id"]), 1),
            (("--reason", "no account"), 2), (("--reason", "for one"), 1), (("--max", "1"), 1),
        ):  # fmt: skip
            assert len(await listed(running, *arguments)) == count, arguments
        assert (await run(running, "show", "billing", "no")).exit_code == 3
        assert (await run(running, "redrive", "--group", "nobody", "--yes")).exit_code == 3
        assert (await run(running, "redrive", "--yes")).exit_code == 2
        done = await run(running, "redrive", "--group", "billing", "--id", found[0]["id"], "--everybody", "--yes")
        assert done.exit_code == 0, done.output
        async with AsyncClient(url_of(running)) as mq, mq.consumer("orders", group="new", start="earliest") as messages:
            bodies = [one.text() for one in [await messages.get(10) for _ in range(3)] if one is not None]
        assert bodies == ["one", "two", "one"]
