"""``model.cached``."""

import pytest

from halfmq.model.cached import Cached


def test_each_result_is_computed_once() -> None:
    asked: list[str] = []

    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    cached: Cached[str, int] = Cached(length, 10)
    assert [cached[text] for text in ("ab", "", "ab", "")] == [2, 0, 2, 0]
    assert asked == ["ab", ""]


def test_it_begins_anew_at_its_bound() -> None:
    cached: Cached[int, str] = Cached(str, 3)
    for number in range(10):
        assert cached[number] == str(number)
        assert len(cached) <= 3
    assert list(cached) == [9]


def test_an_argument_whose_computation_raises_is_not_kept() -> None:
    cached: Cached[bytes, str] = Cached(bytes.decode, 3)
    with pytest.raises(UnicodeDecodeError):
        cached[b"\xff"]
    assert not cached
