"""A target whose package is not installed says what to install."""

import importlib
import sys

import pytest

from halfmq.errors import MissingDependency


@pytest.mark.parametrize(("module", "package"), [("rabbitmq", "aiormq"), ("kafka", "confluent_kafka")])
def test_a_target_without_its_package_names_the_extra(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"halfmq.relay.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"{package} is not installed.*halfmq\[{module}\]"):
        importlib.import_module(f"halfmq.relay.{module}")
