"""What a test of the store opens is closed when its module ends: a machine may allow 1,024 open files for all of them."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def open_files(below: Path) -> set[str]:
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # of this listing itself
        if target.startswith(str(below)):
            found.add(target)
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_open(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not os.path.isdir("/proc/self/fd"):
        yield
        return
    before = open_files(tmp_path_factory.getbasetemp())
    yield
    assert open_files(tmp_path_factory.getbasetemp()) <= before
