"""Half batches: the payload that a client builds and the broker stores as it came, and the fields of its requests.

The payload's verification is fast and checks many messages at once; here a slow reader, message by message, decides the same.
"""

import random
import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from msgspec import ValidationError
from msgspec.structs import replace

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model import properties
from halfmq.model.half_batch import (
    ENTRY_BYTES,
    ITEM_HEAD_BYTES,
    HalfMessage,
    Verified,
    build_payload,
    delayed_entries_of,
    delayed_items,
    delays_in,
    item_places,
)
from halfmq.model.ids import hash64
from halfmq.model.layout import ITEM_HEAD, PAYLOAD_ENTRY
from halfmq.model.message_facts import delay_in, pairs_of, tag_hashes
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import BATCHED, HALF_BATCH_PAYLOAD_AT
from halfmq.model.stored_message import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK, StoredMessage, encode
from halfmq.model.stored_message import decode as decode_message
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.wire.remoting import half_batches
from halfmq.wire.remoting.codes import HMQ_DECIDE, HMQ_DECISION, HMQ_PREPARE_BATCH
from halfmq.wire.remoting.header import decode
from tests.fuzz.target import Target, hold, outcome, same
from tests.fuzz.wire_targets import join_frame, split_frame
from tests.support.payloads import verify_payload
from tests.support.raw_client import command, property_string

TOPIC: Final = "T"
_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x10\x00"
_BODY_MAX: Final = 1 << 15
_COUNT_BYTES: Final = 2

# --- payloads ------------------------------------------------------------------------------------------------------


def run_payload(data: bytes) -> None:
    """``data``: the number of messages, then the payload."""
    _run(data, delayed=False)


def run_delayed_payload(data: bytes) -> None:
    """``data`` as in ``run_payload``, of messages with delays."""
    _run(data, delayed=True)


def _run(data: bytes, *, delayed: bool) -> None:
    count = int.from_bytes(data[:_COUNT_BYTES], "big")
    payload = data[_COUNT_BYTES:]
    found = verify_payload(
        payload, count, topic=TOPIC, queue_id=0, store_host=_HOST, body_bytes_max=_BODY_MAX, delayed=delayed
    )
    read = _by_the_book(payload, count, delayed=delayed)
    if isinstance(found, str):
        hold(bool(found), "why it is refused is said")
        hold(read is None, f"it was refused ({found}), and every message of it is right")
        return
    assert isinstance(found, Verified)
    hold(read is not None, "a payload is accepted, and a message of it is wrong")
    assert read is not None
    places = list(item_places(payload, count))
    same("number of messages", len(places), count)
    same("entries", found.entries_checksum, crc32(payload[len(payload) - count * ENTRY_BYTES :]))
    hold(found.has_keys or not any(properties.find(one.properties, "KEYS") for one in read), "keys are not seen")
    for (at, size), message in zip(places, read, strict=True):
        start = at - HALF_BATCH_PAYLOAD_AT
        same("the message at its place", decode_message(payload, start + ITEM_HEAD_BYTES)[0], message)
        same("its length", size, int.from_bytes(payload[start + ITEM_HEAD_BYTES :][:4], "big"))
    if delayed:
        delayed_entries = delayed_entries_of(payload, count)
        said = [(delay_in(pairs_of(one.properties)), at, size) for one, (at, size) in zip(read, places, strict=True)]
        same("delays", list(delays_in(delayed_entries)), [delay for delay, _, _ in said])
        same("delayed messages", [tuple(one[:3]) for one in delayed_items(delayed_entries)], said)


def _by_the_book(payload: bytes, count: int, *, delayed: bool = False) -> list[StoredMessage] | None:
    """The messages, each read, and written again with its head and its entry; None: something differs."""
    if not count:
        return None
    found: list[StoredMessage] = []
    at = 0
    delays = entries = b""
    for number in range(count):
        try:
            message, physical, size = decode_message(payload, at + ITEM_HEAD_BYTES)
        except (ValueError, struct.error):
            return None
        head = ITEM_HEAD.pack(BATCHED, 0, 0, ITEM_HEAD_BYTES + size, HALF_BATCH_PAYLOAD_AT + at, number)
        try:
            again = b"".join(encode(message, 0))
        except (ValueError, struct.error, UnicodeError):
            return None
        if physical or payload[at : at + ITEM_HEAD_BYTES + size] != head + again or not _is_right(message):
            return None
        delay = delay_in(pairs_of(message.properties))
        if bool(delay) != delayed or not -1 << 63 <= delay < 1 << 63:
            return None
        delays += struct.pack(">q", delay) if delayed else b""
        tag, unique = properties.find(message.properties, "TAGS"), properties.find(message.properties, "UNIQ_KEY")
        key_hash = hash64(unique) if unique else 0
        entries += PAYLOAD_ENTRY.pack(HALF_BATCH_PAYLOAD_AT + at, size, tag_hashes[tag or b""], key_hash)
        found.append(message)
        at += ITEM_HEAD_BYTES + size
    return found if payload[at:] == delays + entries else None


def _is_right(message: StoredMessage) -> bool:
    """What a message of a half batch must say."""
    try:
        message.properties.decode()
    except UnicodeDecodeError:
        return False
    return (
        (message.topic, message.queue_id, message.store_host) == (TOPIC, 0, _HOST)
        and not message.sys_flag & ~(SYS_COMPRESSED | SYS_COMPRESSION_TYPE_MASK)
        and (message.queue_offset, message.store_time_ms, message.reconsume_times, message.prepared_offset) == (0,) * 4
        and message.body_crc == crc32(message.body) & 0x7FFFFFFF
        and len(message.body) <= _BODY_MAX
        and len(message.properties) <= limits.PROPERTIES_BYTES_MAX
        and not properties.find(message.properties, "TRAN_MSG")
    )


def _built(messages: Sequence[HalfMessage], *, delayed: bool = False) -> bytes:
    payload, count = build_payload(
        messages, topic=TOPIC, queue_id=0, born_time_ms=7, born_host=_HOST, store_host=_HOST, delayed=delayed
    )
    return count.to_bytes(_COUNT_BYTES, "big") + payload


def _payload_seeds() -> list[bytes]:
    rng = random.Random(1)
    texts = [
        property_string(UNIQ_KEY="A" * 32), property_string(UNIQ_KEY="B", TAGS="red", KEYS="k1 k2"), "", property_string(TAGS="x"),
        property_string(DELAY="1"), property_string(TRAN_MSG="true"), property_string(TIMER_DELAY_MS="5"),
    ]  # fmt: skip
    found = [
        HalfMessage(
            number, rng.choice((0, 1, 0x101)), rng.randbytes(rng.choice((0, 1, 300))), texts[number % 7].encode()
        )
        for number in range(14)
    ]
    return [
        _built(found[:1]),
        _built(found[:4]),
        _built(found[1:3] * 20),
        _built(found[4:5]),
        _built(found),
        b"\0\0",
        b"\0\1",
    ]


def split_payload(data: bytes) -> list[bytes]:
    """Bodies and property strings, one after the other: whatever becomes of them, lengths, sums and entries stay right."""
    count = int.from_bytes(data[:_COUNT_BYTES], "big")
    read = _by_the_book(data[_COUNT_BYTES:], count)
    return [data] if read is None else [part for one in read for part in (one.body, one.properties)]


def join_payload(parts: Sequence[bytes]) -> bytes:
    if len(parts) < 2:
        return b"".join(parts)
    pairs = zip(parts[::2], parts[1::2], strict=False)
    return _built([HalfMessage(0, 0, body, text[:0x7FFF]) for body, text in pairs][:0xFFFF])


def _delayed_seeds() -> list[bytes]:
    texts = [
        property_string(UNIQ_KEY="A" * 32, DELAY="1"), property_string(UNIQ_KEY="B", TAGS="red", KEYS="k1 k2", TIMER_DELAY_SEC="7"),
        property_string(TIMER_DELAY_MS="5"), property_string(TIMER_DELIVER_MS="1700000000000"),
    ]  # fmt: skip
    found = [HalfMessage(number, 0, b"b" * number, text.encode()) for number, text in enumerate(texts)]
    without = HalfMessage(0, 0, b"", property_string(TAGS="x").encode())
    # Nineteen digits: the broker reads them as a number, and 8 bytes do not hold it.
    too_long = HalfMessage(0, 0, b"", property_string(TIMER_DELAY_SEC="9" * 19).encode())
    column = bytes(7) + b"\1"
    long = _built([too_long])
    return [
        _built(found[:1], delayed=True),
        _built(found, delayed=True),
        _built(found[1:3] * 20, delayed=True),
        _built([*found, without], delayed=True),
        _built(found),
        long[:-ENTRY_BYTES] + column + long[-ENTRY_BYTES:],
        b"\0\0",
    ]


def split_delayed(data: bytes) -> list[bytes]:
    """As ``split_payload``, of messages with delays."""
    count = int.from_bytes(data[:_COUNT_BYTES], "big")
    read = _by_the_book(data[_COUNT_BYTES:], count, delayed=True)
    return [data] if read is None else [part for one in read for part in (one.body, one.properties)]


def join_delayed(parts: Sequence[bytes]) -> bytes:
    if len(parts) < 2:
        return b"".join(parts)
    pairs = zip(parts[::2], parts[1::2], strict=False)
    messages = [HalfMessage(0, 0, body, text[:0x7FFF]) for body, text in pairs][:0xFFFF]
    fit = all(-1 << 63 <= delay_in(pairs_of(one.properties)) < 1 << 63 for one in messages)
    return _built(messages, delayed=fit)


# --- requests ------------------------------------------------------------------------------------------------------


def run_requests(frame: bytes) -> None:
    """A frame of any code: what is read as a request or a response of half batches can be written, and is read as the same."""
    if len(frame) < 4:
        return  # the splitter lets no such frame pass
    read = outcome((ProtocolError, ValueError), decode, frame)
    if read.error is not None or not isinstance(read.value.ext, dict):
        return
    ext = read.value.ext
    for kind in (half_batches.PrepareFields, half_batches.DecideFields, half_batches.DecisionFields):
        fields = outcome(ValidationError, read_fields, kind, ext)
        if fields.error is None:
            same(kind.__name__, read_fields(kind, _text(write_fields(fields.value))), fields.value)
            digest = getattr(fields.value, "digest", "00" * 16)
            hold(len(bytes.fromhex(digest)) == 16, "a digest of another length is read")
    answer = outcome(ProtocolError, half_batches.read_answer, ext)
    if answer.error is None:
        same("answer", half_batches.read_answer(_text(half_batches.answer_ext(answer.value))), answer.value)
    winners = outcome(ProtocolError, half_batches.decode_winners, bytes(read.value.body))
    if winners.error is None:
        again = half_batches.decode_winners(half_batches.encode_winners(winners.value))
        same("winners", again, winners.value)


def _text(ext: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in ext.items()}


def _request_seeds() -> list[bytes]:
    prepare = half_batches.PrepareFields("G", TOPIC, 0, 3, 1 << 31, 0, 0, "", "q", 7, "r1", "0.1", 1_000, 4)
    alone = half_batches.PrepareFields("G", TOPIC, 0, 3, 5, 1, 2, "tx-1")
    delayed = replace(prepare, delayed=1)
    digest, of_topic = bytes(range(16)), QueryBatch("q", 7, "r1", "T", "s-1")
    rows = [half_batches.WinnerRow("0.1", 2, 6, 1 << 31), half_batches.WinnerRow("1.4", 1, 1, 0)]
    answer = half_batches.DecisionAnswer(_HOST, True, bytes(16), 4_096, 7)
    said = [
        (HMQ_PREPARE_BATCH, write_fields(prepare), b"payload"),
        (HMQ_PREPARE_BATCH, write_fields(alone), b""),
        (HMQ_PREPARE_BATCH, write_fields(delayed), b"payload"),
        (HMQ_PREPARE_BATCH, write_fields(prepare) | {"delayed": "0"}, b""),
        (HMQ_DECIDE, half_batches.decide_ext("G", QueryBatch("q", 7, "r1"), digest), half_batches.encode_winners(rows)),
        (HMQ_DECIDE, half_batches.decide_ext("G", of_topic, digest), b"[]"),
        (HMQ_DECISION, half_batches.decision_ext(of_topic), b""),
        (HMQ_DECISION, half_batches.answer_ext(answer), b""),
        (HMQ_DECISION, half_batches.answer_ext(answer._replace(query_topic=TOPIC)), b""),
    ]
    return [command(code, 1, _text(ext), body)[4:] for code, ext, body in said]


TARGETS: Final = (
    Target(
        "half_batch",
        "a payload is accepted if and only if each message of it, read alone, is right and is where its entry says",
        run_payload, _payload_seeds, ("halfmq.model.half_batch",), fresh=400, split=split_payload, join=join_payload,
    ),
    Target(
        "half_batch_delays",
        "a payload with delays is accepted if and only if each message is right and its delay is the one stated for it",
        run_delayed_payload, _delayed_seeds, ("halfmq.model.half_batch",), fresh=400, split=split_delayed, join=join_delayed,
    ),
    Target(
        "half_batch_requests",
        "requests and responses of half batches are read or a ProtocolError; what was read, written and read is the same",
        run_requests, _request_seeds, ("halfmq.wire.remoting.half_batches",), fresh=500, split=split_frame, join=join_frame,
    ),
)  # fmt: skip
