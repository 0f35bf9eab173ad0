"""The checksum is zlib's, from whichever package."""

import random
import subprocess
import sys
import zlib

from halfmq.model.checksum import crc32


def test_it_is_the_standard_librarys_of_any_buffer_and_in_parts() -> None:
    rng = random.Random(1)
    for size in [*range(70), 255, 1_024, 65_537, 1 << 20]:
        data = rng.randbytes(size)
        cut = rng.randint(0, size)
        assert crc32(data) == zlib.crc32(data)
        assert crc32(memoryview(data)[cut:], crc32(bytearray(data[:cut]))) == zlib.crc32(data)


def test_without_zlib_ng_it_comes_from_the_standard_library() -> None:
    code = (
        "import sys, zlib; sys.modules['zlib_ng'] = None; "
        "from halfmq.model.checksum import crc32; assert crc32 is zlib.crc32"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_with_zlib_ng_it_comes_from_there() -> None:
    assert crc32.__module__.startswith("zlib_ng")
