"""Ids and names: what is taken, what is refused, and hashes that must never change."""

import pytest

from halfmq import limits
from halfmq.client.unique_ids import UniqueIds
from halfmq.errors import InvalidName
from halfmq.model.ids import (
    checked_name,
    hash64,
    is_generated_id,
    is_transaction_id,
    is_unique_id,
    java_string_hash,
    offset_message_id,
    parse_offset_message_id,
)
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy


@pytest.mark.parametrize("text", ["a", "A-1.b_c:9", "x" * 64])
def test_transaction_ids_of_the_allowed_form_are_taken(text: str) -> None:
    assert is_transaction_id(text)


@pytest.mark.parametrize("text", ["", "x" * 65, "a b", "a\x01", "ä", "a\n", "a/b"])
def test_other_transaction_ids_are_refused(text: str) -> None:
    assert not is_transaction_id(text)


def test_a_name_is_given_back_or_refused_with_what_is_allowed() -> None:
    assert checked_name("%RETRY%group-1", "topic", 127) == "%RETRY%group-1"
    for bad in ("", "a b", "ä", "x" * 128):
        with pytest.raises(InvalidName, match="letters, digits"):
            checked_name(bad, "topic", limits.TOPIC_CHARS_MAX)


def test_an_offset_message_id_is_host_port_and_offset_in_hex_and_comes_back() -> None:
    host = bytes((127, 0, 0, 1)) + (20911).to_bytes(4, "big")
    text = offset_message_id(host, 0x5ED)
    assert text == "7F000001000051AF00000000000005ED"
    assert parse_offset_message_id(text) == (host, 0x5ED)
    six = b"\x20\x01" + bytes(14) + (1).to_bytes(4, "big")
    assert parse_offset_message_id(offset_message_id(six, 7)) == (six, 7)


@pytest.mark.parametrize("text", ["", "7F", "Z" * 32, "0" * 31])
def test_what_is_no_offset_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"offset message id|hexadecimal"):
        parse_offset_message_id(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("\U0001f600", 1772899),
    ],
)
def test_a_tag_hash_is_javas_string_hash_code(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_the_look_up_hash_is_signed_64_bit_and_never_changes() -> None:
    assert (hash64(b""), hash64(b"order-4711")) == (-6510615558205997056, 7689538520587292111)
    values = {hash64(str(number).encode()) for number in range(20_000)}
    assert len(values) == 20_000
    assert min(values) < 0 < max(values)
    assert all(-(1 << 63) <= value < 1 << 63 for value in values)


@pytest.mark.parametrize("address", [b"\x7f\0\0\x01", bytes(15) + b"\x01"])
def test_ids_of_our_client_are_generated_ones(address: bytes) -> None:
    for pid in (1, 4_194_304):
        ids = UniqueIds(SystemClock(), SystemEntropy(), address, pid)
        assert all(is_generated_id(ids.transaction_id()) for _ in range(300))


@pytest.mark.parametrize(
    "tx_id",
    [
        "", "-", "order-17", "a" * 64, "1-2-3-4-5-6", "A" * 32, "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "1-7f000001-19a0b1c2d3e-1f-ABCDEF01-1", "1-7f000001-19a0b1c2d3e-1f-abcdef01", "x1-7f000001-19a0b1c2d3e-1f-abcdef01-1",
        "1-7f000001-19a0b1c2d3e-1f-abcdef01-1-1",
    ],
)  # fmt: skip
def test_other_ids_are_not(tx_id: str) -> None:
    assert not is_generated_id(tx_id)


def test_an_id_is_its_messages_if_it_has_the_length_and_the_hash() -> None:
    for tx_id in ("A" * 32, "B" * 56):
        assert is_unique_id(tx_id, hash64(tx_id.encode()))
        assert not is_unique_id(tx_id, hash64(b"C" * 32))
    assert not is_unique_id("order-17", hash64(b"order-17"))
