"""Numbers of the protocol, as every client has them."""

import re
from pathlib import Path

import halfmq.broker
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode, ResponseCode


def test_request_codes_are_rocketmqs() -> None:
    expected = {
        "SEND_MESSAGE": 10, "PULL_MESSAGE": 11, "QUERY_CONSUMER_OFFSET": 14, "UPDATE_CONSUMER_OFFSET": 15, "HEART_BEAT": 34,
        "UNREGISTER_CLIENT": 35, "CONSUMER_SEND_MSG_BACK": 36, "END_TRANSACTION": 37, "SEND_MESSAGE_V2": 310,
        "SEND_BATCH_MESSAGE": 320,
    }  # fmt: skip
    assert {name: RequestCode[name].value for name in expected} == expected


def test_commands_of_halfmq_are_numbered_in_order_without_gaps() -> None:
    own = [(name, number) for name, number in vars(codes).items() if name.startswith("HMQ_")]
    assert [number for _, number in own] == list(range(29_001, 29_001 + len(own))), own
    assert len(own) >= 10
    assert own[-1][1] < 1 << 15, "the code of a binary header is a short"


def test_every_command_of_halfmq_has_its_number_only_in_the_table() -> None:
    wire = Path(codes.__file__).parent
    others = [path for path in wire.glob("*.py") if path.name != "codes.py"]
    assert len(others) > 10
    defined = [path.name for path in others if re.search(r"^HMQ_\w+\s*[:=]", path.read_text(), re.MULTILINE)]
    assert defined == [], "move the number to codes.py"


def test_the_broker_never_answers_stored_but() -> None:
    """On 10, 11 and 12 stock producers roll a half back without asking the listener, though it is stored."""
    names = {ResponseCode(number).name for number in (10, 11, 12)}
    broker = Path(halfmq.broker.__file__).parent
    sources = list(broker.rglob("*.py"))
    assert len(sources) > 50
    for source in sources:
        assert not {name for name in names if name in source.read_text()}, source.name
