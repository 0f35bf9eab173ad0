"""The visible and the durable content of one file, compared with a model that keeps whole copies. The rest: ``test_faulty_disk.py``."""

import random

from tests.support.page_cache import BLOCK_BYTES, SECTOR_BYTES, CachedFile


class Model:
    """The same with whole copies: slow and simple."""

    def __init__(self) -> None:
        self.seen = b""
        self.durable = b""
        #: Every content since the last sync.
        self.versions = [b""]

    def write(self, at: int, data: bytes) -> None:
        self.seen = self.seen.ljust(at, b"\0")
        self._now(self.seen[:at] + data + self.seen[at + len(data) :])

    def resize(self, length: int) -> None:
        self._now(self.seen[:length].ljust(length, b"\0"))

    def sync(self) -> None:
        self.versions = [self.seen]

    def _now(self, content: bytes) -> None:
        self.seen = content
        self.versions.append(content)

    def may_be(self, content: bytes) -> bool:
        """Whether each sector has a content from some moment since the sync, and the length is one of those."""
        if len(content) not in {len(version) for version in self.versions}:
            return False
        for at in range(0, len(content), SECTOR_BYTES):
            sector = content[at : at + SECTOR_BYTES]
            was = {
                version[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")[: len(sector)] for version in self.versions
            }
            if sector not in was:
                return False
        return True


def test_over_random_histories_readers_see_all_writes_and_a_crash_leaves_a_legal_content() -> None:
    crashes = changed = 0
    for seed in range(150):
        rng = random.Random(seed)
        file, model = CachedFile(), Model()
        for _ in range(rng.randint(3, 25)):
            if rng.random() < 0.3:
                length = rng.choice((0, 100, 512, 5_000, 20_000))
                file.resize(length)
                model.resize(length)
            elif rng.random() < 0.2:
                file.make_durable()
                model.sync()
            else:
                at, data = rng.randrange(9_000), rng.randbytes(rng.choice((1, 48, 700, 4_000)))
                file.write(at, data)
                model.write(at, data)
            assert bytes(file.seen) == model.seen
            covered = bytearray(model.seen)
            for low, high in file.data_ranges(0):
                covered[low:high] = bytes(high - low)
            assert not any(covered)
        for keep in (0.0, 0.5, 1.0):
            copy = file.copy()
            copy.lose_power(rng, keep)
            left = bytes(copy.seen)
            assert model.may_be(left)
            assert copy.is_clean
            if keep == 0.0:
                assert left == model.versions[0]
            if keep == 1.0:
                assert left == model.seen
            crashes += 1
            changed += left != model.seen
    assert crashes == 450
    assert changed > 100


def test_blocks_are_allocated_where_bytes_were_written_and_nowhere_else() -> None:
    file = CachedFile()
    file.resize(1 << 20)
    file.write(BLOCK_BYTES * 3 - 1, b"ab")
    assert file.claimed == {2, 3}
    file.resize(BLOCK_BYTES * 3)
    assert file.claimed == {2}


def test_a_flipped_bit_is_also_on_the_disk_when_a_write_waits_for_a_sync() -> None:
    file = CachedFile()
    file.write(0, b"aaa")
    file.make_durable()
    file.write(1, b"b")
    file.flip_bit(0, 0)
    assert bytes(file.seen) == b"`ba"
    file.lose_power(random.Random(1), 0.0)
    assert bytes(file.seen) == b"`aa"


def test_a_sync_covers_what_was_written_before_it_began_and_nothing_later() -> None:
    file = CachedFile()
    file.write(0, b"a" * 1_000)
    file.make_durable()
    file.write(10, b"bb")
    file.write(600, b"bb")
    began = file.mark()
    file.write(11, b"ccc")
    file.write(2_000, b"c")
    file.make_durable_up_to(began)
    assert bytes(file.seen[8:16]) == b"aabcccaa"
    file.lose_power(random.Random(1), 0.0)
    assert bytes(file.seen[8:16]) == b"aabbaaaa"
    assert bytes(file.seen[598:604]) == b"aabbaa"
    assert len(file.seen) == 1_000


def test_what_was_written_during_a_sync_becomes_durable_with_the_next_one() -> None:
    file = CachedFile()
    began = file.mark()
    file.write(0, b"abc")
    file.make_durable_up_to(began)
    assert not file.is_clean
    file.make_durable()
    file.lose_power(random.Random(1), 0.0)
    assert bytes(file.seen) == b"abc"


def test_a_sync_that_finishes_after_a_later_one_undoes_nothing() -> None:
    file = CachedFile()
    file.write(0, b"abc")
    began = file.mark()
    file.make_durable()
    file.write(0, b"x")
    file.make_durable_up_to(began)
    file.lose_power(random.Random(1), 0.0)
    assert bytes(file.seen) == b"abc"
