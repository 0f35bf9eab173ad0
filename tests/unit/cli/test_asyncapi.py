"""``halfmq asyncapi``: what it prints for whom, and what it says when there is no document."""

import json
from pathlib import Path

import pytest
import yaml
from tests.support.asyncapi_schema import mistakes
from typer.testing import CliRunner, Result

from halfmq.cli.asyncapi import app
from halfmq.cli.exit_status import ExitStatus

_SOURCE = '''
from dataclasses import dataclass, field
from halfmq import App


@dataclass
class Order:
    """First: line.

    - "second" #3
    """

    id: int
    no: list[dict[str, int]]
    tags: list[str] = field(default_factory=list)
    paid: bool = False


class Unknown:
    pass


def make():
    made = App("rocketmq://mq:9876", group="shop")
    made.publishes("orders", Order, description="yes")
    return made


def odd():
    made = make()
    made.publishes("odd", list[Unknown])
    return made
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "CliRunner":
    (tmp_path / "described_shop.py").write_text(_SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return CliRunner()


def printed(run: CliRunner, *arguments: str) -> str:
    done: Result = run.invoke(app, ["described_shop:make", *arguments])
    assert done.exit_code == ExitStatus.SUCCESS, done.output
    return done.stdout


def test_json_and_yaml_are_one_document(run: CliRunner) -> None:
    found = json.loads(printed(run))
    assert mistakes(found) == []
    assert yaml.safe_load(printed(run, "--yaml")) == found
    assert found["info"] == {"title": "described_shop", "version": "0.0.0"}
    assert found["components"]["schemas"]["Order"]["properties"].keys() == {"id", "no", "tags", "paid"}


@pytest.mark.parametrize("text", ["on", "1.10", "a: b # c", "- a", "line\nline", "\u2028 ü \x1b[31m", "null", ""])
def test_titles_and_versions_are_text_in_yaml_too(run: CliRunner, text: str) -> None:
    out = printed(run, "--yaml", "--title", text or "-", "--version", text)
    assert "\x1b" not in out
    assert yaml.safe_load(out)["info"] == {"title": text or "-", "version": text}


def test_a_title_that_has_no_utf_8_form_is_refused(run: CliRunner) -> None:
    done = run.invoke(app, ["described_shop:make", "--title", "\udcff"])
    assert done.exit_code == ExitStatus.USAGE
    assert "half a surrogate pair" in done.stderr


def test_the_type_without_a_schema_is_named(run: CliRunner) -> None:
    done = run.invoke(app, ["described_shop:odd"])
    assert done.exit_code == ExitStatus.USAGE
    assert done.stdout == ""
    assert "described_shop:odd: a body has no JSON Schema: type <class 'described_shop.Unknown'>" in done.stderr
