"""`manage.py halfmq_relay`: publishes the outboxes of this project, until it is interrupted or terminated."""

import asyncio
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from halfmq.django.command_line import add_databases, add_http, at_least, databases_of, log_lines, reported
from halfmq.django.relays import relays_of
from halfmq.processes.relays import Ending, run_relays

#: As `halfmq relay`.
_STATUS: Final = {Ending.CUT: 1, Ending.SET_ASIDE: 4}


class Command(BaseCommand):
    """As `halfmq relay`, by the settings of the project."""

    help = (
        "Publish what mq.send_on_commit has written. Any number may run at once. On SIGTERM or SIGINT it finishes the batches in flight. "
        "Broker and database may be away, at the start too: it waits for them."
    )
    # Those of the web service may be wrong, and its tables may be checked elsewhere.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_databases(parser)
        parser.add_argument("--workers", type=at_least(1), help="Batches published at the same time, of each database.")
        parser.add_argument(
            "--once",
            action="store_true",
            help="Publish everything that is due, and exit; refused messages are retried. With 4 if messages are set aside.",
        )
        parser.add_argument(
            "--attempts", type=at_least(1), help="Refusals after which a message is set aside. Default: 10."
        )
        parser.add_argument(
            "--archive", action="store_true", help="Keep the rows of published messages until `halfmq_prune`."
        )
        add_http(parser, "http", "GET /metrics, /healthz and /readyz")

    def handle(self, *args: Any, **options: Any) -> None:
        log_lines(options["verbosity"])
        given = {name: options[name] for name in ("workers", "attempts") if options[name] is not None}
        with (
            reported() as wanted,
            relays_of(wanted, databases_of(wanted, options), archive=options["archive"], **given) as relays,
        ):
            ending = asyncio.run(run_relays(relays, options["http_host"], options["http_port"], once=options["once"]))
        if ending is not Ending.DONE:
            raise CommandError(_WHY[ending], returncode=_STATUS[ending])


_WHY: Final = {
    Ending.CUT: "stopped before everything was published",
    Ending.SET_ASIDE: "messages are set aside: the admin lists them, and `halfmq outbox` retries or skips them",
}
