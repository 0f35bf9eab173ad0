"""`manage.py halfmq_checks`: answers the broker's checks from the marker tables, until it is interrupted or terminated."""

import signal
from queue import SimpleQueue
from typing import Any

from django.core.management.base import BaseCommand

from halfmq.django.command_line import reported
from halfmq.django.database import require_tables
from halfmq.django.process import make_client


class Command(BaseCommand):
    """Web workers answer too, unless HALFMQ["ANSWER_CHECKS"] is False; this answers also while no worker runs."""

    help = "Answer the checks of the broker about transactions of this project, until interrupted."

    def handle(self, *args: Any, **options: Any) -> None:
        # No Event: a handler that sets one waits for ever if the signal comes while the same thread begins to wait for it.
        ended: SimpleQueue[int] = SimpleQueue()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: ended.put(number))
        with reported() as wanted:
            require_tables(wanted.databases)
        client = make_client(wanted, answers_checks=True)
        client.connect(wait=False)
        try:
            self.stdout.write(f"answering checks of {wanted.group} from {', '.join(wanted.databases)}")
            self.stdout.flush()
            ended.get()
        finally:
            client.close()
