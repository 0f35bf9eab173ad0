"""``halfmq group``: consumer groups that hold retention. Needs a running broker."""

from typing import Annotated, Any, Final

import typer

from halfmq import limits
from halfmq.cli import output
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Timeout, Url
from halfmq.model.durations import span
from halfmq.wire.remoting import java_json
from halfmq.wire.remoting.attributes import change_body, hold_removed, hold_set, read_hold_change
from halfmq.wire.remoting.codes import RequestCode

_HOUR_MS: Final = 3_600_000
#: Groups in one response.
_PAGE: Final = 1_000

_COMMANDS: Final = Commands("halfmq group")
app = _COMMANDS.group("Let retention wait until a consumer group has read its topics.")
_ask = _COMMANDS.ask

_Group = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group; it is created if it does not exist.")]


@app.command()
def hold(
    group: _Group,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="All topics that the group holds from now on.")
    ],
    max_age_hours: Annotated[
        float,
        typer.Option(
            help="Messages older than this are not kept for the group; 0: no limit by age.",
            min=0,
            max=limits.HOLD_MS_MAX // _HOUR_MS,
        ),
    ] = limits.HOLD_MS / _HOUR_MS,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Keep messages of these topics until the group has read them.

    Within limits: the age, `halfmq serve --hold-bytes`, and a disk that is nearly full. What a group loses then is logged by the broker.
    """
    hold_ms = round(max_age_hours * _HOUR_MS)
    with _COMMANDS.reported():
        body = change_body(group, hold_set(topics, hold_ms))
    _ask(url, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, timeout, body)
    output.say(f"group {group} holds {', '.join(topics)}, {_until(hold_ms)}")


@app.command()
def release(group: _Group, url: Url = URL, timeout: Timeout = TIMEOUT_S) -> None:
    """Let the group hold nothing any more."""
    _ask(url, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, timeout, change_body(group, hold_removed()))
    output.say(f"group {group} holds nothing")


@app.command()
def holds(url: Url = URL, timeout: Timeout = TIMEOUT_S) -> None:
    """List the groups that hold topics, and the age at which each hold ends."""
    start, total = 0, 1
    while start < total:
        fields = {"groupSeq": str(start), "maxGroupNum": str(_PAGE)}
        answer = _ask(url, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields, timeout)
        table: dict[str, Any] = java_json.loads(answer.body)["subscriptionGroupTable"]
        for name, settings in table.items():
            held = read_hold_change(settings.get("attributes") or {})
            if held.topics:
                output.say(f"{name}: {', '.join(held.topics)}, {_until(held.hold_ms or 0)}")
        start, total = start + _PAGE, int(answer.ext.get("totalGroupNum", "0"))


def _until(hold_ms: int) -> str:
    return f"until {span(hold_ms)} old" if hold_ms else "whatever their age"
