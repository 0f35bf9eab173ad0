"""``halfmq query``: the queries whose decided batches a broker remembers, such as Spark streams that write to it. Needs
a running broker.
"""

from typing import Annotated, Final

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Operator, Reason, Timeout, Url, Yes
from halfmq.model.pending import QueryInfo
from halfmq.model.query_batch import query_text
from halfmq.model.text_fields import PageFields, write_fields
from halfmq.wire.remoting import half_batches as wire
from halfmq.wire.remoting.codes import HMQ_FORGET_QUERY, HMQ_QUERIES

_COMMANDS: Final = Commands("halfmq query")
app = _COMMANDS.group(
    "List the queries whose batches the broker remembers, such as Spark streams that write to it; let it forget one."
)
_ask, _fail = _COMMANDS.ask, _COMMANDS.fail


@app.command("list")
def list_(
    unused: Annotated[bool, typer.Option("--unused", help="Only queries that have decided nothing.")] = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List queries with the last batch that each has decided, in the order in which the broker got to know them."""
    rows = [row for row in _all(url, timeout) if not unused or row.last_batch < 0]
    if as_json:
        output.document(msgspec.json.encode({"total": len(rows), "queries": rows}))
        return
    if rows:
        output.table(("QUERY", "TOPIC", "GROUP", "STREAM", "LAST BATCH", "UNDECIDED"), map(_row, rows))
    output.note(f"{len(rows)} queries")


def _row(row: QueryInfo) -> tuple[str, ...]:
    last = "-" if row.last_batch < 0 else f"{row.last_batch}{' (over)' if row.is_over else ''}"
    return row.query, row.topic or "-", row.group, row.stream or "-", last, str(row.undecided)


@app.command()
def forget(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Name of the query: txnAppId, or Spark's id of a stream.")
    ],
    operator: Operator,
    reason: Reason,
    topic: Annotated[
        str | None,
        typer.Option(help="Topic of the query, as `query list` shows it; required if several have this name."),
    ] = None,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Let the broker forget a query and what it has decided. This cannot be undone.

    For queries that will never write again. A writer that repeats a batch afterwards writes it a second time.
    """
    found = [row for row in _all(url, timeout) if row.query == query and topic in (None, row.topic, row.topic or "-")]
    if not found:
        _fail(f"the broker knows no {query_text(query, topic or '')}", ExitStatus.NOT_FOUND)
    if len(found) > 1:
        topics = ", ".join(row.topic or "-" for row in found)
        _fail(f"several queries have the name {query}: name one with --topic, of {topics}", ExitStatus.USAGE)
    (row,) = found
    output.note(_consequence(row))
    if not yes:
        _COMMANDS.require_typed(query, "Type the name of the query to let the broker forget it")
    fields = write_fields(wire.ForgetQueryFields(query, row.topic, operator, reason))
    _ask(url, HMQ_FORGET_QUERY, fields, timeout, changes=True)
    output.say(f"{query_text(query, row.topic)} is forgotten")


def _consequence(row: QueryInfo) -> str:
    what = query_text(row.query, row.topic)
    if row.last_batch < 0:
        return f"{what} of producer group {row.group} has decided no batch: nothing that it wrote is visible, and nothing can be written twice"
    return (
        f"{what} of producer group {row.group} has decided its batches up to {row.last_batch}. Once it is forgotten, each of them can be written "
        f"again: a stream that repeats batch {row.last_batch} from its checkpoint, or a batch write with txnVersion {row.last_batch} or less, makes "
        "its rows visible a second time"
    )


def _all(url: str, timeout: float) -> list[QueryInfo]:
    pages = _COMMANDS.pages(url, HMQ_QUERIES, lambda start: write_fields(PageFields(start=start)), timeout)
    return list({(row.query, row.topic): row for page in pages for row in wire.QUERIES.decode(page.body)}.values())
