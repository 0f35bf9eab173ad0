"""Brokers for clients that we did not write."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.toolchain import require_java
from tests.support.served import Served, starting


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """``serve(*options)`` starts ``halfmq serve`` on a fresh directory and free ports; ended with the module."""
    require_java()
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def java_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Java clients write their logs and local offsets."""
    return tmp_path_factory.mktemp("java-home")
