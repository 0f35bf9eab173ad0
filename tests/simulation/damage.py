"""Damage at rest: bit rot and lost files, and an operator who repairs them after the broker reported them.

The promise is that damage is rejected with its position where it is read, and never taken for valid content. So a start may
refuse while something is damaged; then the simulation restores it, as an operator with a backup would.
Only detectable damage is done: bits are flipped below a position that a later, durable batch declares durable, or below the position
in the watermark page, which is then on the disk; while a broker serves, only in bodies, whose checksum clients verify.
"""

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from halfmq.model.stored_message import AT_BODY_V4
from halfmq.model.stored_message import decode as decode_message
from halfmq.store.segment import segment_name
from halfmq.store.watermark_page import Watermark, read_watermark_page
from tests.simulation.broker_host import DATA
from tests.support.faulty_disk import FaultyDisk

LOG = DATA / "shard-0" / "log"
PAGE = DATA / "shard-0" / "published"
#: Possible places of the stored message after the start of its record: plain and half, delayed, copied.
_MESSAGE_AT = (16, 32, 64)


class _Flip(NamedTuple):
    path: Path
    at: int
    right: int
    wrong: int


class _Lost(NamedTuple):
    path: Path
    content: bytes


class Damage:
    def __init__(self, disk: FaultyDisk, segment_bytes: int, seed: int, counts: Counter[str]) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._rng = random.Random(f"{seed}/damage")
        self._counts = counts
        self._flips: list[_Flip] = []
        self._lost: list[_Lost] = []
        #: (durable position, log end) while it served, ascending.
        self._seen: list[tuple[int, int]] = []
        #: Log end of the last acknowledgement at level fsync, which the watermark page therefore states; 0 if it is lost.
        self._answered = 0

    @property
    def any(self) -> bool:
        """Whether a start may refuse."""
        return bool(self._flips or self._lost)

    def saw(self, durable: int, log_end: int, answered: int) -> None:
        """``answered``: the log's end at the last acknowledgement at level fsync; 0 at another level."""
        self._answered = max(self._answered, answered)
        if not self._seen or self._seen[-1] != (durable, log_end):
            self._seen.append((durable, log_end))
            del self._seen[:-20]

    def forget(self) -> None:
        """The log may end before the observed positions."""
        self._seen.clear()
        self._answered = 0

    def _known_durable(self) -> int:
        """Everything below it is declared durable by a later batch that is durable itself."""
        if not self._seen:
            return 0
        now = self._seen[-1][0]
        return max((durable for durable, end in self._seen if end < now), default=0)

    def _paged_durable(self) -> int:
        """The durable position in the watermark page, once the page itself is on disk; 0 without a page."""
        page = read_watermark_page(self._disk, PAGE)
        if not isinstance(page, Watermark):
            return 0
        try:
            file = self._disk.open(PAGE)
            file.write(0, [self._disk.content(PAGE)])  # after a failed sync it may be only in the cache
            file.sync()
            file.close()
            self._disk.sync_directory(PAGE.parent)
        except OSError:  # a fault that was ordered for the broker: the page may be lost
            return 0
        self._counts["page is on the disk"] += 1
        return max(page.durable, self._answered)

    # --- bits --------------------------------------------------------------------------------------------------------

    def flip_body(self, offsets: list[int]) -> str:
        """Flip a bit in the body of one of the messages whose records begin there. Returns where; empty: nowhere."""
        bound = self._known_durable()
        offsets = [offset for offset in offsets if offset < bound]
        if self.any or not offsets:
            return ""
        offset = self._rng.choice(offsets)
        start = offset - offset % self._segment_bytes
        path = LOG / segment_name(start)
        if not self._disk.exists(path):
            return ""
        content = self._disk.content(path)
        for ahead in _MESSAGE_AT:
            place = offset - start + ahead
            try:
                message, physical, size = decode_message(content, place)
            except (ValueError, IndexError):
                continue
            if physical == offset and message.body and offset + ahead + size <= bound:
                return self._flip(path, place + AT_BODY_V4 + self._rng.randrange(len(message.body)), content)
        return ""

    def flip_anywhere(self, redo_from: int) -> str:
        """Flip a bit of what the next start must read. Call it while no broker runs."""
        bound = max(self._known_durable(), self._paged_durable())
        if self.any or bound <= redo_from:
            return ""
        offset = self._rng.randrange(redo_from, bound)
        start = offset - offset % self._segment_bytes
        path = LOG / segment_name(start)
        if not self._disk.exists(path):
            return ""
        content = self._disk.content(path)
        if not any(content[offset - start : offset - start + 8]):  # between batches, or after the last one of a segment
            return ""
        return self._flip(path, offset - start, content)

    def _flip(self, path: Path, at: int, content: bytes) -> str:
        bit = self._rng.randrange(8)
        self._disk.flip_bit(path, at, bit)
        self._flips.append(_Flip(path, at, content[at], content[at] ^ (1 << bit)))
        return f"{path.name} at {at}"

    # --- files -------------------------------------------------------------------------------------------------------

    def lose_derived(self) -> str:
        """Lose files that can be rebuilt: snapshots, the checkpoint, or everything but the log. Call it while no broker runs.

        Not while anything is damaged: nothing would state any more that there was a log, and how far it was durable.
        """
        if self.any:
            return ""
        what = self._rng.choice(("snapshots", "checkpoint", "all"))
        gone = 0
        for path in self._disk.paths():
            inside = path.relative_to(DATA).parts
            if len(inside) < 2 or inside[1] == "log":
                continue
            if what == "all" or inside[1] == what:
                self._disk.remove(path)
                gone += 1
        if what == "all":
            self._answered = 0
        self._sync_directories()
        return f"{what}, {gone} files" if gone else ""

    def lose_segments(self, redo_from: int) -> str:
        """Lose one segment after the first, or all of them. The next start must refuse. Call it while no broker runs."""
        segments = [LOG / name for name in self._disk.list(LOG) if name.endswith(".seg")]
        written = [path for path in segments if any(self._disk.content(path)[:64])]
        last = written[1:][-1:] if written and int(written[-1].name[:20]) < self._paged_durable() else []
        inner = [path for path in written[1:-1] + last if int(path.name[:20]) > redo_from - self._segment_bytes]
        if self.any or not written:
            return ""
        chosen = [self._rng.choice(inner)] if inner and self._rng.random() < 0.7 else []
        if not chosen and self._is_known_to_have_a_log():
            chosen = segments
        for path in chosen:
            self._lost.append(_Lost(path, self._disk.content(path)))
            self._disk.remove(path)
        self._sync_directories()
        return f"{len(chosen)} segments" if chosen else ""

    def _is_known_to_have_a_log(self) -> bool:
        """Whether something other than the segments states that this store is not a new one."""
        page = read_watermark_page(self._disk, PAGE)
        return self._disk.exists(DATA / "shard-0" / "checkpoint") or (isinstance(page, Watermark) and page.position > 0)

    def _sync_directories(self) -> None:
        for directory in sorted({path.parent for path in self._disk.paths()} | {LOG}):
            if self._disk.exists(directory):  # otherwise the first start has not come so far
                self._disk.sync_directory(directory)

    # --- repair ------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore from a backup: flipped bits, unless overwritten or removed meanwhile, and lost files."""
        for flip in self._flips:
            if self._disk.exists(flip.path) and self._disk.content(flip.path)[flip.at] == flip.wrong:
                changed = flip.right ^ flip.wrong
                self._disk.flip_bit(flip.path, flip.at, changed.bit_length() - 1)
                self._counts["restored bit"] += 1
        for lost in self._lost:
            if not self._disk.exists(lost.path):
                self._disk.open(lost.path, create=True).close()
                self._disk.put(lost.path, lost.content)
                self._counts["restored file"] += 1
        if self._lost:
            self._disk.sync_directory(LOG)
        self._flips.clear()
        self._lost.clear()
