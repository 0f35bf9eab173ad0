"""The payload of a half batch: what a sender builds is accepted, and whatever is wrong in it is named before it is stored."""

import struct
from zlib import crc32

import pytest
from tests.support.payloads import verify_payload

from halfmq.model.half_batch import (
    DELAY_BYTES,
    ENTRY_BYTES,
    ITEM_HEAD_BYTES,
    DelayedItem,
    HalfMessage,
    Verified,
    build_payload,
    delayed_entries_of,
    delayed_items,
    delays_in,
    item_places,
)
from halfmq.model.ids import hash64
from halfmq.model.layout import PAYLOAD_ENTRY
from halfmq.model.message_facts import tag_hash_of
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import decode

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
MESSAGES = [
    HalfMessage(5, 0, b"one", b"UNIQ_KEY\x01ID1\x02TAGS\x01red\x02"),
    HalfMessage(0, 1, b"", b""),
    HalfMessage(0, 0, b"x" * 300, b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ID3\x02"),
]
#: Each kind of delay; the last one is already past.
DELAYED = [
    HalfMessage(5, 0, b"one", b"UNIQ_KEY\x01ID1\x02TAGS\x01red\x02DELAY\x012\x02"),
    HalfMessage(0, 1, b"", b"TIMER_DELAY_MS\x01700\x02"),
    HalfMessage(0, 0, b"x" * 300, b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ID3\x02TIMER_DELIVER_MS\x015\x02"),
]
DELAYS = (5_000, 700, -5)


def payload_of(
    messages: list[HalfMessage] = MESSAGES, topic: str = "orders", queue_id: int = 3, *, delayed: bool = False
) -> bytes:
    return build_payload(
        messages, topic=topic, queue_id=queue_id, born_time_ms=77, born_host=HOST, store_host=HOST, delayed=delayed
    )[0]


def with_delays(*delays: int) -> bytes:
    """``DELAYED`` with another column of delays."""
    payload = payload_of(DELAYED, delayed=True)
    items_end = len(payload) - 3 * (DELAY_BYTES + ENTRY_BYTES)
    return payload[:items_end] + struct.pack(f">{len(delays)}q", *delays) + payload[-3 * ENTRY_BYTES :]


def verify(payload: bytes, count: int = 3, **changes: object) -> Verified | str:
    said: dict[str, object] = {
        "topic": "orders", "queue_id": 3, "store_host": HOST, "body_bytes_max": 1_000, **changes,
    }  # fmt: skip
    return verify_payload(payload, count, **said)


def test_what_is_built_is_accepted_and_says_what_it_is() -> None:
    payload = payload_of()
    assert verify(payload) == Verified(True, crc32(payload[-3 * ENTRY_BYTES :]))
    assert verify(payload_of(MESSAGES[:2]), 2) == Verified(False, crc32(payload_of(MESSAGES[:2])[-2 * ENTRY_BYTES :]))


def test_each_message_lies_where_its_entry_says() -> None:
    payload = payload_of()
    places = list(item_places(payload, 3))
    assert places[0][0] == HALF_BATCH_PAYLOAD_AT
    for (place, size), sent in zip(places, MESSAGES, strict=True):
        message, physical_offset, length = decode(payload, place - HALF_BATCH_PAYLOAD_AT + ITEM_HEAD_BYTES)
        assert (length, physical_offset, message.queue_offset, message.store_time_ms) == (size, 0, 0, 0)
        assert (message.topic, message.queue_id, message.born_time_ms, message.store_host) == ("orders", 3, 77, HOST)
        assert (message.flag, message.sys_flag, message.body, message.properties) == sent
    hashes = [(tag, key) for _, _, tag, key in PAYLOAD_ENTRY.iter_unpack(payload[-3 * ENTRY_BYTES :])]
    assert hashes == [(tag_hash_of(b"TAGS\x01red\x02"), hash64(b"ID1")), (0, 0), (0, hash64(b"ID3"))]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topic": "other!"}, "topic"),
        ({"queue_id": 2}, "wrong head"),
        ({"store_host": HOST[::-1]}, "store host"),
        ({"body_bytes_max": 299}, "body of 300 bytes"),
        ({"count": 2}, ""),
        ({"count": 4}, ""),
        ({"count": 0}, "cannot be 0 messages"),
        ({"count": -1}, "cannot be -1 messages"),
        ({"count": 1 << 40}, "cannot be"),
    ],
)
def test_payload_that_is_not_what_the_request_says_is_refused(changes: dict[str, object], problem: str) -> None:
    found = verify(payload_of(), **changes)  # type: ignore[arg-type]
    assert isinstance(found, str)
    assert problem in found


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        (b"TRAN_MSG\x01true\x02", "no TRAN_MSG"),
        (b"HMQ_COORDINATOR\x011 bank\x02", "no coordinator"),
        (b"DELAY\x013\x02", "not said to have delayed messages"),
        (b"TIMER_DELAY_MS\x01700\x02", "not said to have delayed messages"),
        (b"TAGS\x01\xff\x02", "UTF-8"),
        (b"p\x01" + b"v" * 32_767, "at most 32767"),
    ],
)
def test_properties_that_a_half_batch_cannot_have_are_refused(properties: bytes, problem: str) -> None:
    sized = [HalfMessage(0, 0, b"b", properties[:65_000])]
    found = verify(payload_of(sized), 1)
    assert isinstance(found, str)
    assert problem in found


def test_delays_are_stated_beside_the_entries() -> None:
    payload = payload_of(DELAYED, delayed=True)
    assert payload == with_delays(*DELAYS)
    assert verify(payload, delayed=True) == Verified(True, crc32(payload[-3 * ENTRY_BYTES :]))
    delayed_entries = delayed_entries_of(payload, 3)
    assert delays_in(delayed_entries) == DELAYS
    places = list(item_places(payload, 3))
    hashes = [(tag_hash_of(b"TAGS\x01red\x02"), hash64(b"ID1")), (0, 0), (0, hash64(b"ID3"))]
    assert list(delayed_items(delayed_entries)) == [
        DelayedItem(delay, at, size, *both) for delay, (at, size), both in zip(DELAYS, places, hashes, strict=True)
    ]
    assert delays_in(b"") == ()
    assert list(delayed_items(b"")) == []


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (with_delays(5_000, 700, -6), "message 2: its properties say a delay of -5, and the half batch another one"),
        (with_delays(0, 700, -5), "message 0: its properties say a delay of 5000"),
        (with_delays(5_000, -700, -5), "message 1"),
        (with_delays(700, 5_000, -5), "message 0"),
        (with_delays(5_000, 700), ""),
        (with_delays(5_000, 700, -5, 1), ""),
        (with_delays(), ""),
        (payload_of(DELAYED), ""),
        (payload_of([DELAYED[0], MESSAGES[1], DELAYED[2]], delayed=True), "message 1: it has no delay"),
        (payload_of([DELAYED[0], DELAYED[1]], delayed=True), ""),
    ],
)
def test_column_of_delays_that_contradicts_the_messages_is_refused(payload: bytes, problem: str) -> None:
    found = verify(payload, delayed=True)
    assert isinstance(found, str)
    assert problem in found


@pytest.mark.parametrize("delay", ["9" * 19, "9223372036854775808", "9223372036854775807"])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_delay_that_does_not_fit_in_its_column_is_refused(name: str, delay: str) -> None:
    """Nineteen digits are read as a number, and 8 bytes hold less: this must be a refusal, not an exception in the broker."""
    long = HalfMessage(0, 0, b"b", f"{name}\x01{delay}\x02".encode())
    short = HalfMessage(0, 0, b"b", long.properties[:-2] + b"\x02")
    payload = payload_of([short], delayed=True) if "SEC" not in name else payload_of([DELAYED[1]], delayed=True)
    items = payload_of([long])
    column = payload[-ENTRY_BYTES - DELAY_BYTES : -ENTRY_BYTES]
    found = verify(items[:-ENTRY_BYTES] + column + items[-ENTRY_BYTES:], 1, delayed=True)
    assert isinstance(found, str)
    assert "and the half batch another one" in found


def test_payload_with_delays_is_no_payload_without_them_and_the_other_way_round() -> None:
    assert isinstance(verify(payload_of(DELAYED, delayed=True)), str)
    assert isinstance(verify(payload_of(), delayed=True), str)


def test_no_changed_byte_passes_unless_it_only_changes_what_the_sender_may_choose() -> None:
    """Every byte is changed once. Accepted are: flag, born time, born host, compression bits, and names of properties."""
    payload = payload_of()
    free: set[int] = set()
    for place, _ in item_places(payload, 3):
        at = place - HALF_BATCH_PAYLOAD_AT + ITEM_HEAD_BYTES
        free |= {*range(at + 16, at + 20), *range(at + 38, at + 56)}
    accepted = []
    for at in range(len(payload)):
        changed = bytearray(payload)
        changed[at] ^= 1
        if not isinstance(verify(bytes(changed)), str):
            accepted.append(at)
    properties = {at for at in accepted if at not in free}
    names = b"UNIQ_KEY TAGS KEYS k1 k2 \x01\x02"
    assert all(payload[at] in names for at in properties), [payload[at : at + 4] for at in properties]
    assert len(accepted) < len(payload) // 3


def test_no_changed_byte_of_the_delays_and_entries_passes() -> None:
    payload = payload_of(DELAYED, delayed=True)
    for at in range(len(payload) - 3 * (DELAY_BYTES + ENTRY_BYTES), len(payload)):
        for bit in range(8):
            changed = bytearray(payload)
            changed[at] ^= 1 << bit
            assert isinstance(verify(bytes(changed), delayed=True), str), at
