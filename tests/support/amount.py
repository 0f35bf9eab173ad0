"""How much of something a test does: little in ``make test``, much in ``make test-all``, and what an environment variable says."""

import os
import subprocess
import zlib
from pathlib import Path


def amount(gate: int, everything: int, variable: str = "") -> int:
    """``everything`` under ``python -m tests.run all``; ``variable`` overrides both."""
    usual = everything if os.environ.get("HALFMQ_TEST_SUITE") == "all" else gate
    return int(os.environ.get(variable, usual)) if variable else usual


def seed_of_commit() -> int:
    """Another one for each commit, so that different commits try different cases, and the same again for the same commit.

    ``HALFMQ_TEST_SEED`` overrides it: to repeat a case of another commit, and for many cases beside each other.
    """
    if given := os.environ.get("HALFMQ_TEST_SEED"):
        return int(given)
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return zlib.crc32(done.stdout.strip().encode())
