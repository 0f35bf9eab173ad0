"""What is a call of a branch, wherever it comes from: a message, the headers of a request, or the application."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.test_message import message

from halfmq.client.branch import OPS, Branch, checked_branch
from halfmq.errors import UsageError

GOOD = Branch("tcc.5-7f000001-1-1-0-1", "shop", "1", "try", "broker-a", 7)
#: Malformed values of a call, each of which would otherwise be an error of a barrier or of a database.
MALFORMED: dict[str, dict[str, Any]] = {
    "op": {"op": "undo"}, "op in capitals": {"op": "TRY"}, "no op": {"op": ""},
    "no id": {"gid": ""}, "long id": {"gid": "g" * 3_000}, "id of words": {"gid": "a b"}, "foreign id": {"gid": "ä"},
    "no branch": {"branch": ""}, "long branch": {"branch": "1" * 3_000}, "branch of words": {"branch": "a b"},
}  # fmt: skip
READERS: dict[str, Callable[[Branch], object]] = {
    "message": lambda branch: Branch.of(
        message(**{name: value for name, value in branch.properties().items() if value})
    ),
    "headers": lambda branch: Branch.from_headers(branch.headers()),
    "barrier": checked_branch,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_call_of_a_branch_is_refused_in_few_words(what: str, reader: str) -> None:
    with pytest.raises(UsageError, match="is no call of a branch") as refused:
        READERS[reader](GOOD._replace(**MALFORMED[what]))
    assert len(str(refused.value)) < 400
    for op in OPS:
        READERS[reader](GOOD._replace(op=op))


@pytest.mark.parametrize(
    "call", [None, "x", 5, tuple(GOOD), GOOD._replace(gid=5), GOOD._replace(branch=None), GOOD._replace(op=[])]
)  # type: ignore[arg-type]
def test_what_is_of_another_type_is_refused_too(call: Any) -> None:
    with pytest.raises(UsageError, match="is no call of a branch"):
        checked_branch(call)


@pytest.mark.parametrize("headers", [None, 5, "x", [("hmq-tcc-id", "g")], {b"hmq-tcc-id": b"g"}, {"hmq-tcc-id": 5}])
def test_headers_that_are_none(headers: Any) -> None:
    with pytest.raises(UsageError, match="are no headers"):
        Branch.from_headers(headers)


@pytest.mark.parametrize("what", [None, "x", 5, {"HMQ_TCC_ID": "g"}])
def test_what_is_no_message_is_no_call(what: Any) -> None:
    with pytest.raises(UsageError, match="is no message"):
        Branch.of(what)


@pytest.mark.parametrize("name", GOOD._fields)
def test_what_is_missing_is_named_as_where_it_is_missing(name: str) -> None:
    headers, properties = GOOD.headers(), GOOD.properties()
    header, of = list(headers)[GOOD._fields.index(name)], list(properties)[GOOD._fields.index(name)]
    with pytest.raises(UsageError, match=f"the request is no call of a branch: it has no {header} "):
        Branch.from_headers({**headers, header: ""})
    with pytest.raises(UsageError, match=f"> is no call of a branch: it has no {of} "):
        Branch.of(message(**{one: value for one, value in properties.items() if one != of}))
