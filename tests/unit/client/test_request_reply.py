"""A reply whose requester is not connected at the moment: how long it is repeated, and who waits for that."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.scripted_broker import URL, Dice, Network, Peer, ScriptedBroker, client_of, in_place
from tests.support.virtual_time import LoopClock, in_virtual_time

from halfmq.client import request_reply
from halfmq.client.app import App
from halfmq.client.message import Message
from halfmq.errors import NoReply, RequestFailed
from halfmq.model import properties as names
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_oneway_request, encode_response


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Shop:
    """A broker with requests to ``prices`` whose requester is connected ``after_s`` seconds from now on, and waits for ``ttl_s``."""

    def __init__(self, *, after_s: float, ttl_s: float = 20, requests: int = 1, ttl: str | None = None) -> None:
        self.broker = ScriptedBroker(queues=1)
        self.broker.topics.add("prices")
        self.broker.on[RequestCode.SEND_REPLY_MESSAGE_V2] = self._reply
        self.began_s = now_s()
        self.after_s = after_s
        self.tried_s: list[float] = []
        self.replied_s: list[float] = []
        # Stored when the clock of ``LoopClock`` was 0.
        pairs = {
            names.REPLY_TO_CLIENT: "client", names.CORRELATION_ID: "1", names.CLUSTER: "c",
            names.TTL: str(round((self.began_s + ttl_s) * 1000)) if ttl is None else ttl,
        }  # fmt: skip
        for _ in range(requests):
            self.broker.append("prices", 0, b"x", names.encode(pairs.items()))

    def _reply(self, _: Peer, request: Request[Any]) -> bytes:
        self.tried_s.append(now_s() - self.began_s)
        if self.tried_s[-1] < self.after_s:
            text = "push reply message fail, channel of <client> not found."
            return encode_response(request, ResponseCode.SYSTEM_ERROR, text)
        self.replied_s.append(self.tried_s[-1])
        return encode_response(request, ResponseCode.SUCCESS)

    def app(self, **options: Any) -> tuple[App, list[float]]:
        app, handled_s = _app(self.broker.network()), []

        @app.consumer("prices", group="g", **options)
        async def price(message: Message) -> None:
            handled_s.append(now_s() - self.began_s)
            message.reply("20")

        return app, handled_s


def _app(network: Network) -> App:
    return App(URL, connector=network, clock=LoopClock(), entropy=Dice(), run_blocking=in_place)


async def in_a_loop(shop: Shop) -> None:
    async with client_of(shop.broker.network()) as mq, mq.consumer("prices", group="g") as messages:
        message = await anext(messages)
        await message.reply("20")


async def in_a_handler(shop: Shop) -> None:
    app, _ = shop.app()
    async with app.run():
        await asyncio.sleep(60)


@pytest.mark.parametrize("replies", [in_a_loop, in_a_handler])
@pytest.mark.parametrize("after_s", [0, 1, 4, 18])
@in_virtual_time
async def test_reply_waits_for_a_requester_that_connects_while_it_waits(
    replies: Callable[[Shop], Any], after_s: float
) -> None:
    """Seen: three attempts in 0.2 s, and the reply of a broker's restart was lost."""
    shop = Shop(after_s=after_s)
    await replies(shop)
    (replied_s,) = shop.replied_s
    assert after_s <= replied_s < after_s + 5
    assert len(shop.tried_s) < 40  # with the usual pauses


@pytest.mark.parametrize(
    ("options", "at_least_s", "at_most_s"),
    [
        ({"ttl_s": 5}, 5, 7), ({"ttl_s": 3_600}, 29, 31), ({"ttl_s": -5}, 0, 1), ({"ttl": ""}, 0, 1),
        ({"ttl": "soon"}, 0, 1), ({"ttl": "²"}, 0, 1), ({"ttl": "-1"}, 0, 1), ({"ttl": "9" * 5_000}, 0, 1),
    ],
)  # fmt: skip
@in_virtual_time
async def test_reply_to_nobody_is_given_up_when_nobody_waits_any_more(
    options: dict[str, Any], at_least_s: float, at_most_s: float
) -> None:
    shop = Shop(after_s=1e9, **options)
    async with client_of(shop.broker.network()) as mq, mq.consumer("prices", group="g") as messages:
        message = await anext(messages)
        read_s = now_s() - shop.began_s
        with pytest.raises(RequestFailed, match="channel of <client> not found"):
            await message.reply("20")
        assert at_least_s <= now_s() - shop.began_s <= read_s + at_most_s
    assert len(shop.tried_s) >= 3


@in_virtual_time
async def test_requesters_that_are_gone_do_not_hold_the_workers_of_an_app(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shop = Shop(after_s=1e9, requests=20)
    app, handled_s = shop.app(concurrency=1)
    async with app.run():
        await asyncio.sleep(15)
        assert len(handled_s) == 20
        assert handled_s[-1] - handled_s[0] < 20
        assert app._client._context.late_reply_bytes > 0
        await asyncio.sleep(60)
        assert app._client._context.late_reply_bytes == 0
    assert sum("nobody gets the reply" in one.getMessage() for one in caplog.records) == 20


@in_virtual_time
async def test_replies_that_wait_without_their_handler_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reply, "LATE_BYTES_MAX", 5 * request_reply._LATE_BYTES_MIN)
    shop = Shop(after_s=16, requests=20)
    app, handled_s = shop.app(concurrency=1)
    async with app.run():
        await asyncio.sleep(14)
        assert len(handled_s) == 6  # the worker waits with the sixth
        await asyncio.sleep(30)
        assert len(handled_s) == len(shop.replied_s) == 20


@in_virtual_time
async def test_closing_the_app_ends_the_replies_that_wait_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shop = Shop(after_s=1e9)
    app, handled_s = shop.app()
    async with app.run():
        await asyncio.sleep(10)
        assert app._client._context.late_reply_bytes > 0
    assert "nobody gets the reply" in caplog.text
    assert "the client was closed" in caplog.text
    assert len(handled_s) == 1


@pytest.mark.parametrize("flag", [0x1, 0x1 | 7 << 8])
@in_virtual_time
async def test_reply_that_cannot_be_read_is_no_reply_and_the_outcome_is_not_known(flag: int) -> None:
    """Seen: ProtocolError, whose outcome is known, of a request that was handled."""
    broker = ScriptedBroker(queues=1)

    def replied(peer: Peer, request: Request[Any]) -> bytes | None:
        answer = broker.usual(peer, request)
        number = names.find(broker.logs["prices", 0][-1].properties, names.CORRELATION_ID) or b""
        ext = {"topic": "c_REPLY_TOPIC", "sysFlag": flag, "properties": f"{names.CORRELATION_ID}\x01{number.decode()}"}
        pushed = encode_oneway_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, 1, ext, b"not compressed")
        asyncio.get_running_loop().call_later(0.1, peer.send, pushed)
        return answer

    broker.on[RequestCode.SEND_MESSAGE_V2] = replied
    async with client_of(broker.network()) as mq:
        with pytest.raises(NoReply, match="its reply cannot be read") as raised:
            await mq.request("prices", "x", timeout=5)
    assert not raised.value.outcome_known
