"""What `manage.py halfmq_prune` deletes: rows that are over, some 1,000 in a transaction."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from halfmq.django.marker_rows import wall_ms
from halfmq.django.markers import markers_of
from halfmq.django.models import Handled, OutboxMessage
from halfmq.django.tables import INBOX_TABLE, MARKERS_TABLE, OUTBOX_TABLE
from halfmq.sql.rules.marker import PRUNE_ROWS_MAX, WhichUndecided
from halfmq.sql.rules.outbox import ENDED, LANES


class Kind(NamedTuple):
    """A kind of rows. Both functions get the alias, the least age in seconds, and what asks the broker for undecided transactions."""

    table: str
    #: Deletes one page in a transaction of its own, and returns how many rows that were; 0: there are no more.
    delete_page: Callable[[str, float, WhichUndecided], int]
    count_rows: Callable[[str, float, WhichUndecided], int]


def _markers_page(using: str, older_than_s: float, undecided: WhichUndecided) -> int:
    return markers_of(using).rows.prune(older_than_s=older_than_s, undecided=undecided)


def _markers_count(using: str, older_than_s: float, undecided: WhichUndecided) -> int:
    return markers_of(using).rows.count_prunable(older_than_s=older_than_s, undecided=undecided)


def _handled(using: str, older_than_s: float) -> Any:
    return Handled.objects.using(using).filter(handled_at_ms__lt=wall_ms() - round(older_than_s * 1000))


def _inbox_page(using: str, older_than_s: float, _undecided: WhichUndecided) -> int:
    old = _handled(using, older_than_s)
    # The time of the last row of the page, since few databases delete a number of rows; those of the same millisecond go with it.
    times = old.order_by("handled_at_ms").values_list("handled_at_ms", flat=True)
    last = times[PRUNE_ROWS_MAX - 1 : PRUNE_ROWS_MAX].first()
    page = old if last is None else old.filter(handled_at_ms__lte=last)
    return int(page.delete()[0])


def _inbox_count(using: str, older_than_s: float, _undecided: WhichUndecided) -> int:
    return int(_handled(using, older_than_s).count())


def _ended(using: str, older_than_s: float) -> Any:
    # The lanes are named so that each is a range of the index. Times are those of the database, from whose clock this one differs less than
    # anybody's age of rows.
    before_ms = wall_ms() - round(older_than_s * 1000)
    return OutboxMessage.objects.using(using).filter(delivery__in=ENDED, lane__in=range(LANES), due_at_ms__lt=before_ms)


def _outbox_page(using: str, older_than_s: float, _undecided: WhichUndecided) -> int:
    numbers = list(_ended(using, older_than_s).values_list("seq", flat=True)[:PRUNE_ROWS_MAX])
    return int(OutboxMessage.objects.using(using).filter(seq__in=numbers).delete()[0]) if numbers else 0


def _outbox_count(using: str, older_than_s: float, _undecided: WhichUndecided) -> int:
    return int(_ended(using, older_than_s).count())


#: By the name of the option.
KINDS: Final = {
    "markers": Kind(MARKERS_TABLE, _markers_page, _markers_count),
    "inbox": Kind(INBOX_TABLE, _inbox_page, _inbox_count),
    "outbox": Kind(OUTBOX_TABLE, _outbox_page, _outbox_count),
}
