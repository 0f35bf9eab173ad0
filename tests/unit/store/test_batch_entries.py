"""Queue entries of a half batch, made by columns, are those that a loop makes; and its keys are those of its messages."""

import random
from collections.abc import Callable

import pytest

from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.model.layout import PAYLOAD_ENTRY
from halfmq.model.records import HALF_BATCH_PAYLOAD_AT
from halfmq.store import batch_entries
from halfmq.store.batch_entries import keys_in, queue_entries
from halfmq.store.layout import QUEUE_ENTRY


@pytest.mark.parametrize("encode", [batch_entries._encode, batch_entries._encode_arrays])
@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 1_000])
@pytest.mark.parametrize("offset", [0, 64, (1 << 32) - 40, (1 << 40) + 12_345, (1 << 62) + 1])
def test_entries_are_those_of_a_loop(
    encode: Callable[..., bytes], count: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_entries, "_PART", 16)
    monkeypatch.setattr(batch_entries, "_encode", encode)
    monkeypatch.setattr(batch_entries, "_encode_arrays", encode)
    rng = random.Random(count)
    rows = [
        (rng.choice([0, 88, 1 << 20, (1 << 32) - 1]), rng.getrandbits(31), rng.randrange(-(1 << 31), 1 << 31), rng.randrange(-(1 << 63), 1 << 63))
        for _ in range(count)
    ]  # fmt: skip
    entries = memoryview(b"".join(PAYLOAD_ENTRY.pack(*row) for row in rows))
    numbers, found = [], b""
    for number, part in queue_entries(entries, offset, visible_at=7 << 40, store_time_ms=1 << 41, half_index=9):
        numbers.append(number)
        found += part
    assert numbers == list(range(0, count, 16))
    assert found == b"".join(
        QUEUE_ENTRY.pack(offset + at, size, tag, 7 << 40, 1 << 41, 9, key) for at, size, tag, key in rows
    )


def test_keys_are_those_of_the_messages_whose_item_is_there() -> None:
    given = [(b"a", b"KEYS\x01order-1\x02"), (b"b" * 300, b"TAGS\x01web\x02"), (b"KEYS\x01x\x02", b"TAGS\x01t\x02KEYS\x01k 1\x02"),
             (b"c", b"XKEYS\x01no\x02"), (b"d", b"")]  # fmt: skip
    messages = [HalfMessage(0, 0, body, properties) for body, properties in given]
    payload, count = build_payload(
        messages, topic="orders", queue_id=3, born_time_ms=1, born_host=bytes(8), store_host=bytes(8)
    )
    places = [row[0] for row in PAYLOAD_ENTRY.iter_unpack(payload[-count * PAYLOAD_ENTRY.size :])]
    assert places[0] == HALF_BATCH_PAYLOAD_AT
    assert keys_in(payload, count) == ("orders", [(places[0], b"order-1"), (places[2], b"k 1")])
