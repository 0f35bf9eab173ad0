"""docs/errors.md has every error, every rejection and every exit status that the code has, with its code, and no other."""

import ast
import inspect
import re

import pytest

from halfmq import errors, limits
from halfmq.broker.remoting.refusals import CODES
from halfmq.client.refusals import refusal
from halfmq.core.decision import Why
from halfmq.errors import HalfmqError
from halfmq.spark.sink.broker import _refused
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.half_batches import EXT_FENCED, EXT_OTHER_STREAM
from halfmq.wire.remoting.header import Request
from tests.documents.errors_page import PAGE, PARTS
from tests.documents.pages import ROOT, table
from tests.support.transactions_page import made

_NAME = "docs/errors.md"
CLASSES: dict[str, type[HalfmqError]] = {
    name: value for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, HalfmqError)
}
#: Reasons that no peer gets: the broker itself repeats the command.
_INTERNAL = {Why.SEARCH_AGAIN}
#: Reasons that come with a verdict.
_WITH_VERDICT = {Why.ALREADY_SETTLED, Why.VERDICT_CONFLICT}
#: Reasons that only half batches of a query get, which Spark's sink sends.
_OF_QUERIES = {Why.FENCED: EXT_FENCED, Why.OTHER_STREAM: EXT_OTHER_STREAM}


def bare(cell: str) -> str:
    return cell.replace("`", "").replace("*", "")


def test_every_error_has_its_row_with_its_code_and_fields() -> None:
    rows = {bare(row["class"]): row for row in table(_NAME, "What is raised")}
    assert rows.keys() == CLASSES.keys()
    for name, row in rows.items():
        said = (bare(row["code"]), bare(row["retriable"]) == "yes", bare(row["outcome known"]) == "yes")
        assert said == (CLASSES[name].code, CLASSES[name].retriable, CLASSES[name].outcome_known), name


def test_the_paragraph_about_subclasses_is_the_tree() -> None:
    (text,) = re.findall(r"^Subclasses: (.*?)\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    order = [bare(row["class"]) for row in table(_NAME, "What is raised")]
    said: dict[str, str] = {}
    for part in text.split(";"):
        *names, base = re.findall(r"`(\w+)`", part)
        if "everything from" in part:
            names = order[order.index(names[0]) : order.index(names[1]) + 1]
        said |= dict.fromkeys(names, base)
    unknown = {
        "SendTimeout": "OutcomeUnknown",
        "NoReply": "OutcomeUnknown",
        "TransactionUnknown": "OutcomeUnknown",
    }  # "base class of the next three"
    bases = {name: found.__bases__[0].__name__ for name, found in CLASSES.items()}
    assert said | unknown == {name: base for name, base in bases.items() if base not in ("HalfmqError", "Exception")}


def test_every_reason_of_a_rejection_has_its_row_with_its_code_and_what_our_client_raises() -> None:
    rows = {bare(row["reason (`Why`)"]): row for row in table(_NAME, "What the broker rejects")}
    assert rows.keys() == {why.name for why in Why if why not in _INTERNAL}
    for name, row in rows.items():
        why = Why[name]
        assert int(row["code"]) == CODES[why], name
        standing = "UNDECIDED" if why is Why.STILL_UNDECIDED else "COMMITTED" if why in _WITH_VERDICT else ""
        raised: HalfmqError = refusal(CODES[why], "", "a request", standing)
        if why in _OF_QUERIES:
            with pytest.raises(HalfmqError) as by_sink:
                _refused(Request(code=CODES[why], opaque=1, ext={_OF_QUERIES[why]: "true"}), "half batch")
            raised = by_sink.value
        assert type(raised).__name__ in re.findall(r"`(\w+)`", row["our client raises"]), name


def numbers(text: str) -> set[int]:
    """Those of a list such as "1, 19 to 21"."""
    found = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_code_that_the_broker_responds_with_is_on_the_page_and_every_code_of_the_page_exists() -> None:
    sent = set()
    for path in (ROOT / "src/halfmq/broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ResponseCode":
                sent.add(int(ResponseCode[node.attr]))
    assert len(sent) > 15
    listed = [row["code"] for row in table(_NAME, "What the broker rejects")]
    others = [row["code"] for row in table(_NAME, "Other error responses")]
    on_page = set().union(*map(numbers, (*listed, *others)))
    assert on_page == sent - {ResponseCode.SUCCESS}


def test_the_limits_are_those_of_the_code() -> None:
    (text,) = re.findall(r"^### Limits\n(.*?)^###", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for count in (
        limits.UNDECIDED_MAX, limits.UNDECIDED_TOTAL_MAX, limits.UNDECIDED_GROUPS_MAX, limits.DELAYED_TOTAL_MAX,
        limits.PRODUCERS_SET_MAX, limits.QUERY_UNDECIDED_MAX,
    ):  # fmt: skip
        assert re.search(rf"(?<![\d,]){count:,}(?![\d,])", text), count
    for size in (limits.UNDECIDED_BYTES_MAX, limits.UNDECIDED_TOTAL_BYTES_MAX):
        assert f"{size >> 30} GiB" in text


def test_the_exit_statuses_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert made(page, PARTS) == page, "run: python -m tests.documents.errors_page"
