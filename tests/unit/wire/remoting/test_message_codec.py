"""Batches, patches, checks and what a client sends and pulls, against bytes of real brokers."""

import json
import struct
import zlib

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.model import properties, stored_message
from halfmq.model.stored_message import StoredMessage, body_crc_of, patch_committed, patch_released
from halfmq.wire.remoting.compression import ZLIB
from halfmq.wire.remoting.header import decode
from halfmq.wire.remoting.message_codec import (
    BatchEntry,
    decode_pulled,
    encode_check,
    encode_end,
    encode_send,
    join_batch,
    split_batch,
    with_properties,
)

GOLDEN = vectors("remoting")
PLAIN = GOLDEN["stored_plain"]
COMMITTED = GOLDEN["stored_committed"]
V4 = b"\x7f\0\0\1\0\0\x2a\x9f"
V6 = bytes(15) + b"\1\0\0\x2a\x9f"


def message(**changed) -> StoredMessage:
    body = changed.pop("body", b"order 17")
    plain = StoredMessage(
        topic="orders", queue_id=3, queue_offset=9, flag=5, sys_flag=0, born_time_ms=1_000, born_host=V4, store_time_ms=2_000,
        store_host=V4, reconsume_times=0, prepared_offset=0, body=body, body_crc=body_crc_of(body),
        properties=properties.encode({"UNIQ_KEY": "U1", "PGROUP": "G"}),
    )  # fmt: skip
    return plain._replace(**changed)


def stored(physical_offset: int = 64, **changed) -> bytes:
    return b"".join(stored_message.encode(message(**changed), physical_offset))


# --- batches -----------------------------------------------------------------------------------------------------

ENTRIES = (
    BatchEntry(0, b"batch0", b"KEYS\x01k0\x02"),
    BatchEntry(7, b"", b""),
    BatchEntry(-1, b"\0" * 300, b"a\x01b\x02"),
)


def test_a_batch_entry_has_the_layout_of_message_decoder():
    assert (
        join_batch(ENTRIES[:1])
        == struct.pack(">iiiii", 36, 0, 0, 0, 6) + b"batch0" + struct.pack(">h", 8) + b"KEYS\x01k0\x02"
    )


def test_a_batch_is_split_into_what_was_joined():
    assert split_batch(join_batch(ENTRIES)) == ENTRIES


def test_a_batch_cut_at_any_byte_is_a_protocol_error_except_between_entries():
    whole = join_batch(ENTRIES)
    ends = {len(join_batch(ENTRIES[:count])) for count in (1, 2)}
    for cut in range(len(whole)):
        if cut in ends:
            assert len(split_batch(whole[:cut])) == sorted(ends).index(cut) + 1
        else:
            with pytest.raises(ProtocolError):
                split_batch(whole[:cut])


def test_a_batch_with_something_behind_it_or_nothing_in_it_is_a_protocol_error():
    for body in (b"", join_batch(ENTRIES) + b"x", join_batch(ENTRIES) + bytes(22)):
        with pytest.raises(ProtocolError):
            split_batch(body)


@pytest.mark.parametrize("more", [-1, 1])
def test_properties_that_do_not_fill_their_entry_of_a_batch_are_refused(more):
    whole = bytearray(join_batch(ENTRIES[:1]))
    at = len(whole) - len(ENTRIES[0].properties) - 2
    whole[at : at + 2] = (len(ENTRIES[0].properties) + more).to_bytes(2, "big")
    with pytest.raises(ProtocolError, match="do not match"):
        split_batch(bytes(whole))


# --- patches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store_host", [V4, V6])
@pytest.mark.parametrize("born_host", [V4, V6])
@pytest.mark.parametrize("topic", ["orders", "%RETRY%" + "g" * 200])
def test_a_half_leaves_as_the_committed_message(born_host, store_host, topic):
    half = message(born_host=born_host, store_host=store_host, topic=topic, queue_offset=5, sys_flag=1)
    buffer = bytearray(b"before" + b"".join(stored_message.encode(half, 4096)) + b"behind")
    original = bytes(buffer)
    patch_committed(buffer, 6, 77, 3_000, 4096)
    seen, physical_offset, _ = stored_message.decode(buffer, 6)
    v6_bits = (0x10 if len(born_host) == 20 else 0) | (0x20 if len(store_host) == 20 else 0)
    assert seen == half._replace(queue_offset=77, sys_flag=1 | 8 | v6_bits, store_time_ms=3_000, prepared_offset=4096)
    assert physical_offset == 4096
    assert buffer[:6] + buffer[-6:] == original[:6] + original[-6:]


def test_patching_the_half_of_a_real_committed_message_gives_its_bytes():
    buffer = bytearray(COMMITTED)
    for at, size in ((20, 8), (36, 4), (56, 8), (76, 8)):
        buffer[at : at + size] = bytes(size)
    patch_committed(buffer, 0, 0, int.from_bytes(COMMITTED[56:64], "big"), 0)
    assert buffer == COMMITTED


@pytest.mark.parametrize("born_host", [V4, V6])
def test_a_delayed_message_leaves_with_its_place_and_time(born_host):
    buffer = bytearray(stored(born_host=born_host, queue_offset=-1))
    patch_released(buffer, 0, 12, 9_000)
    seen, _, _ = stored_message.decode(buffer)
    assert (seen.queue_offset, seen.store_time_ms, seen.prepared_offset) == (12, 9_000, 0)
    assert seen.sys_flag & 0xC == 0


# --- checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record", [PLAIN, COMMITTED, stored(), stored(topic="%RETRY%" + "g" * 200, born_host=V6), stored(properties=b"")]
)
def test_properties_are_appended_and_everything_else_stays(record):
    before, physical_offset, _ = stored_message.decode(record)
    after, after_offset, size = stored_message.decode(with_properties(record, b"TRANSACTION_CHECK_TIMES\x011\x02"))
    pairs = properties.to_dict(after.properties)
    assert pairs == properties.to_dict(before.properties) | {"TRANSACTION_CHECK_TIMES": "1"}
    assert after._replace(properties=b"") == before._replace(properties=b"")
    assert (after_offset, size) == (physical_offset, len(with_properties(record, b"TRANSACTION_CHECK_TIMES\x011\x02")))


def test_properties_that_would_leave_their_length_field_are_not_appended():
    full = stored(properties=properties.encode({"k": "v" * 32_760}))
    assert with_properties(full, b"TRANSACTION_CHECK_TIMES\x011\x02") == full


def test_what_is_no_message_gets_no_properties():
    with pytest.raises(ProtocolError):
        with_properties(PLAIN[:-1], b"a\x01b\x02")


def test_a_check_carries_the_message_and_its_count():
    frame = encode_check(
        5,
        stored(),
        half_index=17,
        first_offset=64,
        message_id="U1",
        offset_id="AB",
        checks=3,
        broker_name="b",
        tx_id="tx",
    )
    check = decode(frame[4:])
    assert (check.code, check.opaque, check.flag, check.binary) == (39, 5, 2, False)
    fields = check.ext
    assert (fields.tran_state_table_offset, fields.commit_log_offset, fields.tx_id) == (17, 64, "tx")
    assert (fields.msg_id, fields.transaction_id) == ("U1", "tx")
    asked, _, size = stored_message.decode(check.body)
    assert size == len(check.body)
    assert properties.find(asked.properties, "TRANSACTION_CHECK_TIMES") == b"3"
    assert properties.find(asked.properties, "PGROUP") == b"G"


# --- the client's side -------------------------------------------------------------------------------------------


def test_a_pull_body_of_a_real_broker_is_read():
    plain, committed = decode_pulled(PLAIN + COMMITTED)
    assert (plain.message.topic, plain.message.body, plain.log_offset) == ("TopicTx", b"normal", 0x5ED)
    assert plain.offset_id == "7F000001000051AF00000000000005ED"
    assert properties.find(plain.message.properties, "TAGS") == b"TagB"
    assert body_crc_of(plain.message.body) == plain.message.body_crc
    assert (committed.message.body, committed.message.sys_flag, committed.message.queue_id) == (
        b"hello commit retry",
        8,
        2,
    )
    assert decode_pulled(b"") == []


def test_an_offset_id_of_an_ipv6_broker_has_56_characters():
    (pulled,) = decode_pulled(stored(physical_offset=1, store_host=V6))
    assert pulled.offset_id == V6.hex().upper() + "0000000000000001"


def test_packed_bodies_are_unpacked_and_no_longer_said_to_be_packed():
    body = b"a long body " * 1_000
    (pulled,) = decode_pulled(stored(body=zlib.compress(body), sys_flag=1 | ZLIB | 8))
    assert pulled.message.body == body
    assert pulled.message.sys_flag == ZLIB | 8


def test_a_body_that_is_not_the_stored_one_is_told_and_is_not_unpacked():
    packed = zlib.compress(b"a long body " * 1_000)
    for at in range(0, len(packed), 7):
        damaged = packed[:at] + bytes((packed[at] ^ 1,)) + packed[at + 1 :]
        (pulled,) = decode_pulled(stored(body=damaged, body_crc=body_crc_of(packed), sys_flag=1))
        assert (pulled.whole, pulled.message.body, pulled.message.sys_flag) == (False, damaged, 1)
    first, second = decode_pulled(stored(body=b"x", body_crc=7) + stored(body=b"x"))
    assert (first.whole, second.whole) == (False, True)
    assert decode_pulled(stored(body=b"x", body_crc=0))[0].whole, "a broker that keeps no CRC"


@pytest.mark.parametrize("cut", range(1, len(PLAIN)))
def test_a_pull_body_cut_at_any_byte_is_a_protocol_error(cut):
    with pytest.raises(ProtocolError):
        decode_pulled(COMMITTED + PLAIN[:cut])


def test_a_send_of_ours_is_what_java_sends():
    golden = json.loads(GOLDEN["json.half_send_ext"])
    frame = encode_send(
        7, group="TXG", topic="TopicTx", queue_id=1, sys_flag=4, born_time_ms=1795246382304,
        property_string=golden["i"].encode(), body=b"order",
    )  # fmt: skip
    header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    assert header["extFields"] == {name: value for name, value in golden.items() if name != "n"}
    request = decode(frame[4:])
    assert (request.code, request.body, request.ext.properties) == (310, b"order", golden["i"])


def test_a_batch_and_a_retry_of_ours_say_so():
    common = {
        "group": "G",
        "topic": "T",
        "queue_id": 0,
        "sys_flag": 0,
        "born_time_ms": 1,
        "body": b"",
        "property_string": b'q"\\',
    }
    batch = decode(encode_send(1, **common, batch=True)[4:])
    assert (batch.code, batch.ext.properties) == (320, 'q"\\')
    retry = decode(encode_send(1, **common, reconsume_times=2, max_reconsume_times=16)[4:])
    assert (retry.ext.reconsume_times, retry.ext.max_reconsume_times) == (2, 16)
    again = decode(encode_send(1, **common, sent_again=True)[4:])
    assert (again.ext.sent_again, batch.ext.sent_again, retry.ext.sent_again) == (True, False, False)


def test_an_end_of_ours_is_what_java_sends():
    golden = json.loads(GOLDEN["json.end_ext"])
    common = {"group": "TXG", "topic": "TopicTx", "half_index": 4, "log_offset": 3996, "message_id": golden["msgId"]}
    frame = encode_end(7, **common, commit_or_rollback=8)
    ext = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])["extFields"]
    assert {name: ext.get(name) for name in golden} | {"bname": "broker-a"} == golden
    assert decode(frame[4:]).is_oneway
    two_way = decode(encode_end(7, **common, commit_or_rollback=12, tx_id="tx", oneway=False, from_check=True)[4:])
    assert (two_way.flag, two_way.ext.tx_id, two_way.ext.from_transaction_check) == (0, "tx", True)
