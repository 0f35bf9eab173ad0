"""Half batches are read with the checksum that was stored with them: what it covers, and what happens when it is wrong."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Running, ShiftedClock, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import until

from halfmq import limits
from halfmq.model.half_batch import WHOLE
from halfmq.model.stored_message import AT_BODY_V4
from halfmq.model.text_fields import write_fields
from halfmq.spark.network import raw_reader
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import parse_options
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.stored_rows import record_batch
from halfmq.spark.sink.options import HALF_BATCH_BYTES, HALF_BATCH_ROWS
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.wire.remoting.codes import HMQ_POSITION, HMQ_RAW_READ
from halfmq.wire.remoting.raw_read import (
    BETWEEN_BYTES,
    RawReadFields,
    decode_found,
    is_intact,
)

#: Rows of the half batches of one decision, and those of another topic between them.
ROWS = (40, 25, 60)


async def fill(client: RawClient) -> list[str]:
    """A message of a client, half batches between those of another topic, and a message. Returns the bodies."""
    await client.send("T", b"first")
    run = await QueryRun.begin(client)
    for number, rows in enumerate(ROWS):
        assert (await run.prepare(0, "0.1", messages(f"a{number}", rows, TAGS="x"))).code == 0
        assert (await run.prepare(0, "1.1", messages(f"b{number}", 20), topic="U")).code == 0
    assert (await run.prepare(0, "2.1", messages("undecided", 20))).code == 0
    assert (await run.decide(0, "0.1", "1.1")).code == 0
    await client.send("T", b"last")
    return ["first", *(f"a{number}-{row}" for number, rows in enumerate(ROWS) for row in range(rows)), "last"]


async def answer_of(running: Running, client: RawClient, first: int = 0, end: int = 1_000, **changes: Any) -> Answer:
    store = (await client.ask(HMQ_POSITION, {"topics": "T"})).ext["store"]
    topic_id = running.state.topics_by_name["T"].topic_id
    fields = replace(RawReadFields("", store, "T", topic_id, 0, first, end, 1 << 20, 1), **changes)
    answer = await client.ask(HMQ_RAW_READ, write_fields(fields))
    assert answer.code == 0, answer
    return answer


def is_right(answer: Answer, body: bytes, first: int = 0) -> bool:
    """As the reader decides."""
    found, view = decode_found(answer.ext), memoryview(body)
    if not is_intact(raw_reader._summed(view, found)):
        return False
    response = raw_reader._parse(view, found, QueueRange("T", 1, "", 0, first, 1_000), first)
    return not found.half_batches or raw_reader._wrong_half_batches(response, found, first) == ([], True)


def whole_runs(answer: Answer, first: int = 0) -> list[int]:
    found = decode_found(answer.ext)
    parsed = raw_reader._parse(memoryview(answer.body), found, QueueRange("T", 1, "", 0, first, 1_000), first)
    return [int(count) for count, whole in zip(parsed.counts, parsed.whole, strict=True) if whole]


async def test_every_byte_of_a_response_is_covered_by_one_of_its_checksums(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        answer = await answer_of(running, client)
        assert whole_runs(answer) == list(ROWS)
        assert int(answer.ext["halfBatches"]) == 3
        assert is_right(answer, answer.body)
        for place in range(len(answer.body)):
            damaged = bytearray(answer.body)
            damaged[place] ^= 1 << place % 8
            assert not is_right(answer, bytes(damaged)), place


async def test_what_does_not_ask_for_them_gets_one_checksum(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        answer = await answer_of(running, client, stored_checksums=0)
        assert "halfBatches" not in answer.ext
        assert is_intact(memoryview(answer.body))
        assert whole_runs(answer) == []


async def test_a_part_of_a_half_batch_has_no_checksum_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        cut = await answer_of(running, client, 2)
        assert (whole_runs(cut, 2), is_right(cut, cut.body, 2)) == ([25, 60], True)
        for end, rows in ((41, [40]), (66, [40, 25]), (67, [40, 25]), (90, [40, 25])):
            answer = await answer_of(running, client, 1, end)
            assert whole_runs(answer, 1) == rows, end
            assert int(answer.ext["entries"]) == end - 1, "the end of the range may cut one"
        within = await answer_of(running, client, 1, 40)
        assert (whole_runs(within, 1), int(within.ext["entries"])) == ([], 39)


async def test_a_response_ends_where_the_next_one_can_have_the_half_batch_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client)
        full = await answer_of(running, client)
        found, at = [], 0
        while at < 127:
            answer = await answer_of(running, client, at, bytes_max=len(full.body) * 2 // 3)
            found.append((int(answer.ext["entries"]), whole_runs(answer, at)))
            at += found[-1][0]
        assert found == [(66, [40, 25]), (61, [60])]
        # One that never fits is read in parts.
        at = 66
        while at < 126:
            answer = await answer_of(running, client, at, bytes_max=3_000)
            assert whole_runs(answer, at) == []
            at += int(answer.ext["entries"])


async def test_half_batches_with_delays_are_single_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        past = messages("past", 30, TIMER_DELIVER_MS="1000")
        assert (await run.prepare(0, "0.1", past, delayed=1)).code == 0
        assert (await run.decide(0, "0.1")).code == 0

        async def are_all_visible() -> bool:
            return (await run.bounds())[1] == 30

        await until(are_all_visible, "messages whose time has passed")
        answer = await answer_of(running, client)
        assert (int(answer.ext["entries"]), whole_runs(answer)) == (30, [])
        assert is_right(answer, answer.body)


# --- the reader


def overwritten(directory: Path, old: bytes, new: bytes) -> None:
    """Change the only place in the log that contains ``old``."""
    (path,) = [path for path in (directory / "shard-0").rglob("*") if path.is_file() and old in path.read_bytes()]
    data = path.read_bytes()
    assert data.count(old) == 1
    with path.open("r+b") as file:
        file.seek(data.index(old))
        file.write(new)


def rows_of(
    running: Running, store: str, start: int = 0, end: int = 127, lost: list[str] | None = None
) -> tuple[list[str | None], list[int]]:
    """(bodies, offsets that ``bad`` was called with)."""
    told: list[str] = [] if lost is None else lost
    bad: list[int] = []
    found: list[str | None] = []
    options = parse_options({"url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "T"})
    reader = WireReader(options, RetryDeadline(2_000))
    topic_id = running.state.topics_by_name["T"].topic_id
    try:
        for rows in reader.read(Ranges(store, (QueueRange("T", topic_id, "", 0, start, end),)), told.append):
            batch = record_batch(rows, ("value",), lambda offset, why: bad.append(offset))
            found += [None if value is None else value.decode() for value in batch.column(0).to_pylist()]
    finally:
        reader.close()
    assert lost is not None or not told
    return found, bad


async def filled(running: Running) -> tuple[list[str], str]:
    """(bodies of topic T, id of the store)."""
    client = await running.client()
    return await fill(client), (await client.ask(HMQ_POSITION, {"topics": "T"})).ext["store"]


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """(whole half batches in a response, whether all was right) for each response of the reader."""
    seen: list[tuple[int, bool]] = []
    verify = raw_reader.RawReader._verified

    def spied(self: Any, answer: Any, *given: Any) -> Any:
        response = verify(self, answer, *given)
        seen.append((decode_found(answer.ext).half_batches, response is not None))
        return response

    monkeypatch.setattr(raw_reader.RawReader, "_verified", spied)
    return seen


async def test_rows_are_the_same_from_any_offset(tmp_path: Path, verified: list[tuple[int, bool]]) -> None:
    async with serving(tmp_path) as running:
        expected, store = await filled(running)
        for start in (0, 1, 2, 40, 41, 60, 126):
            assert await asyncio.to_thread(rows_of, running, store, start) == (expected[start:], []), start
        assert max(verified) == (3, True)
        assert all(right for _, right in verified)


async def test_damage_on_the_disk_is_found_by_the_checksum_and_is_one_row(
    tmp_path: Path, verified: list[tuple[int, bool]], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as running:
        expected, store = await filled(running)
        overwritten(tmp_path, b"a1-7", b"a1-?")
        with caplog.at_level(logging.WARNING, "halfmq.spark"):
            found, bad = await asyncio.to_thread(rows_of, running, store)
    damaged = 1 + 40 + 7
    assert bad == [damaged]
    assert [*found[:damaged], *found[damaged + 1 :]] == [*expected[:damaged], *expected[damaged + 1 :]]
    assert verified == [(3, False), (0, True)], "read again with one checksum"
    assert "has a wrong checksum; reading it again" in caplog.text


async def test_damage_in_properties_is_told_with_the_messages_among_which_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        expected, store = await filled(running)
        overwritten(tmp_path, b"a1" + b"7".rjust(32, b"0"), b"a1" + b"8".rjust(32, b"0"))
        lost: list[str] = []
        found, bad = await asyncio.to_thread(rows_of, running, store, lost=lost)
    assert (found, bad) == (expected, [])
    assert len(lost) == 1, lost
    assert lost[0].startswith("the properties or queue entries of messages 41 to 65 of queue 0 of topic T are damaged")


async def test_a_damaged_size_is_one_message_that_cannot_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        expected, store = await filled(running)
        (path,) = [
            path for path in (tmp_path / "shard-0").rglob("*") if path.is_file() and b"a1-0" in path.read_bytes()
        ]
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"a1-0") - AT_BODY_V4)
            file.write(b"\xff" * 4)
        lost: list[str] = []
        found, bad = await asyncio.to_thread(rows_of, running, store, lost=lost)
    assert (found, bad) == ([*expected[:41], *expected[42:]], [])
    assert len(lost) == 1, lost
    assert lost[0].startswith("1 of the messages 41 to 41 of queue 0 of topic T cannot be read")


async def test_messages_that_lie_elsewhere_in_their_records_do_not_disturb_half_batches(
    tmp_path: Path, verified: list[tuple[int, bool]]
) -> None:
    """Delayed messages, before, between and after half batches, all read together."""
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        for number in range(3):
            await client.send("T", b"delayed %d" % number, unique=f"D{number:031d}", DELAY="1")
            clock.passed_ms += 2_000
            await until(lambda: running.state.topics_by_name["T"].ends[0] == 41 * number + 1)  # noqa: B023
            assert (await run.prepare(number, "0.1", messages(f"a{number}", 40))).code == 0
            assert (await run.decide(number, "0.1")).code == 0
        store = (await client.ask(HMQ_POSITION, {"topics": "T"})).ext["store"]
        expected = [
            body for number in range(3) for body in (f"delayed {number}", *(f"a{number}-{row}" for row in range(40)))
        ]
        found, bad = await asyncio.to_thread(rows_of, running, store, 0, 123)
    assert (found, bad) == (expected, [])
    assert verified == [(3, True)]


async def test_a_response_that_was_changed_on_the_way_is_read_again(
    tmp_path: Path, verified: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    body_of = raw_reader.RawConnection.body
    changed: list[int] = []

    def change(self: Any) -> memoryview:
        body = body_of(self)
        if not changed:
            changed.append(bytes(body).index(b"a2-59"))
            body[changed[0]] ^= 1
        return body

    monkeypatch.setattr(raw_reader.RawConnection, "body", change)
    async with serving(tmp_path) as running:
        expected, store = await filled(running)
        assert await asyncio.to_thread(rows_of, running, store) == (expected, [])
    assert verified == [(3, False), (0, True)]


async def test_after_one_response_with_one_checksum_the_stored_ones_are_requested_again(
    tmp_path: Path, verified: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        expected = await fill(client)
        full = await answer_of(running, client)
        monkeypatch.setattr(raw_reader, "ANSWER_BYTES", len(full.body) * 2 // 3)
        verify, send = raw_reader.RawReader._verified, raw_reader.RawReader._send
        monkeypatch.setattr(
            raw_reader.RawReader,
            "_verified",
            lambda *given: verify(*given) if len(verified) else verified.append((0, False)),
        )
        sent: list[tuple[int, bool]] = []

        def spied(self: Any, connection: Any, wanted: Any) -> None:
            sent.append((wanted.first, wanted.with_stored_checksums))
            send(self, connection, wanted)

        monkeypatch.setattr(raw_reader.RawReader, "_send", spied)
        store = (await client.ask(HMQ_POSITION, {"topics": "T"})).ext["store"]
        assert await asyncio.to_thread(rows_of, running, store) == (expected, [])
    first, ahead, again, after = sent
    assert (first, ahead, again, after[1]) == ((0, True), (66, True), (0, False), True)


def test_two_half_batches_of_the_sink_fit_in_a_response() -> None:
    """Bytes: as many messages as fit in a request, each with its entry and what is between two."""
    assert 2 * HALF_BATCH_ROWS <= limits.RAW_READ_MESSAGES_MAX < WHOLE
    assert raw_reader.ANSWER_BYTES <= limits.RAW_READ_BYTES_MAX
    rows = HALF_BATCH_BYTES // 1_200
    assert 2 * (HALF_BATCH_BYTES + rows * (QUEUE_ENTRY_BYTES + BETWEEN_BYTES)) <= raw_reader.ANSWER_BYTES
