"""Reading the log from some batch on, and what the end of it means.

    Batch            a whole batch: header, checksum and bodies are right, and it stands where the log goes on
    EndOfLog         only zeros from here on, and nothing says that more was durable
    TornTail         damage from here on, and nothing at or after it was ever answered: recovery may cut it
    CorruptInterior  damage, or an end, before a position that was once durable: refuse

How the last two are told apart: every batch names the highest position that was known durable when it was written. So on
damage the rest of the log is searched for whole batches (magic on an 8-byte boundary, its own offset, checksum, bodies),
also in later segments. If any of them, any before the damage, or a checkpoint, names a position after the damage, then
this place was once safe on the disk, and what is wrong now is not a crash. Else everything from the damage on is torn
tail, **whole batches included**: a disk may keep a later write and lose an earlier one, and nothing there was answered.

Weak spot: a body that holds a batch header with its own log offset and a right checksum would count as a batch in such
a search. It can only make recovery refuse, never cut.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import StoreDamaged
from halfmq.model.records import BATCH_ALIGNMENT, BATCH_HEADER_BYTES
from halfmq.store.batch_codec import Header, NotABatch, examine, previous_end_of, read_header
from halfmq.store.layout import BATCH_MAGIC
from halfmq.store.segment import Segment, SegmentFiles

_BACKWARD_CHUNK: Final = 1 << 20
#: Bytes read at once while the log is gone through, more for a longer batch.
_AHEAD: Final = 1 << 18


class Batch(NamedTuple):
    """A whole batch, at ``view[place:]``: a piece of its segment, which need not begin where that does."""

    header: Header
    view: memoryview
    place: int


class EndOfLog(NamedTuple):
    """Only zeros from log offset ``at`` on."""

    at: int
    #: Highest epoch seen since the scan began; 0 when there was no batch.
    epoch: int


class TornTail(NamedTuple):
    """Damage, and nothing from ``cut_at`` on was ever answered: recovery cuts there."""

    #: The log ends here once everything after it is zero.
    cut_at: int
    #: Highest epoch seen, in what is cut too: epochs never go back.
    epoch: int
    #: What is wrong at ``cut_at``, for people.
    why: str
    #: Whole batches after it that are cut with it.
    whole_batches: int


class CorruptInterior(NamedTuple):
    """Damage before a position that was durable: a start is refused."""

    #: Where the damage is.
    at: int
    file: Path
    why: str
    #: The log was durable up to here.
    durable_position: int


Scanned = Batch | EndOfLog | TornTail | CorruptInterior


class _Beyond(NamedTuple):
    """What lies after a place where no batch begins."""

    blank: bool
    durable_position: int
    epoch: int
    whole_batches: int


class LogScan:
    """The segments of a log, to be read. Changes nothing."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._segment_bytes = files.segment_bytes
        #: What was read last: of which segment, from which place on, the bytes.
        self._piece: tuple[Segment | None, int, memoryview] = None, 0, memoryview(b"")

    def from_batch(self, start: int, durable_position: int) -> Iterator[Scanned]:
        """Whole batches from ``start`` (a batch boundary) on, then exactly one of the other three.

        ``durable_position``: the highest one that a checkpoint names; 0 when none does.
        """
        durable = durable_position
        epoch = 0
        position = start
        while True:
            found = self._batch_after(position, first=position == start)
            if isinstance(found, NotABatch):
                yield self._end(position, durable, epoch, found.why)
                return
            header = found.header
            if header.epoch < epoch:
                why = f"the batch at {header.offset} is of epoch {header.epoch}, the one before of {epoch}"
                yield self._end(position, durable, epoch, why)
                return
            durable = max(durable, header.durable_position)
            epoch = header.epoch
            if header.offset % self._segment_bytes == 0:
                self._files.close_old(header.offset)
            yield found
            position = header.end

    def again(self, start: int, end: int, rolls: Mapping[int, int]) -> Iterator[Batch]:
        """The batches between two batch boundaries that were examined before; ``rolls``: where the log leaves a segment.

        Reads headers only, so that a redo does not sum everything a second time.

        Raises:
            StoreDamaged: what was whole a moment ago is not there any more.
        """
        position = rolls.get(start, start)
        while position < end:
            number, place = divmod(position, self._segment_bytes)
            segment = self._files.get(number)
            batch = self._unsummed(segment, place, self._segment_bytes - place) if segment is not None else None
            if not isinstance(batch, Batch):
                raise StoreDamaged(
                    f"{self._files.path(number)} changed while it was read, at log offset {position}",
                    hint="another process must not touch a store; check the disk",
                )
            yield batch
            if place == 0:
                self._files.close_old(position)
            position = rolls.get(batch.header.end, batch.header.end)

    def batch_ends_at(self, position: int) -> bool:
        """Whether a whole batch ends at ``position``: a checkpoint there belongs to this log."""
        if position == 0:
            return True
        number = (position - 1) // self._segment_bytes
        segment = self._files.get(number)
        if segment is None:
            # Trimmed away, where the log was filled exactly to there; the base after it still says where that was.
            return isinstance(self._opening_batch(position, position), Batch)
        base = number * self._segment_bytes
        end = position - base
        chunk_end = end
        while chunk_end > 0:  # the last batch is small, so the first piece mostly has it
            chunk_start = max(0, chunk_end - _BACKWARD_CHUNK)
            chunk = segment.read(chunk_start, chunk_end - chunk_start)
            at = len(chunk)
            while (at := chunk.rfind(BATCH_MAGIC, 0, at)) >= 0:
                place = chunk_start + at
                if place % BATCH_ALIGNMENT == 0:
                    found = self._examined(segment, place, end - place)
                    if isinstance(found, Batch) and found.header.length == end - place:
                        return True
            chunk_end = chunk_start
        return False

    def broken_between(self, start: int, end: int) -> tuple[int, str] | None:
        """(where, why) batches do not follow each other from one batch boundary to another; None: they do.

        By headers alone: what two processes wrote over each other does not fit together, and a body that rotted is none of
        this.
        """
        position, epoch = start, 0
        while position < end:
            number, place = divmod(position, self._segment_bytes)
            segment = self._files.get(number)
            found: Batch | NotABatch = NotABatch("the segment is missing")
            if segment is not None and place:
                found = self._unsummed(segment, place, self._segment_bytes - place)
            if isinstance(found, NotABatch):
                next_start = -(-position // self._segment_bytes) * self._segment_bytes
                opening = self._opening_batch(next_start, None if position == start else position)
                if isinstance(opening, NotABatch):
                    return position, (found if place else opening).why
                found = opening
            if found.header.epoch < epoch:
                return found.header.offset, f"a batch of epoch {found.header.epoch} follows one of epoch {epoch}"
            position, epoch = found.header.end, found.header.epoch
        return None if position == end else (end, "a batch reaches beyond the position of the checkpoint")

    def left_at(self, number: int) -> int | None:
        """Where the log leaves the segment, as the base of the next one says; None when that has no whole first batch."""
        opening = self._opening_batch((number + 1) * self._segment_bytes, None)
        return previous_end_of(opening.view, opening.place) if isinstance(opening, Batch) else None

    def first_batch_has_base(self, start: int) -> bool:
        """Whether the segment at ``start`` opens with a whole batch that begins with a base record."""
        return isinstance(self._opening_batch(start, None), Batch)

    def is_blank(self, number: int) -> bool:
        """Whether the segment holds nothing but zeros."""
        segment = self._files.get(number)
        return segment is None or segment.nonzero_from(0) is None

    def is_whole(self, number: int) -> bool:
        """Whether the segment has its full size; a crash may have cut its allocation short."""
        segment = self._files.get(number)
        return segment is not None and segment.size == self._segment_bytes

    def _batch_after(self, position: int, *, first: bool) -> Batch | NotABatch:
        """The batch with which the log goes on at ``position``: there, or at the beginning of the next segment."""
        number, place = divmod(position, self._segment_bytes)
        if place == 0:
            return self._opening_batch(position, None if first else position)
        segment = self._files.get(number)
        here = NotABatch("the segment is missing")
        if segment is not None:
            found = self._examined_anew(segment, place)
            if isinstance(found, Batch):
                return found
            here = found
        opening = self._opening_batch((number + 1) * self._segment_bytes, position)
        return opening if isinstance(opening, Batch) else here

    def _opening_batch(self, start: int, previous_end: int | None) -> Batch | NotABatch:
        """The first batch of the segment at ``start``, whose base must say ``previous_end`` (None: whatever it says)."""
        segment = self._files.get(start // self._segment_bytes)
        if segment is None:
            return NotABatch("the segment is missing")
        found = self._examined_anew(segment, 0)
        if isinstance(found, NotABatch):
            return found
        stated = previous_end_of(found.view, found.place)
        if stated is None:
            return NotABatch("the first batch of the segment has no base record")
        if previous_end is not None and stated != previous_end:
            return NotABatch(f"the base of the segment says the log before it ended at {stated}, not {previous_end}")
        return found

    # --- bytes of segments: read, not mapped, so that what cannot be read is an error

    def _examined_anew(self, segment: Segment, place: int) -> Batch | NotABatch:
        """``_examined``, with what is there now where what was read before holds no batch: a broker may be writing."""
        space = self._segment_bytes - place
        found = self._examined(segment, place, space)
        if isinstance(found, NotABatch):
            self._piece = None, 0, memoryview(b"")
            found = self._examined(segment, place, space)
        return found

    def _examined(self, segment: Segment, place: int, space: int) -> Batch | NotABatch:
        """The batch at this place, if a whole one of at most ``space`` bytes lies there."""
        found = self._unsummed(segment, place, space)
        if isinstance(found, NotABatch):
            return found
        header = examine(found.view, found.place, segment.start + place, found.header.length)
        return Batch(header, found.view, found.place) if isinstance(header, Header) else header

    def _unsummed(self, segment: Segment, place: int, space: int) -> Batch | NotABatch:
        """The same, by its header alone."""
        space = min(space, segment.size - place)
        view, at = self._bytes(segment, place, min(space, BATCH_HEADER_BYTES))
        header = read_header(view, at, segment.start + place, space)
        if isinstance(header, NotABatch):
            return header
        view, at = self._bytes(segment, place, header.length)
        return Batch(header, view, at)

    def _bytes(self, segment: Segment, place: int, length: int) -> tuple[memoryview, int]:
        """(a piece of the segment, where in it ``place`` is), with ``length`` bytes from there on if the file has them."""
        of, start, view = self._piece
        if of is not segment or not start <= place <= start + len(view) - length:
            start, view = place, memoryview(segment.read(place, max(length, _AHEAD)))
            self._piece = segment, start, view
        return view, place - start

    def _end(self, position: int, durable: int, epoch: int, why: str) -> EndOfLog | TornTail | CorruptInterior:
        beyond = self._beyond(position)
        durable = max(durable, beyond.durable_position)
        if position < durable:
            return self._corrupt(position, durable, why)
        if beyond.blank:
            return EndOfLog(position, epoch)
        at, _, what = self._damage(position, why)
        return TornTail(position, max(epoch, beyond.epoch), f"at {at}: {what}", beyond.whole_batches)

    def _corrupt(self, position: int, durable: int, why: str) -> CorruptInterior:
        at, number, what = self._damage(position, why)
        return CorruptInterior(at, self._files.path(number), what, durable)

    def _damage(self, position: int, why: str) -> tuple[int, int, str]:
        """(where, in which segment, what): the log ends at ``position`` in zeros where a later segment is the damaged one."""
        number, place = divmod(position, self._segment_bytes)
        later = self._holds_anything_beyond(number)
        segment = self._files.get(number)
        if segment is None:
            return position, number, "the segment is missing"
        if segment.nonzero_from(place) is not None or place == 0:
            return position, number, why
        if not later:
            return position, number, "the log ends in zeros here"
        start = (number + 1) * self._segment_bytes
        opening = self._opening_batch(start, position)
        return start, number + 1, opening.why if isinstance(opening, NotABatch) else why

    def _holds_anything_beyond(self, number: int) -> bool:
        for other in self._files.numbers():
            if other > number:
                self._files.close_old(other * self._segment_bytes)
                if not self.is_blank(other):
                    return True
        return False

    def _beyond(self, position: int) -> _Beyond:
        """What whole batches lie after ``position``, and whether there is anything but zeros."""
        number, place = divmod(position, self._segment_bytes)
        blank, durable, epoch, count = True, 0, 0, 0
        for other in self._files.numbers():
            segment = self._files.get(other) if other >= number else None
            if segment is None:
                continue
            self._files.close_old(segment.start)
            start = beyond = place if other == number else 0
            for chunk_start, chunk in segment.nonzero_chunks(start):
                blank = False
                for header in self._whole_batches(segment, chunk_start, chunk, beyond):
                    durable = max(durable, header.durable_position)
                    epoch = max(epoch, header.epoch)
                    count += 1
                    beyond = header.end - segment.start
        return _Beyond(blank, durable, epoch, count)

    def _whole_batches(self, segment: Segment, chunk_start: int, chunk: bytes, beyond: int) -> Iterator[Header]:
        """Whole batches that begin in the chunk, at or after place ``beyond``, found by their magic."""
        at = -1
        while (at := chunk.find(BATCH_MAGIC, at + 1)) >= 0:
            place = chunk_start + at
            if place % BATCH_ALIGNMENT or place < beyond:
                continue
            found = self._examined(segment, place, self._segment_bytes - place)
            if isinstance(found, Batch):
                yield found.header
                beyond = place + found.header.length
