"""A moment on the command line: ISO 8601, or a time span before now."""

from datetime import UTC, datetime
from typing import Final

from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import Commands

#: Year 9999: what ``datetime`` can show.
_MS_MAX: Final = 253_402_300_799_999


def moment_ms(commands: Commands, text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``2026-11-28T09:30:00+01:00``, also without seconds or zone (then UTC), or of ``2h``: two hours before
    ``now_ms``.

    Raises:
        typer.Exit: it is neither.
    """
    if text[:1].isdigit() and text[:-1].isdecimal() and text[-1:].isalpha():
        return max(0, now_ms - commands.span_ms(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        commands.fail(
            f"{text!r} is no time: use ISO 8601, such as 2026-11-28T09:30Z, or a time span before now, such as 2h",
            ExitStatus.USAGE,
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1_000))


def moment_text(ms: int) -> str:
    """``ms`` since 1970 as ISO 8601 in UTC, to the second; ``-`` if there is none."""
    if not 0 < ms <= _MS_MAX:
        return "-"
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
