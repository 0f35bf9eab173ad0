"""What commands share: options, blocking requests to a broker with their exit statuses, the confirmation of a change.

There is one connection for each call of ``ask`` or ``ask_each``, and no retries.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Annotated, Final, NoReturn

import typer

from halfmq.cli import output
from halfmq.cli.exit_status import MEANINGS, ExitStatus, exit_text
from halfmq.client.blocking import Answer, Connection, Unavailable
from halfmq.errors import (
    ConnectError,
    HalfmqError,
    LoginFailed,
    NotAuthorized,
    OutcomeUnknown,
    RequestFailed,
    SendTimeout,
    UsageError,
)
from halfmq.model import durations
from halfmq.model.address import ServerUrl, parse_url
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.operators import EXT_NEXT

URL: Final = "rocketmq://127.0.0.1:9876"
TIMEOUT_S: Final = 10.0
#: Upper bound of a timeout, seconds: a socket rejects very large ones.
WAIT_S_MAX: Final = 86_400.0
#: Exit status of a rejected request; other codes: FAILED.
STATUS_OF_CODE: Final[dict[int, ExitStatus]] = {
    ResponseCode.INVALID_PARAMETER: ExitStatus.USAGE,
    ResponseCode.NO_PERMISSION: ExitStatus.REFUSED,
    ResponseCode.ILLEGAL_OPERATION: ExitStatus.REFUSED,
    ResponseCode.SYSTEM_BUSY: ExitStatus.REFUSED,
    ResponseCode.SERVICE_NOT_AVAILABLE: ExitStatus.REFUSED,
    ResponseCode.TOPIC_NOT_EXIST: ExitStatus.NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: ExitStatus.NOT_FOUND,
}


def seconds(given: float) -> float:
    """Check an option. Raises typer.BadParameter."""
    if not 0 <= given <= WAIT_S_MAX:  # also false for NaN
        raise typer.BadParameter(f"{given} is out of range: 0 to {WAIT_S_MAX:,.0f} seconds")
    return given


def _positive_seconds(given: float) -> float:
    if given == 0:
        raise typer.BadParameter("the timeout must be positive")
    return seconds(given)


Url = Annotated[
    str,
    typer.Option(
        envvar="HALFMQ_URL",
        help="Address of the broker, rocketmq://HOST:PORT; its broker port or its name server port.",
    ),
]
Timeout = Annotated[
    float, typer.Option(callback=_positive_seconds, help="Seconds to wait for the broker's response; positive.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Operator = Annotated[str, typer.Option(envvar="HALFMQ_OPERATOR", help="Your name; recorded in the audit log.")]
Reason = Annotated[str, typer.Option(help="The reason; recorded in the audit log.")]
Preview = Annotated[bool, typer.Option("--preview", help="Show what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation; required without a terminal.")]


#: Pipelined requests: the broker writes them as one batch with one sync.
AT_ONCE_MAX: Final = 64


def ask(url: ServerUrl, code: int, ext: Mapping[str, str], timeout_s: float, body: bytes = b"") -> Answer:
    """Send one request and return the response, which may have any code.

    Raises:
        ConnectError: no connection; nothing was sent. LoginFailed: the server does not accept the user.
        SendTimeout: no response within ``timeout_s``; the request may have been executed.
        RequestFailed: the server does not support the command.
        ProtocolError: the server sent something other than the response.
    """
    (answer,) = ask_each(url, code, [ext], timeout_s, body)
    return answer


def ask_each(
    url: ServerUrl, code: int, exts: Sequence[Mapping[str, str]], timeout_s: float, body: bytes = b""
) -> Iterator[Answer]:
    """Send one request for each element of ``exts``, pipelined, and yield the responses in this order.

    Raises as ``ask``. After SendTimeout, any request without a response may have been executed.
    """
    try:
        connection = Connection.open(url.servers[0], url.security, timeout_s)
    except Unavailable as error:
        raise ConnectError(str(error), hint="check that the broker runs and that --url is right") from error
    with closing(connection):
        left, sent = iter(exts), deque[int]()
        while True:
            try:
                while len(sent) < AT_ONCE_MAX and (ext := next(left, None)) is not None:
                    sent.append(connection.send(code, ext, body))
                if not sent:
                    return
                answer = connection.receive(sent.popleft())
            except Unavailable as error:
                raise SendTimeout(
                    f"no response: {error}",
                    hint="try again; name servers before RocketMQ 5.0 do not respond to unknown commands",
                ) from error
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RequestFailed(
                    f"{url.servers[0]} does not support this command",
                    response_code=answer.code,
                    hint="it is not a halfmq broker, or an earlier version",
                )
            yield answer


class Commands:
    """One group of commands, such as ``halfmq tx``, which its error lines name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def group(self, help_: str) -> typer.Typer:
        """For the commands. Those of operators print data on standard output, and everything else on standard error."""
        return typer.Typer(help=help_, epilog=exit_text(self._name), no_args_is_help=True, add_completion=False)

    def ask(
        self, url: str, code: int, ext: dict[str, str], timeout_s: float, body: bytes = b"", *, changes: bool = False
    ) -> Answer:
        """The response to a request that succeeded. ``changes``: without a response it is unknown whether something was changed.

        Raises:
            typer.Exit: it did not succeed; the reason was printed.
        """
        with self.reported():
            try:
                answer = ask(parse_url(url), code, ext, timeout_s, body)
            except OutcomeUnknown as error:
                self.fail(str(error), ExitStatus.UNKNOWN_OUTCOME if changes else ExitStatus.FAILED)
        if answer.code != ResponseCode.SUCCESS:
            self.fail(f"{answer.remark} (code {answer.code})", STATUS_OF_CODE.get(answer.code, ExitStatus.FAILED))
        return answer

    def each(
        self, url: str, code: int, exts: Sequence[dict[str, str]], timeout_s: float, again: str
    ) -> Iterator[tuple[Answer, str]]:
        """The response to each of ``exts``, requests that change something, and why it was rejected, or an empty string. ``again``: what to
        do if one is not answered.

        Raises:
            typer.Exit: a request is invalid, or one was not answered; the reason was printed.
        """
        answered = 0
        try:
            for answer in ask_each(parse_url(url), code, exts, timeout_s):
                answered += 1
                if answer.code == ResponseCode.INVALID_PARAMETER:
                    self.fail(f"{answer.remark} (code {answer.code})", ExitStatus.USAGE)
                yield answer, "" if answer.code == ResponseCode.SUCCESS else f"{answer.remark} (code {answer.code})"
        except OutcomeUnknown as error:
            self.fail(
                f"{error}; {answered} of {len(exts)} requests were answered, and others may have been executed too: {again}",
                ExitStatus.UNKNOWN_OUTCOME,
            )
        except HalfmqError as error:
            self.fail(str(error), ExitStatus.REFUSED if isinstance(error, LoginFailed) else ExitStatus.FAILED)

    def pages(self, url: str, code: int, fields: Callable[[int], dict[str, str]], timeout_s: float) -> Iterator[Answer]:
        """The response for each page. ``fields``: of the request for the page that begins at a number.

        Raises:
            typer.Exit: as ``ask``, and ``following``.
        """
        start = 0
        while True:
            answer = self.ask(url, code, fields(start), timeout_s)
            yield answer
            start = self.following(answer, start)
            if not start:
                return

    def following(self, answer: Answer, start: int) -> int:
        """Start of the page after the one that begins at ``start``; 0: that one was the last.

        Raises:
            typer.Exit: it is not after ``start``: with a broker that ignores ``from``, every page is the first one.
        """
        following = number_in(answer, EXT_NEXT)
        if following and following <= start:
            self.fail(
                f"the broker says that the page from {start} is followed by one from {following}, so paging would never end",
                ExitStatus.FAILED,
            )
        return following

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Print an error of the block, and raise typer.Exit: with USAGE if what was given is wrong, with REFUSED if the user is not
        accepted or may not, else with FAILED."""
        try:
            yield
        except UsageError as error:
            self.fail(str(error), ExitStatus.USAGE)
        except (LoginFailed, NotAuthorized) as error:
            self.fail(str(error), ExitStatus.REFUSED)
        except HalfmqError as error:
            self.fail(str(error), ExitStatus.FAILED)

    def require_typed(self, name: str, prompt: str) -> None:
        """Ask an operator to type ``name``.

        Raises:
            typer.Exit: there is no terminal, or the operator typed something else.
        """
        if not has_terminal():
            self.fail("no terminal for the confirmation: use --yes", ExitStatus.USAGE)
        if output.prompt(prompt).strip() != name:
            self.fail("the confirmation does not match; nothing was changed", ExitStatus.FAILED)

    def span_ms(self, text: str) -> int:
        """The milliseconds of a time span such as ``90s``.

        Raises:
            typer.Exit: it is none.
        """
        ms = durations.span_ms(text)
        if ms is None:
            self.fail(
                f"{text!r} is not a time span: use up to {durations.SPAN_DIGITS_MAX} digits and s, m, h or d, such as 90s",
                ExitStatus.USAGE,
            )
        return ms

    def fail(self, text: str, status: ExitStatus) -> NoReturn:
        """Print an error. Raises typer.Exit: with ``status``, or with FAILED if these commands do not tell such errors apart."""
        output.note(f"{self._name}: {text}")
        raise typer.Exit(status if status in MEANINGS[self._name] else ExitStatus.FAILED)


def number_in(answer: Answer, name: str) -> int:
    """The number in field ``name``; 0 if it is absent, as with earlier brokers."""
    text = answer.ext.get(name, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def has_terminal() -> bool:
    """Whether somebody can type."""
    return sys.stdin.isatty()
