"""The names of an undecided half, with its body and without."""

import pytest
from tests.support import log_records as make
from tests.support.half_batches import HOST
from tests.support.log_records import message_record_size

from halfmq.model import properties as props
from halfmq.model.records import HalfBatch
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.store.half_names import HalfNames, half_names, without_body
from halfmq.store.record_codec import ENCODE_BY_TYPE, decode_records

V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"
BODY = b"secret" * 50


def half(topic: str = "orders", host: bytes = HOST, **pairs: str) -> tuple[StoredMessage, bytes]:
    pairs = {"PGROUP": "P", "UNIQ_KEY": "u" * 32, "TRAN_MSG": "true", **pairs}
    properties = props.encode(pairs)
    flag = 0x10 if len(host) > 8 else 0
    message = StoredMessage(topic, 0, 7, 0, flag, 1, host, 2, HOST, 0, 0, BODY, body_crc_of(BODY), properties)
    size = message_record_size(topic, len(BODY), len(properties), len(host))
    record = make.half_record(0, size, 1, message, 7, "P", pairs.get("HMQ_TX_ID", "u" * 32), 0, 1)
    return message, b"".join(ENCODE_BY_TYPE[type(record)](record, lambda _: (b"", b"", b"")))


RECORDS = {
    "half": (half()[1], HalfNames("P", "u" * 32, 1)),
    "chosen id": (half(HMQ_TX_ID="mine")[1], HalfNames("P", "mine", 1)),
    "IPv6": (half(host=V6)[1], HalfNames("P", "u" * 32, 1)),
    "long topic": (half("t" * 200)[1], HalfNames("P", "u" * 32, 1)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_names_of_a_half_are_the_same_without_its_body(name: str) -> None:
    record, wanted = RECORDS[name]
    assert half_names(record) == wanted
    short = without_body(memoryview(record))
    assert b"secret" not in short
    assert len(short) == len(record) - len(BODY) == int.from_bytes(short[4:8], "big")
    assert half_names(memoryview(short)) == wanted
    (read,) = decode_records(short, 0, len(short), 0)
    assert (read.group, read.tx_id, read.body) == (*wanted[:2], b"")  # type: ignore[union-attr]


def test_a_copied_half_and_half_batches() -> None:
    message, _ = half(HMQ_TX_ID="mine")
    pieces = encode(message, 0)
    batch = make.half_batch()(64)
    assert isinstance(batch, HalfBatch)
    for record, copy, wanted in (
        (make.copied_half(64, sum(map(len, pieces)))(0), pieces, HalfNames("P", "mine", 1)),
        (batch, pieces, HalfNames(make.GROUP, "q1:7:r1", 3)),
        (make.copied_half_batch(64, batch)(0), (b"", batch.payload, b""), HalfNames(make.GROUP, "q1:7:r1", 3)),
    ):
        found = ENCODE_BY_TYPE[type(record)](record, lambda _, copy=copy: copy)  # type: ignore[misc]
        data = found if isinstance(found, bytes) else b"".join(found)
        assert half_names(data) == wanted
        short = without_body(memoryview(data))
        assert len(data) - len(short) == (len(BODY) if copy is pieces and record is not batch else len(batch.payload))
        assert int.from_bytes(short[4:8], "big") == len(short)
        assert half_names(short) == wanted


def test_a_record_whose_body_ends_beyond_it_is_refused() -> None:
    record = bytearray(half()[1])
    record[16 + 84 : 16 + 88] = (10_000).to_bytes(4, "big")
    with pytest.raises(ValueError, match="a body of 10000 bytes"):
        without_body(memoryview(record))
