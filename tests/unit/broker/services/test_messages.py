"""What may be seen of the log by offset: nothing that somebody made up, nothing before its time."""

from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.services import CoreSequencer, FakeQueues
from tests.support.steps import result_of

from halfmq.broker.services import messages
from halfmq.broker.services.messages import KeyMatches, StoredMessages, patched
from halfmq.core.commands import SetTopic
from halfmq.model.steps import Steps
from halfmq.model.stored_message import StoredMessage, body_crc_of, decode, encode
from halfmq.store.indexes import FoundMessage

ID = "AC10000100002A9F0000000000000001"
HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def message(body: bytes) -> StoredMessage:
    return StoredMessage("T", 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, body, body_crc_of(body), b"UNIQ_KEY\x01u\x02")


def test_committed_copy_is_patched_and_the_stored_one_is_not() -> None:
    stored = b"".join(encode(message(b"x"), 1_000))
    copy = patched(memoryview(stored), 5_000, 7, 99, prepared_offset=1_000)
    seen, offset, _ = decode(copy)
    assert (seen.queue_offset, seen.store_time_ms, seen.sys_flag, seen.prepared_offset, offset) == (
        7,
        99,
        8,
        1_000,
        5_000,
    )
    assert decode(stored)[0] == message(b"x")
    released, offset, _ = decode(patched(memoryview(stored), 5_000, 7, 99))
    assert (released.sys_flag, released.prepared_offset, offset) == (0, 0, 5_000)


async def test_only_starts_of_visible_messages_are_found(tmp_path: Path) -> None:
    """Goal: no offset reads what is not a message, or what nobody may see. Method: every offset of a small log.

    A body holds a whole record with a message, which must not be taken for one.
    """
    async with serving(tmp_path) as running:
        client = await running.client()
        inner = b"".join(encode(message(b"forged"), 0))
        forged = b"\x01\0\0\0" + (16 + len(inner)).to_bytes(4, "big") + bytes(8) + inner
        places = {}
        for number, body in enumerate((b"plain", forged, b"more")):
            answer = await client.send("T", body, unique=f"{number:032d}")
            places[int(answer.ext["msgId"][-16:], 16)] = body
        committed = await client.half("T", b"committed", unique="A" * 32)
        await client.end(committed, "A" * 32, 8)
        places[int(committed.ext["msgId"][-16:], 16)] = b"committed"
        await client.half("T", b"undecided", unique="B" * 32)
        gone = await client.half("T", b"rolled back", unique="C" * 32)
        await client.end(gone, "C" * 32, 12)
        await client.send("T", b"delayed", unique="D" * 32, DELAY="18")
        store = running.broker._store
        assert store is not None
        stored = StoredMessages(running.state, store)
        seen = {}
        for offset in range(-16, running.state.log_end + 64):
            found = result_of(stored.visible(offset))
            if found is not None:
                seen[offset] = found.body
        assert seen == places
        assert stored.half_bytes(1 << 40) is None


async def test_verdict_of_a_half_is_in_its_row(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for unique, wanted in (("A" * 32, 8), ("B" * 32, 12), ("C" * 32, 0)):
            half = await client.half("T", b"x", unique=unique)
            if wanted:
                await client.end(half, unique, wanted)
        store = running.broker._store
        assert store is not None
        stored = StoredMessages(running.state, store)
        rows = [stored.settled_row(index) for index in range(4)]
        assert [row.committed if row else None for row in rows] == [True, False, None, None]
        assert stored.settled_row(-1) is None
        assert stored.settled_row(1 << 40) is None


class Damaged:
    """A store whose every message begins with the wrong magic number."""

    def stored_view(self, offset: int) -> memoryview:
        stored = bytearray(b"".join(encode(message(b"x"), offset)))
        stored[4] ^= 1
        return memoryview(stored)


def test_half_that_is_no_message_any_more_is_none_and_said(caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredMessages(None, Damaged())  # type: ignore[arg-type]  # nothing else is asked of either
    assert stored.half_bytes(1_000) is None
    assert "the half at log offset 1000 is damaged" in caplog.text


def keyed(*bodies: bytes) -> StoredMessages:
    """Messages with one key, stored at 1, 2, ... ms; the newest comes first."""
    sequencer = CoreSequencer()
    sequencer.core.do(SetTopic("T", 1, 1, 6))
    queues = FakeQueues(sequencer)
    for number, body in enumerate(bodies):
        queues.add(1, 0, body, time_ms=number + 1)
    entries = queues.read_queue(1, 0, 0, len(bodies))
    found = [FoundMessage(0, number, entry, message(b"")) for number, entry in enumerate(entries)][::-1]
    queues.find_by_key = lambda topic_id, topic, key, most: _found(found[:most])  # type: ignore[attr-defined]
    return StoredMessages(sequencer.view, queues)  # type: ignore[arg-type]


def _found(found: list[FoundMessage]) -> Steps[list[FoundMessage]]:
    yield
    return found


def bodies_of(found: KeyMatches) -> list[bytes]:
    return [decode(one)[0].body for one in found.messages]


def test_messages_of_a_key_are_bounded_by_number_time_and_what_a_frame_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = keyed(*[b"%d" % number for number in range(40)])
    assert bodies_of(result_of(stored.by_key("T", "k", 2, 0, 99, is_unique=False))) == [b"39", b"38"]
    assert (
        len(bodies_of(result_of(stored.by_key("T", "k", 1 << 30, 0, 99, is_unique=False)))) == messages.KEY_MATCHES_MAX
    )
    assert bodies_of(result_of(stored.by_key("T", "k", 0, 0, 99, is_unique=False))) == [b"39"]
    assert len(bodies_of(result_of(stored.by_key("T", "k", 1, 0, 99, is_unique=True)))) == messages.KEY_MATCHES_MAX
    assert bodies_of(result_of(stored.by_key("T", "k", 9, 32, 33, is_unique=False))) == [b"32", b"31"]
    assert bodies_of(result_of(stored.by_key("Nowhere", "k", 9, 0, 99, is_unique=False))) == []
    large = keyed(bytes(600), bytes(500), bytes(2_000))
    monkeypatch.setattr(messages, "_KEY_BYTES_MAX", 1_000)
    assert list(map(len, bodies_of(result_of(large.by_key("T", "k", 9, 0, 99, is_unique=False))))) == [2_000], (
        "always the first"
    )
    assert list(map(len, bodies_of(result_of(large.by_key("T", "k", 9, 0, 2, is_unique=False))))) == [500]
