"""docs/tutorials.md, as a reader follows it: each command in its order, in a checkout with a broker."""

import shutil
from pathlib import Path

import pytest

from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT
from tests.documents.test_outbox_page import broker, follow
from tests.support.served import Served

__all__ = ["broker"]


@pytest.mark.slow
def test_what_the_reader_does_and_sees(tmp_path: Path, broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    die, *steps = blocks_of("tests/documents/test_tutorials.py::test_what_the_reader_does_and_sees")
    monkeypatch.setenv("HALFMQ_URL", broker.url)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "die.py").write_text(die.text)
    assert len(steps) >= 9
    for step in steps:
        follow(step, tmp_path)
