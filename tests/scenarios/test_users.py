"""Users of a real broker: made with `halfmq user`, used by every kind of client, rotated while they are in use, removed."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, serving
from tests.support.waiting import until
from typer.testing import CliRunner, Result

from halfmq import AsyncClient, Client, LoginFailed, NotAuthorized, Outcome, compose
from halfmq.broker.first_token import NAME as TOKEN
from halfmq.broker.services.users import FIRST
from halfmq.cli import tx, user
from halfmq.client.blocking import Connections, NameServers, RawConnection
from halfmq.model.address import Address, parse_url
from halfmq.wire.remoting.codes import RequestCode, ResponseCode


class Site:
    """A broker with users, and the files with their secrets."""

    def __init__(self, running: Running, directory: Path) -> None:
        self.running = running
        self.directory = directory

    def file(self, name: str) -> Path:
        return self.directory / f"{name}.secret"

    def url(self, name: str, file: Path | None = None) -> str:
        """Of the name server, as the user."""
        return f"rocketmq://{name}@127.0.0.1:{self.running.ports.names}?secretfile={file or self.file(name)}"

    async def run(self, *arguments: object, by: str = "alice", app: Any = user.app, url: str = "") -> Result:
        """A command, as an administrator."""
        invoke: Any = CliRunner().invoke
        return await asyncio.to_thread(invoke, app, [*map(str, arguments), "--url", url or self.url(by)])

    async def done(self, *arguments: object) -> Result:
        result = await self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result

    async def add(self, name: str, *permissions: str) -> str:
        """Make a user; its URL."""
        allowed = [word for permission in permissions for word in ("--allow", permission)]
        await self.done("add", name, *allowed, "--secret-file", self.file(name))
        return self.url(name)


@asynccontextmanager
async def site(directory: Path, **changes: Any) -> AsyncIterator[Site]:
    """With alice, an administrator."""
    async with serving(directory / "store", secrets_key_file=directory / "secrets.key", **changes) as running:
        made = Site(running, directory)
        token = directory / "store" / TOKEN
        first = made.url(FIRST, token)
        done = await made.run("add", "alice", "--administrator", "--secret-file", made.file("alice"), url=first)
        assert done.exit_code == 0, done.output
        assert not token.exists()
        yield made


SHOP = ("send:topic:orders*", "send:group:shop")
BILLING = ("consume:topic:orders*", "consume:group:billing")


async def test_the_first_administrator_has_a_token_that_works_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "store", secrets_key_file=tmp_path / "secrets.key") as running:
        made = Site(running, tmp_path)
        token = tmp_path / "store" / TOKEN
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        kept = tmp_path / "kept"
        kept.write_text(token.read_text())
        first = made.url(FIRST, kept)
        plain = await made.run("add", "bob", "--allow", "send:*", url=first)
        assert (plain.exit_code, plain.stdout) == (4, ""), "the first user has to be an administrator"
        done = await made.run("add", "alice", "--administrator", url=first)
        assert (done.exit_code, len(done.stdout.split())) == (0, 1)
        made.file("alice").write_text(done.stdout)
        again = await made.run("add", "bob", "--administrator", url=first)
        assert (again.exit_code, f"does not accept user '{FIRST}'" in again.stderr) == (4, True)
        assert kept.read_text().strip() not in again.output
        listed = await made.run("list", "--json")
        assert [row["user"] for row in json.loads(listed.stdout)["users"]] == ["alice"]


async def test_who_has_the_secret_does_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        shop, billing = await here.add("shop", *SHOP), await here.add("billing", *BILLING)
        async with AsyncClient(shop, group="shop") as mq:
            await mq.send("orders", b"plain")
            async with mq.begin() as block:
                block.send("orders", b"committed")
            with pytest.raises(NotAuthorized, match=r"shop.*code 16"):
                await mq.send("stock", b"x")
        with pytest.raises(NotAuthorized):
            async with AsyncClient(billing, group="billing") as mq:
                await mq.send("orders", b"x")

        def read() -> list[str]:
            with Client(billing) as mq, mq.consumer("orders", group="billing", start="earliest") as messages:
                return [one.text() for one in (messages.get(30), messages.get(30)) if one]

        assert sorted(await asyncio.to_thread(read)) == ["committed", "plain"]
        refused = await here.run("list", by="shop")
        assert (refused.exit_code, "code 16" in refused.stderr) == (4, True)
        refused = await here.run("list", by="shop", app=tx.app)
        assert (refused.exit_code, "code 16" in refused.stderr) == (4, True)
        listed = await here.done("list")
        assert "send:topic:orders*, send:group:shop" in listed.stdout


async def test_a_wrong_secret_is_refused_at_once_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as here:
        await here.add("shop", *SHOP)
        wrong = tmp_path / "wrong"
        wrong.write_text("hunter2 hunter2")
        for name in ("shop", "nobody"):
            url = here.url(name, wrong)
            with pytest.raises(LoginFailed, match=f"does not accept user '{name}'.*halfmq user rotate") as raised:
                async with AsyncClient(url, group="shop", timeout=3_600.0):
                    pass
            told = [str(raised.value), repr(raised.value)]
            with pytest.raises(LoginFailed) as raised:
                await asyncio.to_thread(blocking_topics, url)
            told += [str(raised.value), (await here.run("list", url=url)).output]
            assert "hunter2" not in " ".join(told) + caplog.text
        with pytest.raises(LoginFailed):
            async with AsyncClient(here.url("shop", here.file("alice")), group="shop"):
                pass


def blocking_topics(url: str) -> tuple[str, ...]:
    parsed = parse_url(url)
    connections = Connections(parsed.security)
    try:
        return NameServers(parsed, connections).topics()
    finally:
        connections.close()


async def test_blocking_connections_log_in(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        shop, reader = await here.add("shop", *SHOP), await here.add("spark", "consume:topic:orders", "describe:broker")
        async with AsyncClient(shop, group="shop") as mq:
            await mq.send("orders", b"x")

        def read() -> list[int]:
            assert "orders" in blocking_topics(reader)
            line = RawConnection.open(Address("127.0.0.1", here.running.ports.broker), parse_url(reader).security)
            try:
                codes = []
                for topic in ("orders", "stock"):
                    line.send(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0})
                    codes.append(line.head().code)
                    line.body()
                return codes
            finally:
                line.close()

        assert await asyncio.to_thread(read) == [0, ResponseCode.NO_PERMISSION]


async def test_a_broker_without_users_serves_clients_that_have_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    async with serving(tmp_path / "store") as running:
        url = f"rocketmq://shop@127.0.0.1:{running.ports.names}?secretfile={secret}"
        async with AsyncClient(url, group="shop") as mq:
            await mq.send("orders", b"x")
        here = Site(running, tmp_path)
        assert "TBW102" in await asyncio.to_thread(blocking_topics, url)
        refused = await here.run("list", url=url)
        assert (refused.exit_code, "this broker has no users" in refused.stderr) == (4, True)


async def test_a_secret_is_rotated_while_its_user_sends(tmp_path: Path) -> None:
    """Connections are cut meanwhile: every send succeeds, first with the old secret, then with the new one."""
    async with site(tmp_path) as here:
        url = await here.add("shop", *SHOP)
        sent = 0
        async with AsyncClient(url, group="shop") as mq:

            async def send() -> None:
                nonlocal sent
                while True:
                    await mq.send("orders", b"%d" % sent)
                    sent += 1

            sending = asyncio.create_task(send())

            async def cut() -> None:
                """End the user's connections, and wait until sends go through others."""
                (before,) = mq._context.brokers.established()
                before.abort("the test cuts it")
                seen = sent
                await until(lambda: sent > seen + 3, "sends through another connection", unless=lambda: sending.done())

            await until(lambda: sent > 3, "the first sends", unless=sending.done)
            new = tmp_path / "new"
            await here.done("rotate", "shop", "--keep-old", "1h", "--secret-file", new)
            await cut()
            old = here.file("shop").read_text()
            os.replace(new, here.file("shop"))
            await cut()
            await here.done("rotate", "shop", "--secret-from", here.file("shop"))
            await cut()
            sending.cancel()
        stale = tmp_path / "stale"
        stale.write_text(old)
        with pytest.raises(LoginFailed):
            async with AsyncClient(here.url("shop", stale), group="shop"):
                pass


async def test_a_consumer_whose_user_was_refused_goes_on_with_a_new_secret(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        shop, billing = await here.add("shop", *SHOP), await here.add("billing", *BILLING)
        async with (
            AsyncClient(shop, group="shop") as producer,
            AsyncClient(billing, group="billing", attempt_timeout=1.0) as mq,
        ):
            await producer.send("orders", b"before")
            async with mq.consumer("orders", group="billing", start="earliest") as messages:
                first = await messages.get(30)
                assert first is not None
                first.ack()
                new = tmp_path / "new"
                await here.done("rotate", "billing", "--secret-file", new)
                (connection,) = mq._context.brokers.established()
                connection.abort("the test cuts it")
                with pytest.raises(LoginFailed):
                    await mq._context.brokers.get(connection.address)
                await producer.send("orders", b"after")
                os.replace(new, here.file("billing"))
                second = await messages.get(30)
                assert second is not None
                assert (first.text(), second.text()) == ("before", "after")


async def test_who_may_not_be_a_member_of_the_group_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its heartbeat is refused, and it is a halfmq broker all the same."""
    async with site(tmp_path) as here:
        url = await here.add("shop", *SHOP)
        mq = AsyncClient(url, group="other")
        mq.add_check("order.create", lambda check: Outcome.COMMIT)
        async with mq:
            (connection,) = mq._context.brokers.established()
            assert "no right to send on group 'other' (code 16)" in caplog.text, "its first heartbeat is refused"
            assert connection.is_halfmq
            with pytest.raises(NotAuthorized, match=r"send on group 'other'.*code 16"):
                await mq.prepare([compose("orders", b"x")], tx_id="chosen", name="order.create")


async def test_a_removed_user_is_gone_at_once(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        url = await here.add("shop", *SHOP)
        async with AsyncClient(url, group="shop", attempt_timeout=2.0) as mq:
            await mq.send("orders", b"x")
            await here.done("remove", "shop", "--reason", "gone", "--yes")
            await until(lambda: not mq._context.brokers.established(), "the broker closed its connections")
            with pytest.raises(LoginFailed, match="does not accept user 'shop'"):
                await mq.send("orders", b"x")
        last = await here.run("remove", "alice", "--reason", "r", "--yes")
        assert (last.exit_code, "nobody could change users" in last.stderr) == (4, True), last.output


async def test_changes_of_a_user(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        url = await here.add("shop", *SHOP)
        again = await here.run("add", "shop")
        assert (again.exit_code, "exists already" in again.stderr) == (2, True)
        await here.done("set", "shop", "--connections", 2, "--rate", 100)
        await here.done("set", "shop", "--undecided", 2)
        (_, shop) = json.loads((await here.done("list", "--json")).stdout)["users"]
        assert shop["limits"] == {"connections": 2, "requests_per_s": 100, "undecided": 2, "names": 0}
        assert shop["permissions"] == list(SHOP)
        async with AsyncClient(url, group="shop") as mq:
            await mq.send("orders", b"x")
        await here.done("set", "shop", "--connections", 0, "--allow", "send:topic:stock", "--allow", "send:group:shop")
        async with AsyncClient(url, group="shop") as mq:
            await mq.send("stock", b"x")
            with pytest.raises(NotAuthorized):
                await mq.send("orders", b"x")
        password = tmp_path / "password"
        password.write_text("a password for people")
        await here.done("set", "shop", "--password-file", password)
        (_, shop) = json.loads((await here.done("list", "--json")).stdout)["users"]
        assert shop["has_password"]
