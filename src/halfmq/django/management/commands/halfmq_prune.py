"""`manage.py halfmq_prune`: deletes old rows of halfmq's tables."""

import time
from argparse import ArgumentParser
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from halfmq.client.sync import Client
from halfmq.django.command_line import add_databases, databases_of, reported, seconds
from halfmq.django.configuration import Configuration
from halfmq.django.pruning import KINDS, Kind
from halfmq.sql.rules.table_identity import PRUNE_AGE_MIN_S

#: How often a long run says how far it is, seconds.
_SAY_S: Final = 5.0
_HELP: Final = {
    "markers": "Delete markers older than this, such as 7d, at least 1h. The broker is asked which are still needed.",
    "inbox": "Delete rows of the inbox older than this: longer than the broker keeps messages, or they are handled again.",
    "outbox": "Delete messages that were published or skipped longer ago than this.",
}


class Command(BaseCommand):
    """As `halfmq db prune`, by the settings of the project."""

    help = "Delete old rows, some 1,000 in a transaction. Only of the kinds for which an age is given."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name, text in _HELP.items():
            parser.add_argument(f"--{name}", type=seconds, metavar="SPAN", help=text)
        add_databases(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only say how many rows would be deleted.")

    def handle(self, *args: Any, **options: Any) -> None:
        ages_s = {name: options[name] for name in KINDS if options[name] is not None}
        if not ages_s:
            raise CommandError("name at least one age: --markers SPAN, --inbox SPAN or --outbox SPAN", returncode=2)
        if ages_s.get("markers", PRUNE_AGE_MIN_S) < PRUNE_AGE_MIN_S:
            raise CommandError(f"--markers is less than {PRUNE_AGE_MIN_S:.0f} seconds", returncode=2)
        with reported() as wanted, _client(wanted, is_asked="markers" in ages_s) as client:
            for using in databases_of(wanted, options):
                for name, age_s in ages_s.items():
                    undecided = _nobody if client is None else client.undecided
                    if options["dry_run"]:
                        number = KINDS[name].count_rows(using, age_s, undecided)
                        self.stdout.write(f"{number} rows of {KINDS[name].table} in {using} would be deleted")
                    else:
                        self._prune(KINDS[name], using, age_s, undecided)

    def _prune(self, kind: Kind, using: str, age_s: float, undecided: Any) -> None:
        deleted, said_at_s = 0, time.monotonic()
        while gone := kind.delete_page(using, age_s, undecided):
            deleted += gone
            if time.monotonic() >= said_at_s + _SAY_S:
                said_at_s = time.monotonic()
                self.stdout.write(f"{deleted} rows of {kind.table} in {using} deleted by now")
                self.stdout.flush()
        self.stdout.write(f"{deleted} rows of {kind.table} in {using} deleted")


def _client(wanted: Configuration, *, is_asked: bool) -> AbstractContextManager[Client | None]:
    """A client without a group, whom nobody asks for checks."""
    return Client(wanted.url, **wanted.options) if is_asked else nullcontext()


def _nobody(_tx_ids: list[str]) -> list[str]:
    raise AssertionError("only markers are asked for")
