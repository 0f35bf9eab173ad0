"""Freed memory is used again without fresh pages from the system."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import json, resource, sys
from halfmq.runtime.allocator import keep_freed_memory
kept = keep_freed_memory(32 << 20) if sys.argv[1] == "keep" else None
def use():
    blocks = [bytearray(4 << 20) for _ in range(4)]
for _ in range(3):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(json.dumps([kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""
_PAGES = 10 * 4 * (4 << 20) // 4096


def ran(how: str, **environment: str) -> Any:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], env=kept | environment, capture_output=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="what glibc does; elsewhere nothing is changed")
def test_blocks_are_used_again_without_page_faults() -> None:
    kept, faults = ran("keep")
    assert kept is True
    assert faults < _PAGES // 100
    _, usual = ran("do not")
    assert usual > _PAGES // 2, "what the test is about; glibc returned the memory each time"


def test_an_environment_that_chooses_is_left_alone() -> None:
    assert ran("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] is False
