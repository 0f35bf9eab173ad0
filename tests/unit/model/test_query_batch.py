"""Batches of a query as transaction ids."""

import pytest

from halfmq.model.ids import is_transaction_id
from halfmq.model.query_batch import BATCH_MAX, QueryBatch, of_tx_id, problem_of


@pytest.mark.parametrize(
    "batch",
    [
        QueryBatch("q", 0, "r", "*", "0af-9"),
        QueryBatch("q", 0, "r", "%RETRY%g|x"),
        QueryBatch("Q" * 40, BATCH_MAX, "9" * 12),
        QueryBatch("a.b-c_d", 7, "1f"),
    ],
)
def test_id_of_a_batch_is_a_transaction_id_and_names_it(batch: QueryBatch) -> None:
    assert problem_of(batch) == ""
    assert is_transaction_id(batch.tx_id)
    assert of_tx_id(batch.tx_id) == batch[:3]


@pytest.mark.parametrize(
    ("batch", "attempt", "problem"),
    [
        (QueryBatch("", 0, "r"), None, "name of a query"),
        (QueryBatch("a:b", 0, "r"), None, "name of a query"),
        (QueryBatch("Q" * 41, 0, "r"), None, "name of a query"),
        (QueryBatch("q\n", 0, "r"), None, "name of a query"),
        (QueryBatch("q", -1, "r"), None, "number from 0"),
        (QueryBatch("q", BATCH_MAX + 1, "r"), None, "number from 0"),
        (QueryBatch("q", 0, ""), None, "run of a query"),
        (QueryBatch("q", 0, "r:1"), None, "run of a query"),
        (QueryBatch("q", 0, "r", "a b"), None, "not a topic"),
        (QueryBatch("q", 0, "r", "t" * 128), None, "not a topic"),
        (QueryBatch("q", 0, "r", "orders", "s:1"), None, "id of a stream"),
        (QueryBatch("q", 0, "r", "*", "s" * 41), None, "id of a stream"),
        (QueryBatch("q", 0, "r", "", "s-1"), None, "id of a stream"),
        (QueryBatch("q", 0, "r"), "", "not an attempt"),
        (QueryBatch("q", 0, "r"), "a" * 41, "not an attempt"),
    ],
)
def test_names_that_do_not_fit_are_refused(batch: QueryBatch, attempt: str | None, problem: str) -> None:
    assert problem in problem_of(batch, attempt)


@pytest.mark.parametrize("text", ["", "a", "a:b", "a:b:c", "T1"])
def test_other_ids_are_not_batches(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        of_tx_id(text)
