"""Each kind of difference is found, and nothing else; on arrays, without processes."""

import numpy as np
import pytest
from demo.compare import Finding, compare, compare_cells
from demo.views import View, ints

BASKETS = [7, 7, 3, 9, 9, 9]
PRODUCTS = [1, 2, 1, 1, 2, 3]
QUANTITY = [1, 1, 2, 1, 1, 1]
CENTS = [100, 250, 5, 70, 80, 90]


def view_of(rows: list[tuple[int, int, int, int]]) -> View:
    columns = [ints([row[place] for row in rows]) for place in range(4)]
    return View.of_lines("view", *columns)


def rows() -> list[tuple[int, int, int, int]]:
    return list(zip(BASKETS, PRODUCTS, QUANTITY, CENTS, strict=True))


def counts(finding: Finding) -> tuple[int, int, int, int, int]:
    return finding.missing, finding.phantom, finding.duplicated, finding.different, finding.cents_off


def repeated(view: View, basket_id: int) -> View:
    """``view`` with one record twice."""
    at = int(np.flatnonzero(view.basket_ids == basket_id)[0])
    order = np.append(np.arange(len(view.basket_ids)), at)
    return View(
        view.name, view.basket_ids[order], view.cents[order], view.lines[order], view.quantity[order], view.checksum[order]
    )  # fmt: skip


def test_same_lines_in_another_order_agree() -> None:
    expected, shuffled = view_of(rows()), view_of(rows()[::-1])
    finding = compare(expected, shuffled)
    assert counts(finding) == (0, 0, 0, 0, 0)
    assert (finding.differences, finding.examples) == (0, [])
    assert (finding.records, finding.lines, finding.cents) == (3, 6, 595)


def test_missing_basket() -> None:
    finding = compare(view_of(rows()), view_of([row for row in rows() if row[0] != 3]))
    assert counts(finding) == (1, 0, 0, 0, -5)
    assert finding.examples == ["missing 3"]


def test_phantom_basket() -> None:
    finding = compare(view_of(rows()), view_of([*rows(), (4, 1, 1, 20)]))
    assert counts(finding) == (0, 1, 0, 0, 20)
    assert finding.examples == ["phantom 4"]


def test_duplicated_basket_is_not_called_different() -> None:
    expected = view_of(rows())
    finding = compare(expected, repeated(repeated(expected, 9), 9))
    assert counts(finding) == (0, 0, 2, 0, 480)
    assert finding.examples == ["duplicated 9"]


def test_one_cent() -> None:
    changed = rows()
    changed[0] = (7, 1, 1, 101)
    assert counts(compare(view_of(rows()), view_of(changed))) == (0, 0, 0, 1, 1)


def test_cent_moved_from_one_line_to_another_leaves_the_sum_and_is_found() -> None:
    changed = rows()
    changed[0], changed[1] = (7, 1, 1, 101), (7, 2, 1, 249)
    assert counts(compare(view_of(rows()), view_of(changed))) == (0, 0, 0, 1, 0)


@pytest.mark.parametrize("line", [(3, 2, 2, 5), (3, 1, 3, 5)])
def test_other_product_or_quantity_for_the_same_money_is_found(line: tuple[int, int, int, int]) -> None:
    changed = [line if row[0] == 3 else row for row in rows()]
    assert counts(compare(view_of(rows()), view_of(changed))) == (0, 0, 0, 1, 0)


def test_missing_and_phantom_of_equal_money_do_not_cancel() -> None:
    changed = [(4, *row[1:]) if row[0] == 3 else row for row in rows()]
    finding = compare(view_of(rows()), view_of(changed))
    assert counts(finding) == (1, 1, 0, 0, 0)
    assert finding.differences == 2


def test_view_without_lines_is_compared_by_money_alone() -> None:
    expected = view_of(rows())
    assert counts(compare(expected, View("totals", expected.basket_ids, expected.cents))) == (0, 0, 0, 0, 0)
    assert counts(compare(expected, View("totals", expected.basket_ids, expected.cents + 1))) == (0, 0, 0, 3, 3)


def test_nothing_at_all_is_all_missing() -> None:
    finding = compare(view_of(rows()), view_of([]))
    assert counts(finding) == (3, 0, 0, 0, -595)


def test_cells_are_compared_one_by_one() -> None:
    expected = {("DELI", 1): 5, ("MEAT", 1): 7, ("MEAT", 2): 1}
    found = {("DELI", 1): 6, ("MEAT", 1): 6, ("FUEL", 1): 1}
    finding = compare_cells("revenue", expected, found)
    assert counts(finding) == (1, 1, 0, 2, 0)
    assert finding.examples == ["missing MEAT 2", "phantom FUEL 1", "different DELI 1; MEAT 1"]
    assert compare_cells("revenue", expected, dict(expected)).differences == 0
