"""``Sent``: what became visible since a moment, without waiting."""

import re

import pytest

from halfmq import Client, ConnectError
from halfmq.testing import Broker

pytestmark = pytest.mark.slow


@pytest.fixture
def client(broker: Broker) -> object:
    broker.clear()
    with Client(broker.url, group="g") as client:
        yield client


def test_what_was_sent_is_there_as_messages(broker: Broker, client: Client) -> None:
    client.send("t", "before")
    sent = broker.sent()
    assert sent("t") == []
    client.send("t", {"id": 7}, key="k", tag="web", properties={"colour": "red"})
    with client.begin() as tx:
        tx.send("t", "in a transaction")
        tx.send("u", b"bytes")
        assert len(sent("t")) == 1, "the transaction is open"
    one, other = sent("t")
    assert (one.json(), one.keys, one.tag, one.properties["colour"]) == ({"id": 7}, ("k",), "web", "red")
    assert (other.text(), other.transaction_id) == ("in a transaction", tx.id)
    assert [message.body for message in sent("t", tag="web")] == [b'{"id":7}']
    assert sent("no-such-topic") == []
    assert sent.counts() == {"t": 2, "u": 1}


def test_more_than_one_answer_holds_is_read_whole(broker: Broker, client: Client) -> None:
    sent = broker.sent()
    client.send_many("many", [str(number) for number in range(150)])
    client.send("many", bytes(100_000))
    found = sent("many")
    assert sorted(message.body for message in found if len(message.body) < 9) == sorted(
        b"%d" % one for one in range(150)
    )
    assert len(found) == 151
    assert sent("many") != []


def test_nothing_says_what_was_sent_or_is_on_its_way(broker: Broker, client: Client) -> None:
    client.send("t", "before")
    client.send("t", "before", delay=1_000)
    sent = broker.sent()
    sent.nothing()
    with client.begin() as tx:
        tx.send("t", "x")
        tx.rollback()
    sent.nothing()
    with client.begin() as tx:
        tx.send("t", "x")
        tx.prepare()
        with pytest.raises(AssertionError, match=rf"transaction {tx.id} of group g, which is undecided"):
            sent.nothing()
    with pytest.raises(AssertionError, match="something was sent:\n  1 in topic t: b'x'"):
        sent.nothing()
    later = broker.sent()
    client.send("u", "y", delay=60)
    # The one from before is due, and hides no other.
    broker.advance(1_000)
    client.send("u", "y", delay=60)
    client.send("v", "y", delay=50_000)
    client.send("v", "y", delay=40_000)
    with pytest.raises(AssertionError) as error:
        later.nothing()
    shown = re.sub(r"(\d+)(\.\d+)? s\b", lambda found: f"{round(float(found[0][:-2]), -1):g} s", str(error.value))
    assert "  1 in topic u: b'y'\n" in shown
    assert shown.endswith("  1 delayed in topic u, the first in 60 s\n  2 delayed in topic v, the first in 40000 s")


def test_a_topic_that_was_made_again_begins_anew(broker: Broker, client: Client) -> None:
    for _ in range(3):
        client.send("t", "old")
    sent = broker.sent()
    broker.clear()
    client.send("t", "new")
    assert [message.text() for message in sent("t")] == ["new"]
    assert sent.counts() == {"t": 1}


def test_a_broker_that_was_stopped_does_not_answer() -> None:
    with Broker() as broker:
        sent = broker.sent()
        broker.stop()
        with pytest.raises(ConnectError, match="was it stopped"):
            sent("t")
