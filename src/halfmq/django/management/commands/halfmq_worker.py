"""`manage.py halfmq_worker`: runs the consumers of this project, until it is interrupted or terminated."""

import asyncio
import logging
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments
from django.utils.module_loading import autodiscover_modules

from halfmq.client.app import SHUTDOWN_GRACE_S
from halfmq.django.command_line import add_http, at_least, log_lines, reported
from halfmq.django.consumers import app_of, databases_of, registered
from halfmq.django.database import require_tables
from halfmq.django.process import begin_to_answer
from halfmq.processes import reload
from halfmq.processes.worker import Worker, end_late_threads

#: What is imported of each application, as ``admin`` is for the admin.
MODULE = "consumers"


class Command(BaseCommand):
    """As `halfmq worker`, by the settings of the project."""

    help = (
        f"Run the consumers in {MODULE}.py of each application, and answer checks as a web worker does. Any number may run at once: they "
        "divide the queues among them. On SIGTERM or SIGINT it takes no more messages, lets running handlers finish, and exits; a second "
        "signal ends it at once. What was not finished is delivered again to the others."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--group", action="append", help="Only the consumers of this group; may be repeated. Default: all."
        )
        parser.add_argument(
            "--concurrency",
            type=at_least(1),
            help="Messages that each consumer handles at once. Default: as registered.",
        )
        parser.add_argument(
            "--no-wait", action="store_true", help="Exit with 1 if no broker answers at the start, instead of waiting."
        )
        parser.add_argument(
            "--shutdown-grace",
            type=at_least(0),
            default=round(SHUTDOWN_GRACE_S),
            metavar="SECONDS",
            help="How long running handlers may take to finish. Default: %(default)s.",
        )
        parser.add_argument(
            reload.OPTION,
            action="store_true",
            help="Start again when a Python file below the current directory changes. For development.",
        )
        add_http(parser, "health", "GET /healthz and /readyz")

    def handle(self, *args: Any, **options: Any) -> None:
        log_lines(options["verbosity"])
        if options["reload"]:
            sys.exit(reload.run_again_on_changes(reload.without_reload(get_child_arguments()), Path.cwd()))
        autodiscover_modules(MODULE)
        with reported() as wanted:
            consumers = registered(options["group"] or ())
            if not consumers:
                of = f" of {' or '.join(options['group'])}" if options["group"] else ""
                raise CommandError(
                    f"there are no consumers{of}: decorate a function in {MODULE}.py of an application with @mq.consumer",
                    returncode=2,
                )
            require_tables(databases_of(consumers))
            app = app_of(wanted, consumers, shutdown_grace=options["shutdown_grace"])
            begin_to_answer()
            worker = Worker(app, logging.shutdown)
            host, port = options["health_host"], options["health_port"]
            status = 1
            try:
                asyncio.run(worker.run(not options["no_wait"], options["concurrency"], host, port))
                status = 0
            finally:
                end_late_threads(logging.shutdown, status)
