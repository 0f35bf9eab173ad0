"""Bodies that their producer packed."""

import zlib

import numpy as np
import pyarrow as pa
import pytest

from halfmq import limits
from halfmq.spark.rows.bodies import body_columns

PACKED = 0x1
LZ4, ZSTD, ZLIB, UNKNOWN = 0x100, 0x200, 0x300, 0x700


def column(bodies: list[bytes], flags: list[int]) -> tuple[list[bytes | None], list[tuple[int, str]]]:
    data = b"".join(bodies)
    lengths = np.array([len(body) for body in bodies], np.int64)
    starts = np.cumsum(lengths) - lengths
    bad: list[tuple[int, str]] = []
    ((_, _, made),) = body_columns(
        pa.py_buffer(data),
        starts,
        lengths,
        np.array(flags, np.int32),
        lambda row, why: bad.append((row, why)),
        None,
        1 << 31,
    )
    return made.to_pylist(), bad


def compressed(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


def test_plain_bodies_are_passed_on() -> None:
    assert column([b"a", b"", b"x" * 20], [0, ZLIB, 0]) == ([b"a", b"", b"x" * 20], [])


def test_all_three_methods_are_unpacked_beside_plain_ones() -> None:
    body = b"hello " * 100
    made, bad = column(
        [zlib.compress(body), b"plain", compressed(body, "lz4"), compressed(body, "zstd"), zlib.compress(b"s")],
        [PACKED, 0, PACKED | LZ4, PACKED | ZSTD, PACKED | ZLIB],
    )
    assert made == [body, b"plain", body, body, b"s"]
    assert bad == []


@pytest.mark.parametrize("flags", [PACKED, PACKED | LZ4, PACKED | ZSTD, PACKED | UNKNOWN])
def test_a_body_that_cannot_be_unpacked_is_reported_and_null(flags: int) -> None:
    made, bad = column([b"good", b"not packed at all, by anything", b"good too"], [0, flags, 0])
    assert made == [b"good", None, b"good too"]
    assert [row for row, _ in bad] == [1]
    assert "decompressed" in bad[0][1]


def test_a_small_body_that_unpacks_to_far_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECOMPRESSED_BYTES_MAX", 1_000)
    for packed, flags in ((zlib.compress(bytes(1_001)), PACKED), (compressed(bytes(1_001), "zstd"), PACKED | ZSTD)):
        made, bad = column([packed], [flags])
        assert made == [None]
        assert "1000" in bad[0][1]
    assert column([zlib.compress(bytes(1_000))], [PACKED]) == ([bytes(1_000)], [])
