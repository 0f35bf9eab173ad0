"""Reads the log from a batch on and classifies its end.

A torn tail and damage of the interior are distinguished as follows. Every batch states the highest position known to be durable when it was
written. After damage, the rest of the log, including later segments, is searched for complete batches (magic on an 8-byte boundary, its own
offset, checksum, bodies). If one of them, one before the damage, or a checkpoint states a position after the damage, then this place was
once safely on the disk, and the damage is not from a crash. Otherwise everything from the damage on is a torn tail, **including complete
batches**: a disk may keep a later write and lose an earlier one, and nothing there was acknowledged.

Known weakness: a body that contains a batch header with its own log offset and a valid checksum would count as a batch in that search.
It can only make recovery refuse, never cut.
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
#: Bytes per read; more for a longer batch.
_AHEAD: Final = 1 << 18


class Batch(NamedTuple):
    """A complete batch at ``view[place:]``, a part of its segment that may begin anywhere."""

    header: Header
    view: memoryview
    place: int


class EndOfLog(NamedTuple):
    """Only zeros from log offset ``at`` on."""

    at: int
    #: Highest epoch of the scan; 0 if there was no batch.
    epoch: int


class TornTail(NamedTuple):
    """Damage, and nothing from ``cut_at`` on was ever acknowledged: recovery cuts there."""

    #: End of the log once everything after it is zero.
    cut_at: int
    #: Highest epoch, including what is cut: epochs never decrease.
    epoch: int
    #: Description of the damage at ``cut_at``, for people.
    why: str
    #: Number of complete batches that are cut as well.
    whole_batches: int


class CorruptInterior(NamedTuple):
    """Damage before a position that was durable: a start is refused."""

    #: Place of the damage.
    at: int
    file: Path
    why: str
    #: The log was durable up to here.
    durable_position: int


Scanned = Batch | EndOfLog | TornTail | CorruptInterior


class _Remainder(NamedTuple):
    """What lies after a place where no batch begins."""

    blank: bool
    durable_position: int
    epoch: int
    whole_batches: int


class LogScan:
    """The segments of a log, read-only."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._segment_bytes = files.segment_bytes
        #: The last read: segment, place of the first byte, bytes.
        self._piece: tuple[Segment | None, int, memoryview] = None, 0, memoryview(b"")

    def from_batch(self, start: int, durable_position: int) -> Iterator[Scanned]:
        """Complete batches from ``start`` (a batch boundary) on, then exactly one of the other three.

        ``durable_position``: the highest one that a checkpoint states; 0 if none does.
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
        """The batches between two batch boundaries that were already examined; ``rolls``: where the log leaves a segment.

        Reads only headers, so that a redo does not compute the checksums a second time.

        Raises:
            StoreDamaged: a batch is no longer there.
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
        """Whether a complete batch ends at ``position``, so that a checkpoint there belongs to this log."""
        if position == 0:
            return True
        number = (position - 1) // self._segment_bytes
        segment = self._files.get(number)
        if segment is None:
            # It was trimmed, and the log was exactly full there; the base after it still states the position.
            return isinstance(self._opening_batch(position, position), Batch)
        base = number * self._segment_bytes
        end = position - base
        chunk_end = end
        while chunk_end > 0:  # the last batch is small, so the first piece usually contains it
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
        """(place, reason) where batches between two batch boundaries do not follow each other; None: they do.

        It reads only headers: batches of two processes that overwrote each other do not connect, and a damaged body does not matter here.
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
        """Where the log leaves the segment, as stated by the base of the next one; None if that has no complete first batch."""
        opening = self._opening_batch((number + 1) * self._segment_bytes, None)
        return previous_end_of(opening.view, opening.place) if isinstance(opening, Batch) else None

    def first_batch_has_base(self, start: int) -> bool:
        """Whether the segment at ``start`` begins with a complete batch whose first record is a base."""
        return isinstance(self._opening_batch(start, None), Batch)

    def is_blank(self, number: int) -> bool:
        """Whether the segment contains only zeros."""
        segment = self._files.get(number)
        return segment is None or segment.nonzero_from(0) is None

    def is_whole(self, number: int) -> bool:
        """Whether the segment has its full size; a crash may have shortened its allocation."""
        segment = self._files.get(number)
        return segment is not None and segment.size == self._segment_bytes

    def _batch_after(self, position: int, *, first: bool) -> Batch | NotABatch:
        """The batch that continues the log at ``position``: there, or at the beginning of the next segment."""
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
        """The first batch of the segment at ``start``, whose base must state ``previous_end`` (None: any)."""
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
        """``_examined``, but reads the bytes again if the cached ones are no batch: a broker may be writing."""
        space = self._segment_bytes - place
        found = self._examined(segment, place, space)
        if isinstance(found, NotABatch):
            self._piece = None, 0, memoryview(b"")
            found = self._examined(segment, place, space)
        return found

    def _examined(self, segment: Segment, place: int, space: int) -> Batch | NotABatch:
        """The batch at this place, if it is complete and has at most ``space`` bytes."""
        found = self._unsummed(segment, place, space)
        if isinstance(found, NotABatch):
            return found
        header = examine(found.view, found.place, segment.start + place, found.header.length)
        return Batch(header, found.view, found.place) if isinstance(header, Header) else header

    def _unsummed(self, segment: Segment, place: int, space: int) -> Batch | NotABatch:
        """The same, judged by its header alone."""
        space = min(space, segment.size - place)
        view, at = self._bytes(segment, place, min(space, BATCH_HEADER_BYTES))
        header = read_header(view, at, segment.start + place, space)
        if isinstance(header, NotABatch):
            return header
        view, at = self._bytes(segment, place, header.length)
        return Batch(header, view, at)

    def _bytes(self, segment: Segment, place: int, length: int) -> tuple[memoryview, int]:
        """(a part of the segment, index of ``place`` in it), with ``length`` bytes from there on if the file has them."""
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
        """(place, segment, description) of the damage: the log may end in zeros at ``position`` while a later segment is damaged."""
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

    def _beyond(self, position: int) -> _Remainder:
        """The complete batches after ``position``, and whether there is anything but zeros."""
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
        return _Remainder(blank, durable, epoch, count)

    def _whole_batches(self, segment: Segment, chunk_start: int, chunk: bytes, beyond: int) -> Iterator[Header]:
        """Complete batches that begin in the chunk, at or after place ``beyond``, found by their magic."""
        at = -1
        while (at := chunk.find(BATCH_MAGIC, at + 1)) >= 0:
            place = chunk_start + at
            if place % BATCH_ALIGNMENT or place < beyond:
                continue
            found = self._examined(segment, place, self._segment_bytes - place)
            if isinstance(found, Batch):
                yield found.header
                beyond = place + found.header.length
