"""Payloads are the bytes that ``model.half_batch`` builds message by message, and pass the broker's verification."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.payloads import verify_payload

from halfmq.model.half_batch import HalfMessage, Verified, build_payload
from halfmq.model.ids import java_string_hash
from halfmq.spark.sink import encoder
from halfmq.spark.sink.columns import ROWS
from halfmq.spark.sink.encoder import Encoder, body_crcs, encoded_sizes
from halfmq.spark.sink.hashes import id_prefix

BORN, STORE = b"\x0a\x00\x00\x01\x00\x00\x10\x00", b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
PREFIX = id_prefix("q:1:r", "0.1")
ROW = st.tuples(st.binary(min_size=1, max_size=60), st.text("abcé", max_size=5), st.booleans())


def rows_of(found: list[tuple[bytes, str, bool]], *, delayed: bool = False) -> pa.RecordBatch:
    """(body, tag, whether there is another property) as the columns of ROWS. ``delayed``: row n has a delay of 7 + n ms."""
    return pa.record_batch(
        [
            pa.array([body for body, _, _ in found], pa.binary()),
            pa.array(
                [properties_of(tag, more, 7 + n if delayed else 0) for n, (_, tag, more) in enumerate(found)],
                pa.binary(),
            ),
            pa.array([java_string_hash(tag) for _, tag, _ in found], pa.int32()),
            pa.array([7 + number if delayed else 0 for number in range(len(found))], pa.int64()),
        ],
        schema=ROWS,
    )


def properties_of(tag: str, more: bool, delay: int = 0) -> bytes:
    delayed = f"TIMER_DELAY_MS\x01{delay}\x02".encode() if delay else b""
    return delayed + (f"TAGS\x01{tag}\x02" if tag else "").encode() + (b"a\x01b\x02" if more else b"")


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(ROW, min_size=1, max_size=9), st.integers(0, 3), st.sampled_from(["t", "orders", "x" * 127]), st.booleans()
)
def test_payload_equals_the_one_built_message_by_message(
    found: list[tuple[bytes, str, bool]], skipped: int, topic: str, delayed: bool
) -> None:
    made = Encoder(PREFIX, BORN, STORE)
    made.messages = 65_530
    given_rows = rows_of([(b"skipped", "", False)] * skipped + found, delayed=delayed).slice(skipped)
    payload = made.encode(given_rows, topic, 3, 1_700_000_000_123)
    messages = [
        HalfMessage(
            0,
            0,
            body,
            f"UNIQ_KEY\x01{PREFIX.decode()}{65_530 + n:08X}\x02".encode()
            + properties_of(tag, more, 7 + skipped + n if delayed else 0),
        )
        for n, (body, tag, more) in enumerate(found)
    ]
    wanted, count = build_payload(
        messages,
        topic=topic,
        queue_id=3,
        born_time_ms=1_700_000_000_123,
        born_host=BORN,
        store_host=STORE,
        delayed=delayed,
    )
    assert payload.delayed == delayed
    assert payload.content == wanted
    assert (payload.messages, made.messages) == (count, 65_530 + count)
    assert encoded_sizes(given_rows, topic).sum() == len(wanted)
    verified = verify_payload(
        payload.content, count, topic=topic, queue_id=3, store_host=STORE, body_bytes_max=1 << 20, delayed=delayed
    )
    assert isinstance(verified, Verified), verified


def test_ids_go_on_over_half_batches() -> None:
    made = Encoder(PREFIX, BORN, STORE)
    contents = [made.encode(rows_of([(b"a", "", False)] * 2), "t", 0, 1).content for _ in range(3)]
    ids = [PREFIX + f"{number:08X}".encode() for number in range(6)]
    assert [[one in content for one in ids] for content in contents] == [
        [True, True, False, False, False, False],
        [False, False, True, True, False, False],
        [False, False, False, False, True, True],
    ]


@pytest.mark.parametrize("skipped", [0, 2])
def test_crcs_of_bodies(skipped: int) -> None:
    column = pa.array([b"aa", b"b", b"", b"dddd"], pa.binary()).slice(skipped)
    assert body_crcs(column).tolist() == [encoder.crc32(body.as_py()) for body in column]
