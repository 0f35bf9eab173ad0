"""The vectorised hash gives the same as the one that RocketMQ's clients use."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from halfmq.model.ids import java_string_hash
from halfmq.spark.sink.hashes import java_hashes

TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=40), st.text("abc-XYZ09|", max_size=70)), max_size=12)


@settings(deadline=None)
@given(TEXTS, st.integers(0, 3))
@example(["A-1", "", None, "z" * 2_000], 0)
@example(["a" * 64, "b"], 0)
@example(["€", "a", "\U0001f600", "€"], 1)
def test_same_hash_as_one_by_one(texts: list[str | None], skipped: int) -> None:
    column = pa.array([None if text is None else text.encode() for text in texts], pa.binary())[skipped:]
    expected = [java_string_hash(text or "") for text in texts[skipped:]]
    assert java_hashes(column).tolist() == expected
