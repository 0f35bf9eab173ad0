"""Numbers of the protocol, as every client has them."""

from pathlib import Path

import halfmq.broker
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import ResponseCode


def test_commands_of_halfmq_are_numbered_in_order_without_gaps() -> None:
    own = [(name, number) for name, number in vars(codes).items() if name.startswith("HMQ_")]
    numbers = [number for _, number in own]
    assert numbers == list(range(29_001, 29_001 + len(own))), own
    assert len(own) >= 10
    assert own[-1][1] < 1 << 15, "the code of a binary header is a short"


def test_the_broker_never_answers_stored_but() -> None:
    """On 10, 11 and 12 stock producers roll a half back without asking the listener, though it is stored."""
    names = {ResponseCode(number).name for number in (10, 11, 12)}
    broker = Path(halfmq.broker.__file__).parent
    sources = list(broker.rglob("*.py"))
    assert len(sources) > 50
    for source in sources:
        assert not {name for name in names if name in source.read_text()}, source.name
