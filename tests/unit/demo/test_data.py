"""The source file is what the documents say it is."""

from pathlib import Path

import numpy as np
import pytest
from demo.data import (
    BASKETS_IN_ALL,
    LINES_IN_ALL,
    NO_DEPARTMENT,
    NOTHING_TO_PAY,
    UNKNOWN_PRODUCT,
    Source,
    prepare,
    read_source,
)
from demo.reconcile import expect


@pytest.mark.slow
def test_whole_source_has_the_documented_size_and_rules() -> None:
    lines = read_source()
    assert lines.num_rows == LINES_IN_ALL
    expected = expect(BASKETS_IN_ALL)
    assert expected.baskets == BASKETS_IN_ALL
    assert expected.rejected == {NOTHING_TO_PAY: 478, UNKNOWN_PRODUCT: 4_498 - 160}
    assert len(expected.orders.basket_ids) == BASKETS_IN_ALL - 4_816
    assert sum(expected.revenue.values()) == expected.orders.total_cents == 429_176_152


def test_first_baskets_come_by_time_and_whole(tmp_path: Path) -> None:
    assert prepare(tmp_path, 500) == 500
    source = Source(tmp_path)
    baskets = [source.basket(number) for number in range(len(source))]
    assert [basket.sold_at for basket in baskets] == sorted(basket.sold_at for basket in baskets)
    everything = read_source()
    ids = everything["basket_id"].to_numpy()
    for basket in (baskets[0], baskets[250], baskets[-1]):
        mine = everything.filter(ids == basket.basket_id)
        assert len(basket.lines) == mine.num_rows
        assert basket.total_cents == sum(mine["sales_cents"].to_pylist())
        assert basket.points == basket.total_cents // 100


def test_shares_are_whole_and_do_not_overlap(tmp_path: Path) -> None:
    prepare(tmp_path, 101)
    source = Source(tmp_path)
    shares = [list(source.share(index, 3)) for index in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(101))
    assert [list(source.share(index, 3)) for index in range(3)] == shares


def test_money_is_exact_cents() -> None:
    lines = read_source(2_000)
    assert lines["sales_cents"].type == "int64"
    assert set(np.unique(lines["department"].to_numpy(zero_copy_only=False)).tolist()) > {"GROCERY", NO_DEPARTMENT}
