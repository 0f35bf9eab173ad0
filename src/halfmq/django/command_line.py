"""What the commands of ``manage.py`` have in common: databases, spans of time, ports of HTTP, and log lines."""

import logging
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.core.management.base import CommandError

from halfmq.client.log import logger
from halfmq.django.configuration import Configuration, configuration
from halfmq.errors import HalfmqError
from halfmq.model import durations
from halfmq.processes import LOOPBACK

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a number from ``least`` to ``most``."""

    def number(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ArgumentTypeError(f"{value} is not {least} or more" if most is None else f"not {least} to {most}")
        return value

    return number


def seconds(text: str) -> float:
    """The type of an option that is a span of time, such as ``7d``."""
    ms = durations.span_ms(text)
    if ms is None:
        raise ArgumentTypeError(
            f"{text!r} is not a time span: up to {durations.SPAN_DIGITS_MAX} digits and s, m, h or d"
        )
    return ms / 1000


def add_databases(parser: ArgumentParser) -> None:
    """``--database``, which ``databases_of`` reads."""
    parser.add_argument(
        "--database",
        action="append",
        metavar="ALIAS",
        help="Only this database; may be repeated. Default: those of HALFMQ['DATABASES'].",
    )


def databases_of(wanted: Configuration, options: dict[str, Any]) -> tuple[str, ...]:
    """The aliases of ``--database``, or all.

    Raises:
        CommandError: one is not in the setting.
    """
    named = tuple(dict.fromkeys(options["database"] or wanted.databases))
    for one in named:
        if one not in wanted.databases:
            raise CommandError(f"HALFMQ['DATABASES'] has no {one!r}, but {', '.join(wanted.databases)}", returncode=2)
    return named


def add_http(parser: ArgumentParser, kind: str, paths: str) -> None:
    """``--KIND-port`` and ``--KIND-host``."""
    parser.add_argument(
        f"--{kind}-port",
        type=at_least(0, 65_535),
        help=f"Port for {paths}; 0: any free port. Default: no HTTP.",
    )
    parser.add_argument(
        f"--{kind}-host",
        default=LOOPBACK,
        help="Address for that port. There is no password: whoever reaches it reads it.",
    )


@contextmanager
def reported() -> Iterator[Configuration]:
    """The setting for a block whose errors of halfmq are those of a command.

    Raises:
        CommandError: a HalfmqError, also of the setting, or a package of an extra is not installed.
    """
    try:
        yield configuration()
    except HalfmqError as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("h11", "prometheus_client"):
            raise
        raise CommandError(f"{error.name} is not installed: pip install 'halfmq[server]'") from error


def log_lines(verbosity: int) -> None:
    """Write what halfmq logs to standard error, unless the setting LOGGING says what becomes of it. ``verbosity`` 0: warnings, 1: what
    happens, 2 and more: everything."""
    ours = logger("halfmq")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    ours.addHandler(handler)
    ours.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
