"""Inputs from inputs: damage that a parser must survive, by a seeded rng.

Plain damage (bits, bytes, blocks, numbers at the edge of their width) on the whole or on one part of it, and damage that
knows JSON: scalars become other scalars, blocks become nested ones.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from tests.fuzz.target import Target

_EDGES: Final = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    63,
    64,
    127,
    128,
    255,
    256,
    32_767,
    32_768,
    65_535,
    1 << 20,
    (1 << 24) - 1,
    1 << 24,
)
_SCALAR: Final = re.compile(rb'"(?:[^"\\]|\\.){0,80}"|-?\d+|true|false|null')
_SCALARS: Final = (
    b"null", b"true", b"false", b"0", b"-1", b"1.0", b"1.5", b"1e3", b"1e400", b"-0", b"2147483647", b"2147483648",
    b"-2147483649", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 400, b'""', b'"0"',
    b'"-1"', b'"1.0"', b'" 1"', b'"1_0"', b'"true"', b'"True"', b'"null"', b'"NaN"', b'"\\u0000"', b'"\\u0001"',
    b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\xc3\xa9"', b'"\xff"', b"[]", b"{}", b"[0]", b'{"a":0}', b"{0:1}", b"{{}:1}",
    b'"%RETRY%C"', b'"TBW102"', b'"RMQ_SYS_TRANS_HALF_TOPIC"', b'"' + b"x" * 300 + b'"',
)  # fmt: skip
_INPUT_BYTES_MAX: Final = 65_536


class Mutator:
    """``pool``: inputs that blocks are taken from. The same rng give the same inputs."""

    def __init__(self, target: Target, rng: random.Random, pool: Sequence[bytes]) -> None:
        self._target = target
        self._rng = rng
        self._pool = pool
        self._ways: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._byte, self._insert, self._delete, self._repeat, self._number, self._number, self._block,
            self._scalar, self._scalar, self._nest, self._cut,
        )  # fmt: skip

    def fresh(self) -> bytes:
        return self.mutated(self._rng.choice(self._pool))

    def mutated(self, data: bytes) -> bytes:
        rng = self._rng
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            if rng.random() < 0.7:
                parts = self._target.split(data)
                place = rng.randrange(len(parts))
                match rng.randrange(10):
                    case 0:
                        parts.insert(place, rng.choice(parts))
                    case 1 if len(parts) > 1:
                        del parts[place]
                    case _:
                        parts[place] = self._damaged(parts[place])
                data = self._target.join(parts)
            else:
                data = self._damaged(data)
        return data[:_INPUT_BYTES_MAX]

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        self._rng.choice(self._ways)(changed)
        return bytes(changed)

    def _place(self, data: bytearray) -> int:
        return self._rng.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._rng.randrange(len(data))] = self._rng.choice((0, 1, 2, 127, 128, 255, self._rng.randrange(256)))

    def _insert(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._rng.choice((b"\0" * 4, b"\x01", b"\x02", b'"', b"{", b"}", b"[", b",", b":", self._noise()))

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, 40))

    def _delete(self, data: bytearray) -> None:
        at = self._place(data)
        del data[at : at + self._rng.randrange(1, 20)]

    def _repeat(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = data[at : at + self._rng.randrange(1, 60)] * self._rng.choice((1, 1, 2, 40))

    def _number(self, data: bytearray) -> None:
        width = self._rng.choice((1, 2, 3, 4, 4, 8))
        if len(data) >= width:
            at = self._rng.randrange(len(data) - width + 1)
            there = int.from_bytes(data[at : at + width], "big")
            value = self._rng.choice(
                (there + 1, there - 1, there * 2, self._rng.choice(_EDGES), -self._rng.choice(_EDGES))
            )
            data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")

    def _block(self, data: bytearray) -> None:
        other = self._rng.choice(self._pool)
        start = self._rng.randrange(len(other) + 1)
        at = self._place(data)
        data[at : at + self._rng.choice((0, 0, 30))] = other[start : start + self._rng.randrange(1, 120)]

    def _scalar(self, data: bytearray) -> None:
        found = list(_SCALAR.finditer(data))
        if found:
            hit = self._rng.choice(found)
            data[hit.start() : hit.end()] = self._rng.choice((*_SCALARS, self._rng.choice(found).group()))

    def _nest(self, data: bytearray) -> None:
        depth = self._rng.choice((1, 3, 20, 63, 66, 400, 1_200))
        opening, closing = self._rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{0:", b"}"), (b"{", b":1}")))
        found = list(_SCALAR.finditer(data))
        start, end = self._rng.choice(found).span() if found else (0, len(data))
        data[start:end] = opening * depth + data[start:end] + closing * depth

    def _cut(self, data: bytearray) -> None:
        del data[self._place(data) :]
