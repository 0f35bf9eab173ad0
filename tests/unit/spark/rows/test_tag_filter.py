"""Option ``tags``: the text of the tag decides."""

import numpy as np
import pyarrow as pa
import pytest

from halfmq.model import properties as props
from halfmq.model.ids import java_string_hash
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.spark.rows.stored_rows import StoredRows, record_batch, with_tags

V4 = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def rows(tags: list[str | None], *, cut: int | None = None) -> StoredRows:
    """One message for each tag. ``cut``: the message whose stated length of properties is too large."""
    messages = []
    for number, tag in enumerate(tags):
        pairs = props.encode({"UNIQ_KEY": f"U{number}", **({"TAGS": tag} if tag else {})})
        body = b"body %d" % number
        made = StoredMessage("orders", 0, number, 0, 0, 1, V4, 2, V4, 0, 0, body, body_crc_of(body), pairs)
        data = bytearray(b"".join(encode(made, 0)))
        if number == cut:
            at = len(data) - len(pairs) - 2
            data[at : at + 2] = (9_999).to_bytes(2, "big")
        messages.append(bytes(data))
    sizes = np.array([len(one) for one in messages], np.int64)
    return StoredRows(
        buffer=pa.py_buffer(b"".join(messages)), starts=np.cumsum(sizes) - sizes, sizes=sizes,
        queue_offsets=np.arange(40, 40 + len(tags)), store_times_ms=np.arange(len(tags)),
        transactional=np.array([number % 2 == 1 for number in range(len(tags))]), topic="orders", broker="", queue=0,
    )  # fmt: skip


def nothing_bad(offset: int, why: str) -> None:
    raise AssertionError((offset, why))


def test_only_messages_with_one_of_the_tags_and_all_their_fields() -> None:
    found = with_tags(rows(["a", "b", None, "a", "ab"]), ("a", "x"), nothing_bad)
    assert found.queue_offsets.tolist() == [40, 43]
    assert (found.store_times_ms.tolist(), found.transactional.tolist()) == ([0, 3], [False, True])
    batch = record_batch(found, ("value", "tag", "message_id"), nothing_bad).to_pylist()
    assert [tuple(row.values()) for row in batch] == [(b"body 0", "a", "U0"), (b"body 3", "a", "U3")]
    assert len(with_tags(rows(["a", "b"]), ("c",), nothing_bad).starts) == 0


@pytest.mark.parametrize("tags", [(), ("a",)])
def test_rows_that_all_match_stay_as_they_are(tags: tuple[str, ...]) -> None:
    given = rows(["a", "a"])
    assert with_tags(given, tags, nothing_bad) is given


def test_another_tag_with_the_same_hash_is_another_tag() -> None:
    assert java_string_hash("Aa") == java_string_hash("BB")
    assert with_tags(rows(["Aa", "BB"]), ("BB",), nothing_bad).queue_offsets.tolist() == [41]


def test_damaged_properties_are_reported_and_have_no_tag() -> None:
    bad: list[tuple[int, str]] = []
    found = with_tags(rows(["a", "a"], cut=0), ("a",), lambda offset, why: bad.append((offset, why)))
    assert found.queue_offsets.tolist() == [41]
    assert bad == [(40, "its properties are damaged")]
