"""Marker rows: what their values mean, and which may be pruned.

Each local transaction inserts one row ``(tx_id, 'P')``, which is no verdict, and turns it into ``(tx_id, 'C')`` by its last statement
before the half messages are sent. That statement proves that the row is there, in the transaction that inserted it
(``transaction_proof``); ``'C'`` becomes visible exactly when that transaction commits.

A check that finds no row cannot conclude anything yet, since the transaction may still run. So it inserts ``(tx_id, 'R')`` under the
same primary key, the fence. If that succeeds, the transaction can no longer commit: its own insert fails on the key, and its business
rows are rolled back with it. A committed ``'P'`` was committed behind the block's back: the check turns it into ``'R'``, and the block's
own statement finds no ``'P'`` any more. Whoever is first decides. The steps of a check are in ``check``.

Nothing else updates a marker, and only pruning deletes one, when a late insert is no longer possible. A missing marker counts only in
the table that the transaction wrote to, and only if it cannot have been pruned: see ``table_identity``.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.sql.rules.table_identity import PRUNE_AGE_MIN_S, RESERVED, Bounds, bounds_of

#: Values of the column ``outcome``. PREPARED is no verdict: the transaction has not come to its end.
PREPARED: Final = "P"
COMMITTED: Final = "C"
FENCED: Final = "R"
#: UNKNOWN: a check fences it.
_OUTCOMES: Final = {PREPARED: Outcome.UNKNOWN, COMMITTED: Outcome.COMMIT, FENCED: Outcome.ROLLBACK}

#: Rows deleted per call, so that no lock is held long.
PRUNE_ROWS_MAX: Final = 1_000

#: (written at, ms; transaction id) of a row.
OldRow = tuple[int, str]
#: Returns the subset of the given transaction ids that are still undecided.
WhichUndecided = Callable[[list[str]], Collection[str]]


class Seen(NamedTuple):
    """The rows that a check read."""

    #: The transaction's marker; UNKNOWN: it is PREPARED; None: no row.
    outcome: Outcome | None
    #: None: the table has no identity.
    table: Bounds | None


def keys_to_read(tx_id: str) -> tuple[str, ...]:
    """The keys of the rows that answer for ``tx_id``; ``seen`` reads them."""
    return (tx_id, *RESERVED)


def seen(rows: Iterable[tuple[str, str, int]], tx_id: str, table: str) -> Seen:
    """``rows``: (tx_id, outcome, written_at_ms) of those under ``keys_to_read`` that exist.

    Raises:
        UsageError: the table matched another id: its collation is not binary.
    """
    found: Outcome | None = None
    reserved = {}
    for key, outcome, written_at_ms in rows:
        if key in RESERVED:
            reserved[key] = int(written_at_ms)
        elif key == tx_id:
            found = _OUTCOMES[outcome]
        else:
            raise UsageError(
                f"table {table} takes {key!r} and {tx_id!r} for the same id",
                hint="its column tx_id must have a binary collation; create it from this metadata",
            )
    return Seen(found, bounds_of(reserved))


def prunable_before_ms(now_ms: int, older_than_s: float) -> int:
    """Rows with a smaller ``written_at_ms`` are older than ``older_than_s`` seconds.

    Raises:
        UsageError: ``older_than_s`` is below ``PRUNE_AGE_MIN_S``; a rollback marker must outlive the local transaction that it stops.
    """
    if older_than_s < PRUNE_AGE_MIN_S:
        raise UsageError(
            f"older_than_s={older_than_s} is less than {PRUNE_AGE_MIN_S:.0f} seconds",
            hint="a marker must outlive every local transaction and its checks",
        )
    return now_ms - round(older_than_s * 1000)


class Pruned(NamedTuple):
    """What one call of prune deletes."""

    ids: list[str]
    #: The horizon that has to be set in the same transaction: a missing marker as old as these then proves nothing.
    horizon_ms: int


def pruned(rows: Collection[OldRow], undecided: Collection[str]) -> Pruned | None:
    """All of ``rows`` except those of ``undecided``. None: there is none."""
    keep = set(undecided)
    gone = [row for row in rows if row[1] not in keep]
    if not gone:
        return None
    return Pruned([tx_id for _, tx_id in gone], max(written_at_ms for written_at_ms, _ in gone) + 1)
