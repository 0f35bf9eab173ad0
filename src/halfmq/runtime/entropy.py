"""Randomness. One generator per purpose, so that a simulation with the same seed is reproducible."""

import os
import random
from typing import Protocol


class Entropy(Protocol):
    """Source of randomness; simulations use a seeded one."""

    def token(self, nbytes: int) -> bytes:
        """``nbytes`` random bytes, for unique ids."""

    def stream(self, purpose: str) -> random.Random:
        """A new generator for ``purpose`` (jitter, queue selection)."""


class SystemEntropy:
    """Randomness of the operating system."""

    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)

    def stream(self, purpose: str) -> random.Random:
        return random.Random(int.from_bytes(os.urandom(8)))  # nosec B311 # jitter and choice; what must not be guessed is `token`
