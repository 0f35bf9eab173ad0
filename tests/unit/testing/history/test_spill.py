"""What outgrows memory comes back from files: all of it, together with what belongs to it, in order."""

import random
from pathlib import Path

from halfmq.testing.history.spill import ExternalSort, Row, Shuffle, SpillDirectory


def test_a_shuffle_gives_all_rows_of_a_key_together(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path)
    shuffle = Shuffle("s", 7, directory)
    dice = random.Random(1)
    rows = [(f"k{dice.randrange(200)}", number) for number in range(5_000)]
    for number, row in enumerate(rows):
        shuffle.add(row)
        if number in (1_000, 1_001, 3_000):
            shuffle.spill()
            assert not any(shuffle.parts)
    found: list[Row] = []
    homes: dict[str, int] = {}
    for part, some in enumerate(shuffle.partitions()):
        found += some
        for row in some:
            assert homes.setdefault(row[0], part) == part
    assert sorted(found) == sorted(rows)
    assert directory.bytes_written > 0
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_partition_is_gone_after_it_was_given(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path)
    shuffle = Shuffle("s", 1, directory)
    shuffle.add(("a", 1))
    shuffle.spill()
    assert [list(map(tuple, part)) for part in shuffle.partitions()] == [[("a", 1)]]
    assert list(shuffle.partitions()) == []
    directory.close()


def test_runs_are_merged_in_order(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path)
    sort = ExternalSort("s", directory)
    dice = random.Random(2)
    rows = [(dice.randrange(9), number, f"m{number}") for number in range(3_000)]
    dice.shuffle(rows)
    for number, row in enumerate(rows):
        sort.rows.append(row)
        if number % 700 == 0:
            sort.spill()
    assert list(sort.sorted()) == sorted(rows)
    directory.close()


def test_nothing_is_written_while_everything_fits(tmp_path: Path) -> None:
    directory = SpillDirectory(tmp_path)
    sort = ExternalSort("s", directory)
    sort.rows += [(2,), (1,)]
    assert list(sort.sorted()) == [(1,), (2,)]
    assert directory.bytes_written == 0
    assert list(tmp_path.iterdir()) == []
