"""Names of transaction branches in X/Open's model."""

from itertools import product

import pytest

from halfmq import UsageError, Xid
from halfmq.limits import BRANCH_CHARS_MAX
from halfmq.model.ids import UNIQUE_ID_CHARS, is_generated_id, is_transaction_id

XIDS = [
    Xid(number, gtrid, bqual)
    for number, gtrid, bqual in product(
        (0, 1, 2**31 - 1), (b"a", b"ab", b"\x00", b"\xff" * 64), (b"", b"a", b"b", b"\x00" * 64)
    )
]


def test_each_xid_has_an_id_of_its_own_which_counts_as_chosen_and_text_that_is_read_back() -> None:
    ids = {xid.tx_id for xid in XIDS}
    assert len(ids) == len(XIDS)
    assert Xid(0, b"ab").tx_id != Xid(0, b"a", b"b").tx_id
    for xid in XIDS:
        assert is_transaction_id(xid.tx_id)
        assert not is_generated_id(xid.tx_id)
        assert len(xid.tx_id) not in UNIQUE_ID_CHARS
        assert Xid.parse(str(xid)) == xid
        assert len(str(xid)) <= BRANCH_CHARS_MAX
    assert (
        Xid(1, b"g", b"b").tx_id == Xid(1, b"g", b"b").tx_id == "xid.d811c54bbe9a601de7ee6ccd78b1d52dd023f992cd73bfa5"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        (-1, b"g"),
        (2**31, b"g"),
        ("1", b"g"),
        (True, b"g"),
        (1, b""),
        (1, b"g" * 65),
        (1, "g"),
        (1, b"g", b"b" * 65),
        (1, b"g", None),
    ],
)
def test_what_is_no_xid_is_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises(UsageError):
        Xid(*wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "01.61.62",
        "00.61.62",
        "",
        "1",
        "1.67",
        "1..62",
        "1.6.62",
        "1.GG.",
        "-1.67.62",
        "1.67.62.",
        "99999999999.67.",
        " 1.67.62",
        None,
    ],
)
def test_text_that_is_no_xid_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Xid.parse(text)
