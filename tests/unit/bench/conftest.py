"""The benchmarks start real brokers; here they are small."""

import pytest
from tests.support.measured import with_small_segments


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_segments(monkeypatch)
