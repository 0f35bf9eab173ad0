"""Stored messages to a record batch."""

import zlib
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from halfmq.model import properties as props
from halfmq.model.stored_message import SYS_COMPRESSED, StoredMessage, body_crc_of, encode
from halfmq.spark.options import COLUMNS
from halfmq.spark.rows import stored_rows
from halfmq.spark.rows.stored_rows import (
    StoredRows,
    record_batch,
    record_batches,
    split_compressed,
)

V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
V6 = bytes(15) + b"\x01\x00\x00\x2a\x9f"


def message(
    body: bytes,
    pairs: dict[str, str],
    *,
    topic: str = "orders",
    born: bytes = V4,
    stored: bytes = V4,
    sys_flag: int = 0,
) -> bytes:
    made = StoredMessage(
        topic, 3, 7, 0, sys_flag, 1, born, 2, stored, 0, 0, body, body_crc_of(body), props.encode(pairs)
    )
    return b"".join(encode(made, 0))


def rows(messages: list[bytes], transactional: list[bool] | None = None) -> StoredRows:
    sizes = np.array([len(one) for one in messages], np.int64)
    count = len(messages)
    return StoredRows(
        buffer=pa.py_buffer(b"gap" + b"".join(messages)),
        starts=3 + np.cumsum(sizes) - sizes,
        sizes=sizes,
        queue_offsets=np.arange(40, 40 + count, dtype=np.int64),
        store_times_ms=np.full(count, 1_700_000_000_123, np.int64),
        transactional=np.array(transactional or [False] * count, bool),
        topic="orders",
        broker="",
        queue=3,
    )


def nothing_bad(offset: int, why: str) -> None:
    raise AssertionError((offset, why))


def test_headers_are_the_properties_of_the_user() -> None:
    """Not those of the protocol and of brokers; names of request-reply may be the user's."""
    of_brokers = {"DLQ_ORIGIN_TOPIC": "t", "DLQ_ORIGIN_MESSAGE_ID": "m", "CHECK_IMMUNITY_TIME_IN_SECONDS": "6"}
    of_protocol = {"TAGS": "web", "UNIQ_KEY": "U1", "HMQ_TX_ID": "T", "__transactionId__": "T", "TRAN_MSG": "true"}
    users = {"colour": "red", "CORRELATION_ID": "c"}
    (row, other) = record_batch(
        rows([message(b"b", {**of_brokers, **users, **of_protocol}), message(b"b", of_protocol)]),
        ("headers",),
        nothing_bad,
    ).to_pylist()
    assert row["headers"] == [{"key": "colour", "value": b"red"}, {"key": "CORRELATION_ID", "value": b"c"}]
    assert other["headers"] is None


def test_every_column_of_a_message() -> None:
    pairs = {"TAGS": "web", "KEYS": "k1 k2", "UNIQ_KEY": "U1", "colour": "red"}
    (row,) = record_batch(rows([message(b"body", pairs)]), COLUMNS, nothing_bad).to_pylist()
    assert row == {
        "key": b"k1",
        "value": b"body",
        "topic": "orders",
        "queue": 3,
        "offset": 40,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "tag": "web",
        "keys": "k1 k2",
        "message_id": "U1",
        "transaction_id": None,
        "properties": list(pairs.items()),
        "headers": [{"key": "colour", "value": b"red"}],
        "broker": None,
    }


@pytest.mark.parametrize(("born", "stored"), [(V4, V4), (V6, V4), (V4, V6), (V6, V6)])
@pytest.mark.parametrize("topic", ["t", "t" * 127, "%RETRY%" + "g" * 140])
def test_addresses_and_long_topic_names_move_the_body(born: bytes, stored: bytes, topic: str) -> None:
    plain = message(b"first", {"KEYS": "a"})
    moved = message(b"the second body, a longer one", {"KEYS": "b"}, topic=topic, born=born, stored=stored)
    batch = record_batch(rows([plain, moved, plain]), ("value", "keys"), nothing_bad)
    assert batch.column("value").to_pylist() == [b"first", b"the second body, a longer one", b"first"]
    assert batch.column("keys").to_pylist() == ["a", "b", "a"]


def test_a_transaction_id_is_the_common_one_or_that_of_a_single_half() -> None:
    several = message(b"", {"UNIQ_KEY": "U1", "HMQ_TX_ID": "T1"})
    single = message(b"", {"UNIQ_KEY": "U2", "TRAN_MSG": "true"})
    of_query = message(b"", {"UNIQ_KEY": "U4"})
    plain = message(b"", {"UNIQ_KEY": "U3"})
    batch = record_batch(
        rows([several, single, plain, of_query], [True, True, False, True]), ("transaction_id",), nothing_bad
    )
    assert batch.column(0).to_pylist() == ["T1", "U2", None, None]
    batch = record_batch(rows([several, several], [True, True]), ("transaction_id",), nothing_bad)
    assert batch.column(0).to_pylist() == ["T1", "T1"]


def test_only_what_is_asked_for_is_built() -> None:
    batch = record_batch(rows([message(b"x", {})]), ("offset", "value"), nothing_bad)
    assert batch.schema.names == ["offset", "value"]


def test_a_bad_body_is_named_by_its_queue_offset() -> None:
    said: list[int] = []
    bad = message(b"nonsense", {}, sys_flag=SYS_COMPRESSED)
    batch = record_batch(rows([message(b"a", {}), bad]), ("value",), lambda offset, why: said.append(offset))
    assert said == [41]
    assert batch.column(0).to_pylist() == [b"a", None]


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_without_its_crc_is_named_and_null_and_the_others_stay(packed: bool) -> None:
    """Also where nobody asks for the value but reads what lies behind the body, and beside packed ones."""
    said: list[tuple[int, str]] = []
    damaged = bytearray(message(b"0123456789" * 10, {"KEYS": "k"}))
    damaged[88 + 50] ^= 1
    whole = message(zlib.compress(b"whole"), {}, sys_flag=SYS_COMPRESSED) if packed else message(b"whole", {})
    found = rows([whole, bytes(damaged), whole])
    batch = record_batch(found, ("value", "keys"), lambda offset, why: said.append((offset, why)))
    assert [offset for offset, _ in said] == [41]
    assert "CRC" in said[0][1]
    assert "store verify" in said[0][1]
    assert batch.column(0).to_pylist() == [b"whole", None, b"whole"]
    assert record_batch(found, ("value",), nothing_bad, verify=False).column(0).to_pylist()[1] is not None
    assert record_batch(found, ("keys",), nothing_bad).column(0).to_pylist() == [None, "k", None]


@pytest.mark.parametrize("length", [-5, 1 << 20, (1 << 31) - 1])
def test_a_length_that_leads_out_of_the_message_is_never_followed(length: int) -> None:
    said: list[int] = []
    damaged = bytearray(message(b"0123456789", {}))
    damaged[84:88] = length.to_bytes(4, "big", signed=True)
    found = rows([message(b"a", {}), bytes(damaged)])
    for verify in (True, False):
        batch = record_batch(found, ("value",), lambda offset, why: said.append(offset), verify=verify)
        assert batch.column(0).to_pylist() == [b"a", None]
    assert set(said) == {41}


#: Of ``message(b"0123456789", {"KEYS": "k"})``: length of the topic, and both bytes of that of the properties.
@pytest.mark.parametrize(("at", "value"), [(98, 255), (98, 0), (98, 5), (105, 255), (106, 0), (106, 200)])
@pytest.mark.parametrize("columns", [("keys", "value"), ("properties",), ("key", "transaction_id")])
def test_a_damaged_length_of_topic_or_properties_is_named_with_its_file_and_byte(
    at: int, value: int, columns: tuple[str, ...]
) -> None:
    said: list[tuple[int, str]] = []
    whole = message(b"0123456789", {"KEYS": "k"})
    assert whole[98:105] == b"\x06orders"
    assert whole[105:107] == len(props.encode({"KEYS": "k"})).to_bytes(2, "big")
    damaged = bytearray(whole)
    damaged[at] = value
    found = rows([whole, bytes(damaged)] if at == 98 else [bytes(damaged), whole])._replace(file="/data/0.seg")
    bad = 1 if at == 98 else 0
    batch = record_batch(found, columns, lambda offset, why: said.append((offset, why)))
    start = int(found.starts[bad])
    assert [offset for offset, _ in said] == [40 + bad]
    assert said[0][1].endswith(f"its properties are damaged, in /data/0.seg at byte {start}")
    for name in set(columns) - {"value", "transaction_id"}:
        kept, lost = batch.column(name).to_pylist()[1 - bad], batch.column(name).to_pylist()[bad]
        assert kept in ("k", b"k", [("KEYS", "k")])
        assert not lost


def test_a_damaged_length_of_a_body_is_named_with_its_file_and_byte() -> None:
    said: list[str] = []
    damaged = bytearray(message(b"0123456789", {"KEYS": "k"}))
    damaged[84] = 1
    found = rows([bytes(damaged)])._replace(file="/data/0.seg")
    assert record_batch(found, ("value", "keys"), lambda _, why: said.append(why)).num_rows == 1
    assert len(said) == 1
    assert said[0].endswith(", in /data/0.seg at byte 3")


def test_unpacked_bodies_of_a_batch_are_bounded_however_small_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "UNPACKED_BATCH_BYTES", 25_000)
    bodies = [b"%d" % number * 10_000 for number in range(7)]
    bodies[5] = b"5" * 60_000  # larger than a batch: alone
    messages = [message(zlib.compress(body), {"KEYS": body[:1].decode()}, sys_flag=SYS_COMPRESSED) for body in bodies]
    messages.insert(3, message(b"plain", {"KEYS": "p"}))
    bodies.insert(3, b"plain")
    found = list(record_batches(rows(messages), ("offset", "value", "keys", "properties"), nothing_bad))
    values = [batch.column("value").to_pylist() for batch in found]
    assert max(sum(map(len, part)) for part in values if len(part) > 1) <= 25_005
    assert len(found) >= 4
    assert [value for part in values for value in part] == bodies
    keys = [key for batch in found for key in batch.column("keys").to_pylist()]
    assert keys == ["0", "1", "2", "p", "3", "4", "5", "6"]
    assert [dict(one)["KEYS"] for batch in found for one in batch.column("properties").to_pylist()] == keys
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(40, 48))
    assert len(list(record_batches(rows(messages), ("offset",), nothing_bad))) == 1


def test_packed_bodies_come_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "PACKED_BATCH_BYTES", 300)
    packed = message(zlib.compress(b"z" * 10_000), {}, sys_flag=SYS_COMPRESSED)
    parts = list(split_compressed(rows([packed] * 7)))
    assert len(parts) > 2
    assert np.concatenate([part.queue_offsets for part in parts]).tolist() == list(range(40, 47))
    assert record_batch(parts[0], ("value",), nothing_bad).column(0).to_pylist()[0] == b"z" * 10_000
    plain = rows([message(b"z" * 400, {})] * 7)
    assert list(split_compressed(plain)) == [plain]
