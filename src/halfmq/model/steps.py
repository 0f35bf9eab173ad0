"""Computations that may be interrupted: a generator that yields at least once in about a millisecond, and returns the result.

A broker runs them in turns of its event loop (``broker.turns``). They know nothing of time: what they do between two yields is bounded by
counts.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
