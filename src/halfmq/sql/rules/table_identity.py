"""The identity and prune horizon of a marker table: they say when a missing marker means rolled back.

A check that finds no marker inserts a rollback marker and answers ROLLBACK. That is right only if the marker of a committed transaction
would be in this table, and not pruned. So the table has two rows under reserved keys, which need no schema change
(``docs/decisions/0032-absent-marker.md``):

    #identity   written_at_ms: a random number, made once
    #horizon    written_at_ms: every marker with a smaller written_at_ms may have been pruned

and each half carries ``identity.written_at_ms`` of its marker (HMQ_TX_MARKER). No clocks are compared: the horizon is compared
with the ``written_at_ms`` of the row itself.

Both values are larger than any real time, so that older releases, which do not know these rows, do not prune them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

#: Reserved keys. Transaction ids contain no ``#``.
IDENTITY: Final = "#identity"
HORIZON: Final = "#horizon"
RESERVED: Final = (IDENTITY, HORIZON)

#: Added to a horizon, and the smallest identity. As a time it would be 146 million years from now.
_FAR: Final = 1 << 62
#: Random bits of an identity.
IDENTITY_BITS: Final = 62

#: How often an application's transaction reads a table without identity again, seconds: under SERIALIZABLE the read
#: conflicts with every marker written concurrently.
LOOK_AGAIN_S: Final = 60.0

#: Longest HMQ_TX_MARKER: two numbers of 64 bits.
_ORIGIN_CHARS_MAX: Final = 41

#: A half that carries no origin was prepared at most this long after its marker was written: duration of the local
#: transaction and difference of the clocks together, ms. Half of the least age of what is pruned, so that what was
#: prepared shortly before a prune is still answered.
PREPARED_AFTER_MARKER_MAX_MS: Final = 1_800_000


#: Marker rows younger than this are never pruned, seconds: longer than any local transaction runs, or a message is in flight.
PRUNE_AGE_MIN_S: Final = 3_600.0


class Bounds(NamedTuple):
    """The values of the reserved rows."""

    identity: int
    #: Markers with a smaller ``written_at_ms`` may have been pruned.
    horizon_ms: int


class Origin(NamedTuple):
    """HMQ_TX_MARKER of a half: the identity of the marker's table, and the ``written_at_ms`` of the row."""

    identity: int
    written_at_ms: int

    def text(self) -> str:
        """The property value; ``read_origin`` parses it."""
        return f"{self.identity}.{self.written_at_ms}"


def read_origin(text: str) -> Origin | None:
    """Parse HMQ_TX_MARKER. None: an unknown format, written by a newer release."""
    identity, _, written = text.partition(".")
    if len(text) > _ORIGIN_CHARS_MAX or not (text.isascii() and identity.isdigit() and written.isdigit()):
        return None
    return Origin(int(identity), int(written))


def first_horizon_ms(now_ms: int) -> int:
    """The initial horizon of a table without one: an earlier release may have pruned it without recording a horizon.

    No release prunes rows younger than ``PRUNE_AGE_MIN_S``. The oldest row proves nothing, since rows of undecided
    transactions are kept.
    """
    return max(0, now_ms - round(PRUNE_AGE_MIN_S * 1000))


def horizon_value(horizon_ms: int) -> int:
    """The ``written_at_ms`` of the row HORIZON."""
    return _FAR + horizon_ms


def reserved_rows(random_bits: int, horizon_ms: int) -> dict[str, int]:
    """The reserved rows of a table that has none: ``written_at_ms`` by key. ``random_bits``: IDENTITY_BITS of them."""
    return {IDENTITY: _FAR + random_bits, HORIZON: horizon_value(horizon_ms)}


def bounds_of(reserved: Mapping[str, int]) -> Bounds | None:
    """The bounds from ``reserved``, the ``written_at_ms`` by reserved key. None: the table has no identity."""
    if IDENTITY not in reserved or HORIZON not in reserved:
        return None
    return Bounds(reserved[IDENTITY], reserved[HORIZON] - _FAR)


def why_absence_is_no_answer(table: str, here: Bounds | None, origin: str, prepared_at_ms: int | None) -> str:
    """Why a transaction without a marker in ``table`` may have committed nevertheless; empty if it cannot have.

    ``origin``: HMQ_TX_MARKER of its half. If empty (an older client, or a table that had no identity yet), the time at which
    the broker stored the half, less a margin, is compared with the horizon. Without that time too, absence is an answer.
    """
    if not origin:
        if here is None or prepared_at_ms is None:
            return ""
        written_at_ms = max(0, prepared_at_ms - PREPARED_AFTER_MARKER_MAX_MS)
    else:
        began = read_origin(origin)
        if began is None:
            return f"its {origin[:_ORIGIN_CHARS_MAX]!r} cannot be read: a newer release of halfmq wrote it"
        if here is None or began.identity != here.identity:
            found = "none" if here is None else here.identity
            return (
                f"it began in another database, or before a restore: "
                f"{table} has identity {found}, its marker {began.identity}"
            )
        written_at_ms = began.written_at_ms
    if here.horizon_ms <= written_at_ms:
        return ""
    until = datetime.fromtimestamp(here.horizon_ms / 1000, UTC).isoformat(" ", "seconds")
    return (
        f"no marker in {table}, where those up to {until} may be pruned: "
        "look for its rows in the database, then use `halfmq tx commit` or `halfmq tx rollback`"
    )
