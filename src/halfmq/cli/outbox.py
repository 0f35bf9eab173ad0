"""``halfmq outbox``: the state of an outbox, and the messages in it that need somebody. Needs its database, and no broker."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from halfmq.cli import output
from halfmq.cli.application import is_url, load_app
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import Commands, Json, Yes
from halfmq.errors import HalfmqError
from halfmq.model.durations import span
from halfmq.sql.rules.outbox import Delivery

if TYPE_CHECKING:
    # These need the extra sql.
    from halfmq.sql.alchemy.database import Database
    from halfmq.sql.alchemy.outbox import Outbox
    from halfmq.sql.alchemy.outbox_operations import Changed, ListedRow, Which

_T = TypeVar("_T")

_COMMANDS: Final = Commands("halfmq outbox")
app = _COMMANDS.group("State of an outbox; retry or skip messages that were set aside.")
_fail = _COMMANDS.fail
_STATES: Final = {one.shown: one for one in Delivery}
#: How long messages wait before it is worth a line that no relay holds a lane, seconds.
_LATE_S: Final = 10.0
#: Rejections that a change of many prints.
_SHOWN_MAX: Final = 5

_Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP|URL",
        help="The application with a relay of the outbox, or the URL of its database, such as postgresql+psycopg://HOST/NAME.",
    ),
]
_Table = Annotated[
    str,
    typer.Option(metavar="[SCHEMA.]TABLE", help="Table of the outbox. Default: that of the application, or mq_outbox."),
]
_MessageId = Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="One message.")]
_Key = Annotated[
    str,
    typer.Option("--sharding-key", help="What stops this sharding key: its message that was refused or set aside."),
]
_All = Annotated[bool, typer.Option("--all", help="All messages that are set aside.")]
_Operator = Annotated[str, typer.Option(envvar="HALFMQ_OPERATOR", help="Your name; kept with the message.")]
_Reason = Annotated[str, typer.Option(help="The reason; kept with the message.")]


class _Opened:
    """An outbox in a database."""

    def __init__(self, outbox: "Outbox", database: "Database") -> None:
        self.operations = outbox.operations
        self.table = outbox.table.fullname
        self._database = database
        self.name = f"{self.table} in {database.name}"

    def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """One transaction. Raises typer.Exit: the database is away."""
        try:
            return self._database.run(lambda connection: function(connection, *arguments))
        except HalfmqError as error:
            _fail(str(error), ExitStatus.FAILED)
        finally:
            self._database.close()


def _open(target: str, table: str) -> _Opened:
    with _COMMANDS.reported():
        from halfmq.sql import Outbox
        from halfmq.sql.alchemy.database import Database, engine_of

        if is_url(target):
            return _Opened(Outbox.named(table or "mq_outbox"), Database.at(target, must_exist=True))
        specs = [spec for spec in load_app(_COMMANDS, target).outboxes() if table in ("", spec.outbox.table.fullname)]
        if not specs:
            _fail(f"{target} has no relay of {table or 'an outbox'}", ExitStatus.USAGE)
        if len(specs) > 1:
            names = ", ".join(spec.outbox.table.fullname for spec in specs)
            _fail(f"{target} has several outboxes: name one with --table, of {names}", ExitStatus.USAGE)
        (spec,) = specs
        return _Opened(spec.outbox, Database(engine_of(spec.sessions, spec.outbox.table)))


@app.command()
def status(target: _Target, table: _Table = "", as_json: Json = False) -> None:
    """How many messages are in which state, how old the oldest one is, and which relays hold lanes."""
    opened = _open(target, table)
    figures, lanes = opened.run(opened.operations.status)
    by_state = {one.shown: figures.rows.get(one, 0) for one in Delivery}
    if as_json:
        document = {
            "outbox": opened.name, "rows": by_state, "waiting": figures.waiting, "oldest_s": figures.oldest_s,
            "lanes": [one._asdict() for one in lanes],
        }  # fmt: skip
        output.document(msgspec.json.encode(document))
        return
    if figures.rows:
        output.table(("STATE", "MESSAGES"), [(state, str(count)) for state, count in by_state.items() if count])
    oldest = "" if figures.oldest_s is None else f", the oldest for {span(round(figures.oldest_s * 1000))}"
    output.say(f"{figures.waiting} waiting{oldest}")
    if lanes:
        output.table(("LANE", "HELD BY", "LEASE", "MESSAGES"), [_lane(*one) for one in lanes])
    # Not of those that are retried, between whose attempts nobody holds their lane.
    is_late = figures.waiting == by_state["waiting"] and (figures.oldest_s or 0) >= _LATE_S
    if is_late and not any(one.lease_s > 0 for one in lanes):
        output.note(f"no relay is publishing {opened.name}: run `halfmq relay`; if it runs, its log says why it waits")


def _lane(lane: int, holder: str, lease_s: float, messages: int) -> tuple[str, ...]:
    lease = f"for {span(round(lease_s * 1000))}" if lease_s > 0 else "ended"
    return str(lane), holder, lease, str(messages)


@app.command("list")
def list_(
    target: _Target,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only this state of {', '.join(_STATES)}; may be repeated. Default: set-aside and retrying.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("--max", help="Maximum number of messages.", min=1, max=100_000)] = 100,
    table: _Table = "",
    as_json: Json = False,
) -> None:
    """List messages, oldest first, with the reason why they were refused."""
    for one in state or ():
        if one not in _STATES:
            _fail(f"no state {one!r}: use {', '.join(_STATES)}", ExitStatus.USAGE)
    states = [_STATES[one] for one in state or ("set-aside", "retrying")]
    opened = _open(target, table)
    rows = opened.run(opened.operations.listed, states, count)
    if as_json:
        listed = [{**row._asdict(), "delivery": row.delivery.shown} for row in rows]
        output.document(msgspec.json.encode({"outbox": opened.name, "messages": listed}))
        return
    if rows:
        output.table(("AGE", "STATE", "MESSAGE", "TOPIC", "SHARDING KEY"), map(_row, rows), map(_below, rows))
    shown = "" if state else f"; --state lists those that are not {' or '.join(one.shown for one in states)}"
    output.note(f"{len(rows)} shown of {opened.name}{shown}")


def _row(row: "ListedRow") -> tuple[str, ...]:
    return span(round(row.age_s * 1000)), row.delivery.shown, row.message_id, row.topic, row.order_key or "-"


def _below(row: "ListedRow") -> str:
    parts = [f"{row.attempts} attempt{'' if row.attempts == 1 else 's'}"] if row.attempts else []
    if row.due_in_s is not None:
        parts.append(f"the next {'now' if row.due_in_s <= 0 else f'in {span(round(row.due_in_s * 1000))}'}")
    return ": ".join(part for part in (", ".join(parts), row.reason) if part)


@app.command()
def retry(
    target: _Target, message_id: _MessageId = "", key: _Key = "", every: _All = False, table: _Table = ""
) -> None:
    """Let messages that were refused or set aside be published again, and with them what is behind them.

    One message (MESSAGE_ID), what stops a sharding key (--sharding-key), or all that are set aside (--all).
    """
    opened = _open(target, table)
    which = _which(message_id, key, every)
    _change(opened, which, "waiting again", lambda after: opened.run(opened.operations.retry, which, after))


@app.command()
def skip(
    target: _Target,
    operator: _Operator,
    message_id: _MessageId = "",
    key: _Key = "",
    every: _All = False,
    reason: _Reason = "",
    yes: Yes = False,
    table: _Table = "",
) -> None:
    """Never publish messages, and let those behind them go on. This cannot be undone.

    One message (MESSAGE_ID), what stops a sharding key (--sharding-key), or all that are set aside (--all).
    """
    opened = _open(target, table)
    which = _which(message_id, key, every)
    number = opened.run(opened.operations.count, which)
    if number and not yes:
        output.note(f"{_messages(number)} of {opened.name} will never be published, whose transactions committed")
        _COMMANDS.require_typed(
            message_id or key or opened.table,
            f"Type the {'message id' if message_id else 'sharding key' if key else 'name of the table'} to confirm",
        )
    _change(opened, which, "skipped", lambda after: opened.run(opened.operations.skip, which, operator, reason, after))


def _which(message_id: str, key: str, every: bool) -> "Which":
    if (bool(message_id), bool(key), every).count(True) != 1:
        _fail("name one message (MESSAGE_ID), or a --sharding-key, or --all", ExitStatus.USAGE)
    from halfmq.sql.alchemy.outbox_operations import Which

    return Which(message_id, key)


def _change(opened: _Opened, which: "Which", done: str, page: "Callable[[int], Changed]") -> None:
    changed, refused, after = 0, dict[str, str](), 0
    while True:
        answer = page(after)
        changed += len(answer.message_ids)
        refused |= answer.refused
        after = answer.after_seq
        if not after:
            break
    for message_id, why in list(refused.items())[:_SHOWN_MAX]:
        output.note(f"{message_id}: {why}")
    if not changed and not refused and (which.message_id or which.order_key):
        what = f"no message {which.message_id}" if which.message_id else f"nothing that stops {which.order_key!r}"
        _fail(f"there is {what} in {opened.name}", ExitStatus.NOT_FOUND)
    left = f"; {_messages(len(refused))} left alone" if refused else ""
    output.say(f"{done}: {_messages(changed)} of {opened.name}{left}")
    if refused:
        raise typer.Exit(ExitStatus.REFUSED)


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"
