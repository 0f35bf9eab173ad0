"""What RocketMQ refuses in ways of its own, and messages that it stored with less than it is configured for."""

from functools import partial
from pathlib import Path

import pytest
from tests.support.scripted_broker import URL, Peer, ScriptedBroker
from tests.support.served import Served
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import PATIENCE_S
from tests.unit.relay.targets import Rocket, batch, fresh_name, row

from halfmq.client.async_client import AsyncClient
from halfmq.errors import UsageError
from halfmq.model import properties
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.rocketmq import RocketMqPublisher
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import Request, encode_response


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(240)
async def test_a_topic_that_may_not_be_written_is_refused_and_others_are_confirmed(rocket_target: Rocket) -> None:
    topic, read_only = fresh_name(), fresh_name()
    await rocket_target.create(topic)
    await rocket_target.create(read_only, permission=4)
    rows = [row(read_only, b"1", "a"), row(topic, b"2", "a"), row(topic, b"3", "b")]
    publisher = rocket_target.publisher()
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert (result.confirmed, result.refused.keys()) == ({rows[2].seq}, {rows[0].seq})


@pytest.mark.slow
async def test_a_halfmq_broker_takes_them_too(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", tmp_path / "log")
    served.start()
    try:
        rows = [row("t", b"%d" % number, f"k{number % 3}", tag="paid") for number in range(60)]
        publisher = RocketMqPublisher(served.url)
        result = await publisher.publish(batch(rows))
        await publisher.close()
        assert result.confirmed == {one.seq for one in rows}
        async with AsyncClient(served.url) as mq, mq.consumer("t", group="readers") as messages:
            found = [await messages.get(PATIENCE_S) for _ in rows]
    finally:
        served.stop()
    for key in ("k0", "k1", "k2"):
        of_key = [one.body for one in found if one is not None and one.properties[properties.SHARDING_KEY] == key]
        assert of_key == [one.body for one in rows if one.order_key == key]
    assert {one.message_id for one in found if one is not None} == {one.message_id for one in rows}


@in_virtual_time
@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_message_that_is_stored_with_less_than_configured_is_not_confirmed(code: int) -> None:
    broker = ScriptedBroker()
    usual = broker.usual

    def weaker(peer: Peer, request: Request[dict[str, str]]) -> bytes | None:
        usual(peer, request)
        ext = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
        return encode_response(request, code, None, ext)

    broker.on[RequestCode.SEND_MESSAGE_V2] = weaker
    publisher = RocketMqPublisher(URL, connector=broker.network())
    result = await publisher.publish(batch([row("t", b"1", "k"), row("t", b"2", "k")]))
    assert (result.confirmed, result.refused) == (frozenset(), {})
    assert "stored, but" in result.unavailable
    assert len(broker.requests(RequestCode.SEND_MESSAGE_V2)) == 1
    without_keys = batch([row("t", b"%d" % number) for number in range(100)])
    for attempt in range(2, 5):
        assert (await publisher.publish(without_keys)).unavailable
        assert len(broker.requests(RequestCode.SEND_MESSAGE_V2)) == attempt, "one duplicate each, not a batch"
    broker.on[RequestCode.SEND_MESSAGE_V2] = usual
    assert len((await publisher.publish(without_keys)).confirmed) == 100
    await publisher.close()


@in_virtual_time
async def test_a_message_has_the_id_of_its_row_and_the_order_key_as_sharding_key() -> None:
    broker = ScriptedBroker()
    publisher = RocketMqPublisher(URL, connector=broker.network())
    bare = row("t", b"1", "k")._replace(properties=b"")
    result = await publisher.publish(batch([bare]))
    await publisher.close()
    assert result.confirmed == {bare.seq}
    (request,) = broker.requests(RequestCode.SEND_MESSAGE_V2)
    assert properties.to_dict(request.ext.properties) == {"__SHARDINGKEY": "k", "UNIQ_KEY": bare.message_id}


@in_virtual_time
async def test_the_publisher_for_halfmq_refuses_a_rocketmq_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would delete rows whose COMMIT was lost, and RocketMQ gives up after 15 checks that nobody answers."""
    broker = ScriptedBroker(halfmq=False)
    monkeypatch.setattr("halfmq.relay.halfmq.AsyncClient", partial(AsyncClient, connector=broker.network()))
    publisher = HalfmqPublisher(URL, group="orders-relay")
    with pytest.raises(UsageError, match="RocketMqPublisher"):
        await publisher.open()
    await publisher.close()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        RocketMqPublisher("amqp://localhost")
    assert RocketMqPublisher("rocketmq://a:1;b:2").name == "rocketmq a:1;b:2"


@pytest.mark.parametrize(
    ("option", "meant"), [("scret", "did you mean 'secret'"), ("timeout", "timeout_s=, in seconds")]
)
def test_a_wrong_option_is_refused_by_the_publisher_and_not_by_its_client(option: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"^RocketMqPublisher .*{meant}"):
        RocketMqPublisher(URL, **{option: 3})  # type: ignore[arg-type]
