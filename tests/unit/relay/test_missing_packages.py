"""A target, or an integration, whose package is not installed says what to install."""

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


def test_django_without_django_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "halfmq.django", raising=False)
    monkeypatch.setitem(sys.modules, "django", None)
    with pytest.raises(MissingDependency, match=r"django is not installed.*halfmq\[django\]"):
        importlib.import_module("halfmq.django")
