"""What the publisher to a halfmq broker says of a batch when answers are lost, other verdicts stand, or messages are refused."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from tests.support.recorded_telemetry import Recorded
from tests.support.scripted_broker import URL, Peer, ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time
from tests.unit.relay.targets import batch, row

from halfmq.client.async_client import AsyncClient
from halfmq.errors import ConnectError
from halfmq.model import properties
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.publisher import Published
from halfmq.sql import Outbox
from halfmq.wire.remoting.codes import HMQ_STORY, RequestCode
from halfmq.wire.remoting.header import Request, encode_response

SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
COMMIT, ROLLBACK = 8, 12


def lose(broker: ScriptedBroker, code: int, *, arrives: bool) -> None:
    """No answer to these requests; ``arrives``: the broker has executed them."""

    def behaviour(peer: Peer, request: Request[Any]) -> None:
        if arrives:
            broker.usual(peer, request)

    broker.on[code] = behaviour


FAILURES: dict[str, Callable[[ScriptedBroker], None]] = {
    "prepare does not arrive": lambda broker: lose(broker, SEND, arrives=False),
    "answer to prepare is lost": lambda broker: lose(broker, SEND, arrives=True),
    "commit does not arrive": lambda broker: lose(broker, END, arrives=False),
    "answer to commit is lost": lambda broker: lose(broker, END, arrives=True),
    "the broker is killed": lambda broker: broker.stop(),
}


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def publisher(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> HalfmqPublisher:
    network = broker.network()
    monkeypatch.setattr("halfmq.relay.halfmq.AsyncClient", lambda _, **options: client_of(network, **options))
    return HalfmqPublisher(URL, group="relay")


@in_virtual_time
@pytest.mark.parametrize("failure", FAILURES)
async def test_nothing_is_confirmed_before_the_broker_has_confirmed_the_commit(
    broker: ScriptedBroker, publisher: HalfmqPublisher, failure: str
) -> None:
    await publisher.open()
    FAILURES[failure](broker)
    result = await publisher.publish(batch([row("t", b"1", "k"), row("t", b"2", "k")]))
    await publisher.close()
    assert (result.confirmed, result.refused, result.one_by_one) == (frozenset(), {}, False)
    assert result.unavailable


@in_virtual_time
async def test_whether_a_batch_is_published_is_unknown_while_the_broker_does_not_answer(
    broker: ScriptedBroker, publisher: HalfmqPublisher
) -> None:
    await publisher.open()
    lose(broker, SEND, arrives=True)
    with pytest.raises(ConnectError):
        await publisher.recover(batch([row("t")]))
    await publisher.close()


@in_virtual_time
@pytest.mark.parametrize("standing", [COMMIT, ROLLBACK])
async def test_the_verdict_that_another_relay_has_reached_stands(
    broker: ScriptedBroker, publisher: HalfmqPublisher, standing: int
) -> None:
    def settled(_: Peer, request: Request[Any]) -> bytes:
        name = {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK"}[standing]
        return encode_response(request, 604, "settled", {"HMQ_VERDICT": name})

    broker.on[SEND] = settled
    rows = [row("t"), row("t")]
    result = await publisher.publish(batch(rows))
    await publisher.close()
    assert result.confirmed == ({one.seq for one in rows} if standing == COMMIT else frozenset())
    assert bool(result.unavailable) == (standing == ROLLBACK)


@in_virtual_time
async def test_a_batch_with_a_refused_message_is_to_be_published_one_by_one(
    broker: ScriptedBroker, publisher: HalfmqPublisher
) -> None:
    broker.on[SEND] = lambda _, request: encode_response(request, 13, "illegal")
    # It is asked what it has of the batch, besides this message.
    broker.on[HMQ_STORY] = lambda _, request: encode_response(request, 0, ext={"state": "UNKNOWN"})
    rows = [row("t"), row("t")]
    together, alone = await publisher.publish(batch(rows)), await publisher.publish(batch(rows[:1]))
    await publisher.close()
    assert together == Published(frozenset(), one_by_one=True)
    assert (alone.confirmed, alone.refused.keys()) == (frozenset(), {rows[0].seq})


@in_virtual_time
async def test_a_message_has_the_id_of_its_row_at_every_attempt(
    broker: ScriptedBroker, publisher: HalfmqPublisher
) -> None:
    one = row("t", b"1", "k")
    for _ in range(2):
        assert (await publisher.publish(batch([one]))).confirmed == {one.seq}
    await publisher.close()
    ids = [properties.to_dict(request.ext.properties)["UNIQ_KEY"] for request in broker.requests(SEND)]
    assert ids == [one.message_id] * 2


@in_virtual_time
async def test_with_telemetry_a_batch_is_a_span_and_its_messages_are_counted(
    broker: ScriptedBroker, publisher: HalfmqPublisher
) -> None:
    recorded = Recorded()
    outbox, client = Outbox(MetaData()), AsyncClient(URL, group="shop", telemetry=recorded.telemetry)
    of_client = outbox.bind_relay(client, create_engine("sqlite://"))._publisher
    assert isinstance(of_client, HalfmqPublisher)
    assert (await of_client.publish(batch([row("t", b"1"), row("t", b"2")]))).confirmed
    await of_client.close()
    assert (await publisher.publish(batch([row("t", b"3")]))).confirmed, "without"
    await publisher.close()
    assert [span.name for span in recorded.spans] == ["send t", "commit t"]
    (sent,) = recorded.points("messaging.client.sent.messages")
    assert sent.value == 2
