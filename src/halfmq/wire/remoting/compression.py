"""Compression of message bodies; bits 8-10 of sysFlag are the method.

ZLIB (RFC 1950) is in the standard library. LZ4 (frame format) and ZSTD need optional packages, which are imported with the first
such body. Source: RocketMQ ``CompressionType``, ``MessageSysFlag``.
"""

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

from halfmq import limits
from halfmq.errors import MissingDependency, ProtocolError
from halfmq.model.stored_message import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK

LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The decompressed body; ``body`` itself if it is not compressed.

    Raises:
        ProtocolError: the data does not match ``sys_flag``, or exceeds ``limits.DECOMPRESSED_BYTES_MAX``.
        MissingDependency: the package for LZ4 or ZSTD is not installed. The message itself is intact.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    match sys_flag & SYS_COMPRESSION_TYPE_MASK:
        case 0 | 0x300:  # 4.x clients set no type
            return _unpacked(body, "ZLIB", _zlib_stream)
        case 0x100:
            return _unpacked(body, "LZ4", _lz4_stream)
        case 0x200:
            return _unpacked(body, "ZSTD", _zstd_stream)
        case other:
            raise ProtocolError(f"compression type {other >> 8} is unknown")


def _unpacked(body: bytes, name: str, unpack: Callable[[bytes, int], tuple[bytes, bool]]) -> bytes:
    limit = limits.DECOMPRESSED_BYTES_MAX
    try:
        plain, whole = unpack(body, limit + 1)
    except (MissingDependency, MemoryError):
        raise
    except Exception as error:
        raise ProtocolError(f"a body is not valid {name} data, although its flags say so: {error}") from error
    if len(plain) > limit:
        raise ProtocolError(f"a body of {len(body)} bytes decompresses to more than {limit}")
    if not whole:
        raise ProtocolError(f"a {name} body is truncated")
    return plain


def _zlib_stream(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    return stream.decompress(body, bytes_max), stream.eof


def _lz4_stream(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = _package("lz4.frame", "lz4").LZ4FrameDecompressor()
    return stream.decompress(body, max_length=bytes_max), stream.eof


def _zstd_stream(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    try:
        standard: Any = importlib.import_module("compression.zstd")  # Python 3.14 and later
    except ImportError:
        return _zstandard_stream(body, bytes_max)
    decompressor = standard.ZstdDecompressor()
    return decompressor.decompress(body, max_length=bytes_max), decompressor.eof


def _zstandard_stream(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """``zstandard`` cannot limit its output, so it gets the input in steps of 1 KiB, which decompress to at most 32 MiB."""
    stream = _package("zstandard", "zstandard").ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    for at in range(0, len(body), 1024):
        parts.append(stream.decompress(body[at : at + 1024]))
        size += len(parts[-1])
        if stream.eof or size >= bytes_max:
            break
    return b"".join(parts), stream.eof or size >= bytes_max


def _package(module: str, distribution: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"decompressing a body requires the package {distribution}", hint=f"pip install {distribution}"
        ) from error
