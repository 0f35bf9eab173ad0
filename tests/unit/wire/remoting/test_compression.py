"""Packed bodies: unpacked, cut off, damaged, bombs, and packages that are not there."""

import importlib
import types
import zlib

import pytest

from halfmq import limits
from halfmq.errors import MissingDependency, ProtocolError
from halfmq.wire.remoting import compression
from halfmq.wire.remoting.compression import LZ4, ZLIB, ZSTD, decompress

PLAIN = b"a body that a client packed " * 300
PACKED = zlib.compress(PLAIN)


@pytest.mark.parametrize("flag", [1, 1 | ZLIB, 1 | 8, 1 | 0x30])
def test_zlib_is_unpacked_with_and_without_its_type(flag):
    assert decompress(PACKED, flag) == PLAIN


def test_what_is_not_packed_stays_as_it_is():
    assert decompress(PACKED, 0) is PACKED
    assert decompress(PACKED, LZ4) is PACKED


@pytest.mark.parametrize("cut", range(len(PACKED)))
def test_a_packed_body_cut_at_any_byte_is_a_protocol_error(cut):
    with pytest.raises(ProtocolError):
        decompress(PACKED[:cut], 1)


def test_damage_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="not valid ZLIB"):
        decompress(b"\0" + PACKED[1:], 1)


def test_an_unknown_type_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="type 5"):
        decompress(PACKED, 1 | 0x500)


def test_a_body_that_unpacks_to_more_than_the_limit_is_refused_before_it_fills_memory(monkeypatch):
    monkeypatch.setattr(limits, "DECOMPRESSED_BYTES_MAX", 1_000)
    assert decompress(zlib.compress(bytes(1_000)), 1) == bytes(1_000)
    with pytest.raises(ProtocolError, match="more than 1000"):
        decompress(zlib.compress(bytes(1_001)), 1)


@pytest.mark.parametrize(("flag", "name"), [(1 | LZ4, "lz4"), (1 | ZSTD, "zstandard")])
def test_a_missing_package_is_named_with_what_to_do(monkeypatch, flag, name):
    def nothing_there(module):
        raise ImportError(module)

    monkeypatch.setattr(compression, "importlib", types.SimpleNamespace(import_module=nothing_there))
    with pytest.raises(MissingDependency, match=f"pip install {name}"):
        decompress(b"packed", flag)


def test_lz4_frames_are_unpacked_where_the_package_is_there():
    lz4 = pytest.importorskip("lz4.frame")
    assert decompress(lz4.compress(PLAIN), 1 | LZ4) == PLAIN
    with pytest.raises(ProtocolError):
        decompress(lz4.compress(PLAIN)[:-10], 1 | LZ4)


def test_zstd_is_unpacked_where_a_package_is_there():
    try:
        pack = importlib.import_module("compression.zstd").compress
    except ImportError:
        pack = pytest.importorskip("zstandard").ZstdCompressor().compress
    assert decompress(pack(PLAIN), 1 | ZSTD) == PLAIN
    for damaged in (pack(PLAIN)[:-10], b"\0" + pack(PLAIN)[1:], b""):
        with pytest.raises(ProtocolError):
            decompress(damaged, 1 | ZSTD)
    with pytest.raises(ProtocolError, match="more than"):
        decompress(pack(bytes(limits.DECOMPRESSED_BYTES_MAX + 1)), 1 | ZSTD)
