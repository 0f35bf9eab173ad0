"""Dice from outside, one stream per purpose, so that a simulation repeats exactly."""

import os
import random
from typing import Protocol


class Entropy(Protocol):
    def token(self, nbytes: int) -> bytes:
        """Bytes that do not repeat (ids)."""
        ...

    def stream(self, purpose: str) -> random.Random:
        """A generator of its own for ``purpose`` (jitter, queue choice)."""
        ...


class SystemEntropy:
    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)

    def stream(self, purpose: str) -> random.Random:
        return random.Random(int.from_bytes(os.urandom(8)))
