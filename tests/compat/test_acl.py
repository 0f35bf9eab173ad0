"""Our clients with a user and a secret, against Apache RocketMQ with its access control: 1.0 of 4.9, and 2.0 of 5.4."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmq import App, AsyncClient, Client, HalfmqError, Message, Outcome, Transaction
from halfmq.client.blocking import Connections, NameServers
from halfmq.client.outgoing import compose
from halfmq.model.address import parse_url
from halfmq.wire.remoting.acl import sign_frame, signature
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import decode, encode_request
from tests.compat.stock_broker import StockBroker, access_control
from tests.compat.toolchain import require_java
from tests.support.waiting import until

USER, SECRET = "orders-service", "a secret of 12345678"
_ACL_1 = f"""accounts:
- accessKey: {USER}
  secretKey: {SECRET}
  admin: true
"""
#: Checks soon.
_QUICK = {"transactionCheckInterval": "2000", "transactionTimeOut": "2000"}


def test_the_signature_is_the_one_of_rocketmq() -> None:
    """Computed with ``AclUtils.combineRequestContent`` and ``calSignature`` of rocketmq-acl 4.9.7."""
    fields = {"topic": "T", "AccessKey": "user", "queueId": "0", "ä": "ü", "Z": ""}
    assert signature(fields, b"\0body", b"secret") == "p+RSDG2Fm4IdYJHpDqc3jHLOj0o="
    assert signature({**fields, "Signature": "x"}, b"", "secret ü".encode()) == "ucF2QXREHffTcmdEqd2UfHjdOro="


def test_a_signed_frame_is_the_frame_with_two_more_fields() -> None:
    frame = encode_request(310, 7, {"topic": "T", "of": "ü"}, b"\0body")
    plain, signed = (decode(one[4:], {}) for one in (frame, sign_frame(frame, "user", b"secret")))
    user, signed_by = signed.ext.pop("AccessKey"), signed.ext.pop("Signature")
    assert (user, signed_by) == ("user", signature({**plain.ext, "AccessKey": "user"}, b"\0body", b"secret"))
    assert signed == plain


@pytest.fixture(
    scope="module",
    params=[
        ("4.9.7", {"aclEnable": "true", **_QUICK}),
        pytest.param(("5.5.0", {**access_control(USER, SECRET), **_QUICK}), marks=pytest.mark.thorough),
    ],
    ids=["4.9.7", "5.5.0"],
)
def stock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockBroker]:
    require_java()
    version, settings = request.param
    conf = {"plain_acl.yml": _ACL_1} if version.startswith("4") else {}
    with StockBroker(version, tmp_path_factory.mktemp("stock"), conf=conf, **settings) as started:
        yield started


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
def test_every_face_signs_with_the_secret_as_it_is_now(
    stock: StockBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    url = f"rocketmq://{USER}@{stock.names}?secretfile={file}"
    with Client(url, group="signed") as mq:
        mq.send("signed", b"1", tag="a")
    with Client(f"rocketmq://{USER}@{stock.names}", group="signed", secret=SECRET) as mq:
        mq.send("signed", b"2")
    monkeypatch.setenv("HALFMQ_SECRET", SECRET)
    asyncio.run(settle_and_check(f"rocketmq://{USER}@{stock.names}"))
    parsed = parse_url(url)
    connections = Connections(parsed.security)
    names = NameServers(parsed, connections)
    (broker,) = names.registered().values()
    assert connections.ask(broker.master, RequestCode.GET_MAX_OFFSET, {"topic": "signed", "queueId": 0}).code == 0
    connections.close()


async def settle_and_check(url: str) -> None:
    """A transaction that is committed, and one whose producer is gone, so that another one is asked: both are consumed."""
    crashed = AsyncClient(url, group="signed-tx")
    await crashed.connect()
    async with crashed.begin() as tx:
        tx.send("signed", b"committed")
    await crashed.prepare([compose("signed", b"checked")], tx_id="crash-1", name="order.create")
    await crashed.close()
    app = App(url, group="signed-tx")
    got: list[str] = []
    asked: list[str] = []

    @app.transaction("order.create", topic="signed")
    async def create(tx: Transaction) -> None: ...

    @create.check
    async def was_created(tx: Transaction) -> Outcome:
        asked.append(tx.id)
        return Outcome.COMMIT

    @app.consumer("signed", group="signed-consumers")
    async def consume(message: Message) -> None:
        got.append(message.text())

    async with app.run():
        await until(lambda: {"1", "2", "committed", "checked"} <= set(got), "all messages", 60)
    assert set(asked) == {"crash-1"}


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
def test_without_the_right_secret_nothing_is_sent_and_the_secret_is_not_shown(stock: StockBroker) -> None:
    for url, secret in ((f"rocketmq://{stock.names}", None), (f"rocketmq://{USER}@{stock.names}", "hunter2")):
        with pytest.raises(HalfmqError) as refused, Client(url, group="strangers", secret=secret, timeout=4.0) as mq:
            mq.send("signed", b"x")
        print(type(refused.value), refused.value)
        assert "hunter2" not in str(refused.value)
