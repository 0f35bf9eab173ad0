"""Commands that go on to a client (307), and its answer back to who asked."""

import asyncio
from pathlib import Path

from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient, command, frame
from tests.support.waiting import soon

from halfmq.broker.remoting.client_calls import ClientCommands

ASK = {"consumerGroup": "C", "clientId": "me", "jstackEnable": "true"}


def reply(pushed: Answer, code: int = 0, body: bytes = b"", opaque: int | None = None) -> bytes:
    number = pushed.opaque if opaque is None else opaque
    return frame(b'{"code":%d,"language":"JAVA","version":409,"opaque":%d,"flag":1}' % (code, number), body)


async def consumer(running: object) -> RawClient:
    client: RawClient = await running.client()  # type: ignore[attr-defined]
    await client.heartbeat("me", consumers={"C": ["T"]})
    while not client.pushes.empty():
        client.pushes.get_nowait()
    return client


async def pushed(client: RawClient) -> Answer:
    """The next command that the client is to answer."""
    while True:
        found = await soon(client.pushes.get())
        if found.code == 307:
            return found


async def test_a_consumer_says_itself_what_it_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await consumer(running), await running.client()
        asked = asyncio.create_task(admin.ask(307, ASK))
        got = await pushed(member)
        assert (got.ext, got.flag) == (ASK, 0)
        member.write(reply(got, opaque=got.opaque + 1))  # to nobody's question
        member.write(reply(got, body=b'{"jstack":"threads"}'))
        answer = await asked
        assert (answer.code, answer.body) == (0, b'{"jstack":"threads"}')
        asked = asyncio.create_task(admin.ask(307, ASK))
        member.write(reply(await pushed(member), code=3))
        assert (await asked).code == 3, "what a client refuses is refused"


async def test_who_is_not_there_or_gets_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await consumer(running), await running.client()
        assert (await admin.ask(307, {**ASK, "consumerGroup": "D"})).code == 1
        assert "not online" in str((await admin.ask(307, {**ASK, "clientId": "you"})).remark)
        assert "has no body" in str((await admin.ask(307, ASK, b"a thread dump of mine")).remark)
        asked = asyncio.create_task(admin.ask(307, ASK))
        await pushed(member)
        await member.close()
        assert "was lost" in str((await asked).remark)
        assert not running.broker._handlers[ClientCommands]._calls


async def test_a_call_keeps_nothing_that_its_answer_does_not_need(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        member, admin = await consumer(running), await running.client()
        admin.write(command(307, 4_711, {**ASK, "more": "x" * 9_000}, remark="x" * 9_000))
        got = await pushed(member)
        (call,) = running.broker._handlers[ClientCommands]._calls.values()
        kept = call.request
        assert (kept.body, kept.remark, kept.ext) == (b"", None, None)
        member.write(reply(got, body=b"{}"))
        assert (await soon(admin.expect(4_711))).body == b"{}"
