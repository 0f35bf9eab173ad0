"""The plan of a comparison from its options; the comparison itself is tested in tests/spark/jobs/test_reconcile.py."""

from decimal import Decimal

import pytest

from halfmq.errors import UsageError
from halfmq.spark.jobs.differences import Pair, plan


def test_columns_may_have_other_names_in_messages() -> None:
    found = plan(["id=order.id"], ["total", "at = sold_at"], ["total"], {"total": "0.01"})
    assert found.keys == (Pair("id", "order.id"),)
    assert found.compare == (Pair("total", "total"), Pair("at", "sold_at"))
    assert found.tolerances == {"total": Decimal("0.01")}
    assert [pair.table for pair in found.pairs] == ["id", "total", "at"]


@pytest.mark.parametrize(
    ("keys", "compare", "tolerances", "error"),
    [
        ([], [], {}, "--key is empty"),
        (["id="], [], {}, "'id=' is no column"),
        (["=id"], [], {}, "'=id' is no column"),
        (["id", "id=x"], [], {}, "named twice"),
        (["id"], [], {"total": "1"}, "total, which is not compared"),
        (["id"], ["total"], {"total": "cent"}, "total=cent is no number"),
        (["id"], ["total"], {"total": "-1"}, "total=-1 is no number"),
        (["id"], ["total"], {"total": "NaN"}, "total=NaN is no number"),
        (["id"], ["total"], {"total": "1e18"}, "total=1e18 has too many digits"),
        (["id"], ["total"], {"total": "1e-19"}, "total=1e-19 has too many digits"),
        (["id"], ["total"], {"total": "1e999999"}, "total=1e999999 has too many digits"),
    ],
)
def test_what_is_wrong_is_named(keys: list[str], compare: list[str], tolerances: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        plan(keys, compare, [], tolerances)
