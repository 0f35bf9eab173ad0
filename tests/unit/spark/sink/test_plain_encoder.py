"""Requests contain the rows as our client would send them, and their ids follow from task, content and number."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmq import limits
from halfmq.model import stored_message
from halfmq.model.properties import to_dict
from halfmq.model.query_batch import QueryBatch
from halfmq.model.stored_message import StoredMessage
from halfmq.spark.sink.at_least_once import encode, stored_sizes, with_ids
from halfmq.spark.sink.columns import ROWS
from halfmq.wire.remoting.message_codec import BatchEntry, split_batch

ROW = st.tuples(st.binary(min_size=1, max_size=60), st.sampled_from([b"", b"TAGS\x01a\x02", "KEYS\x01é\x02".encode()]))


def rows_of(found: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    bodies, properties = zip(*found, strict=True)
    columns = [
        pa.array(bodies, pa.binary()),
        pa.array(properties, pa.binary()),
        pa.array([0] * len(found), pa.int32()),
        pa.array([0] * len(found), pa.int64()),
    ]
    return pa.record_batch(columns, schema=ROWS)


@settings(deadline=None)
@given(st.lists(ROW, min_size=2, max_size=9), st.integers(0, 3))
def test_batch_is_split_into_the_rows(found: list[tuple[bytes, bytes]], skipped: int) -> None:
    made = encode(rows_of([(b"skipped", b"")] * skipped + found).slice(skipped))
    assert (made.code, made.properties) == (320, "WAIT\x01true\x02")
    assert split_batch(made.body) == tuple(BatchEntry(0, body, properties) for body, properties in found)


def test_one_row_is_an_ordinary_message() -> None:
    assert encode(rows_of([(b"a", "KEYS\x01é\x02".encode())])) == (310, "KEYS\x01é\x02", b"a")


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=9))
def test_ids_are_the_same_however_the_rows_arrive(found: list[tuple[bytes, bytes]]) -> None:
    whole = with_ids(rows_of(found), QueryBatch("q", 4, "r"), 1, 10)
    parts = [with_ids(rows_of([row]), QueryBatch("q", 4, "r"), 1, 10 + number) for number, row in enumerate(found)]
    assert pa.concat_batches(parts) == whole
    for number, (row, (body, properties)) in enumerate(zip(whole.to_pylist(), found, strict=True)):
        name, rest = row["properties"][:42], row["properties"][42:]
        assert (row["body"], rest) == (body, properties)
        ((key, text),) = to_dict(name).items()
        assert (key, len(text), text[24:]) == ("UNIQ_KEY", 32, f"{10 + number:08X}")


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        ((b"a", b"TAGS\x01a\x02"), (b"b", b"TAGS\x01a\x02")),
        ((b"a", b"TAGS\x01a\x02"), (b"a", b"TAGS\x01b\x02")),
        # The same bytes, divided at another place: a body may contain anything.
        ((b"a", b"k\x01v\x02TAGS\x01a\x02"), (b"a\x02k\x01v", b"TAGS\x01a\x02")),
        ((b"a\x02", b""), (b"a", b"")),
    ],
)
def test_row_with_other_content_has_another_id(row: tuple[bytes, bytes], changed: tuple[bytes, bytes]) -> None:
    first, second = (
        with_ids(rows_of([one]), QueryBatch("q", 0, "r"), 0, 0)[1][0].as_py()[:42] for one in (row, changed)
    )
    assert first != second


def test_sizes_are_not_less_than_what_rocketmq_stores() -> None:
    """With the properties that it adds to each message of a batch, for a cluster with a long name."""
    body, own = b"x" * 9, b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02"
    topic = "t" * limits.TOPIC_CHARS_MAX
    added = b"WAIT\x01true\x02CLUSTER\x01" + b"c" * 127 + b"\x02"
    stored = stored_message.encode(
        StoredMessage(topic, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, body, 0, own + added), 0
    )
    assert sum(map(len, stored)) <= stored_sizes(rows_of([(body, own)]), topic).sum()
