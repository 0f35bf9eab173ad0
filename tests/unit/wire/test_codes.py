"""Numbers of the protocol, as every client has them."""

from pathlib import Path

import halfmq.broker
from halfmq.wire.remoting.codes import RequestCode, ResponseCode


def test_request_codes_are_rocketmqs() -> None:
    expected = {
        "SEND_MESSAGE": 10, "PULL_MESSAGE": 11, "QUERY_CONSUMER_OFFSET": 14, "UPDATE_CONSUMER_OFFSET": 15, "HEART_BEAT": 34,
        "UNREGISTER_CLIENT": 35, "CONSUMER_SEND_MSG_BACK": 36, "END_TRANSACTION": 37, "SEND_MESSAGE_V2": 310,
        "SEND_BATCH_MESSAGE": 320,
    }  # fmt: skip
    assert {name: RequestCode[name].value for name in expected} == expected


def test_the_broker_never_answers_stored_but() -> None:
    """On 10, 11 and 12 stock producers roll a half back without asking the listener, though it is stored."""
    names = {ResponseCode(number).name for number in (10, 11, 12)}
    broker = Path(halfmq.broker.__file__).parent
    sources = list(broker.glob("*.py"))
    assert len(sources) > 10
    for source in sources:
        assert not {name for name in names if name in source.read_text()}, source.name
