"""What commands share: options, one request to a running broker with its exit status, and the confirmation of a change."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NoReturn

import typer

from halfmq.cli import output
from halfmq.cli.ask import ask, ask_each
from halfmq.cli.exit_status import MEANINGS, ExitStatus
from halfmq.client.connector import parse_url
from halfmq.errors import HalfmqError, OutcomeUnknown, UsageError
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request

URL: Final = "rocketmq://127.0.0.1:9876"
TIMEOUT_S: Final = 10.0
#: Upper bound of a timeout, seconds: a socket rejects very large ones.
WAIT_S_MAX: Final = 86_400.0
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Digits of a time span. In days that is still far below the maximum of the record's field.
_SPAN_DIGITS_MAX: Final = 9
_STATUS: Final[dict[int, ExitStatus]] = {
    ResponseCode.INVALID_PARAMETER: ExitStatus.USAGE,
    ResponseCode.ILLEGAL_OPERATION: ExitStatus.REFUSED,
    ResponseCode.SYSTEM_BUSY: ExitStatus.REFUSED,
    ResponseCode.SERVICE_NOT_AVAILABLE: ExitStatus.REFUSED,
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
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation; required without a terminal.")]


class Commands:
    """One group of commands, such as ``halfmq tx``, which its error lines name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def ask(
        self, url: str, code: int, ext: dict[str, str], timeout_s: float, body: bytes = b"", *, changes: bool = False
    ) -> Request[dict[str, str]]:
        """The response to a request that succeeded. ``changes``: without a response it is unknown whether something was changed.

        Raises:
            typer.Exit: it did not succeed; the reason was printed.
        """
        try:
            answer = ask(parse_url(url)[0], code, ext, timeout_s, body)
        except UsageError as error:
            self.fail(str(error), ExitStatus.USAGE)
        except OutcomeUnknown as error:
            self.fail(str(error), ExitStatus.UNKNOWN_OUTCOME if changes else ExitStatus.FAILED)
        except HalfmqError as error:
            self.fail(str(error), ExitStatus.FAILED)
        if answer.code != ResponseCode.SUCCESS:
            self.fail(f"{answer.remark} (code {answer.code})", _STATUS.get(answer.code, ExitStatus.FAILED))
        return answer

    def each(
        self, url: str, code: int, exts: Sequence[dict[str, str]], timeout_s: float, again: str
    ) -> Iterator[tuple[Request[dict[str, str]], str]]:
        """The response to each of ``exts``, requests that change something, and why it was rejected, or an empty string. ``again``: what to do if
        one is not answered.

        Raises:
            typer.Exit: a request is invalid, or one was not answered; the reason was printed.
        """
        answered = 0
        try:
            for answer in ask_each(parse_url(url)[0], code, exts, timeout_s):
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
        number, unit = text[:-1], text[-1:]
        if not (number.isascii() and number.isdigit() and len(number) <= _SPAN_DIGITS_MAX and unit in _UNITS_MS):
            self.fail(
                f"{text!r} is not a time span: use up to {_SPAN_DIGITS_MAX} digits and s, m, h or d, such as 90s",
                ExitStatus.USAGE,
            )
        return int(number) * _UNITS_MS[unit]

    def fail(self, text: str, status: ExitStatus) -> NoReturn:
        """Print an error. Raises typer.Exit: with ``status``, or with FAILED if these commands do not tell such errors apart."""
        output.note(f"{self._name}: {text}")
        raise typer.Exit(status if status in MEANINGS[self._name] else ExitStatus.FAILED)


def has_terminal() -> bool:
    """Whether somebody can type."""
    return sys.stdin.isatty()
