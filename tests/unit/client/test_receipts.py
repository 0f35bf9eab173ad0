"""Receipts are values: comparable, unchangeable, and pickle to another process."""

import dataclasses
import pickle

import pytest

from halfmq.client.receipts import Prepared, PreparedHalf, Receipt, TransactionReceipt


@pytest.mark.parametrize(
    "value",
    [
        Receipt("M", "t", "b", 1, 2, "O"),
        TransactionReceipt("T", "COMMITTED", ("M",), position=7, durability="fsync"),
        Prepared("T", "g", "n", (PreparedHalf("M", "t", "b", "a:1", 5, 6),), True),
    ],
)
def test_receipts_are_values(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    field = dataclasses.fields(value)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, "other")
