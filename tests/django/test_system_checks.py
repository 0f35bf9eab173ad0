"""What `manage.py check` says: each mistake in the setting HALFMQ and each missing table once, before a request meets it."""

import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, run_checks
from django.db import connections
from django.test import override_settings

from halfmq import django as mq
from halfmq.errors import UsageError
from tests.django.project import Project

RIGHT: Final = {"URL": "rocketmq://127.0.0.1:1", "GROUP": "shop"}
#: A setting, and what is said of it.
WRONG: Final = {
    "missing": (None, "the setting HALFMQ is missing, or no dictionary"),
    "no URL": ({"GROUP": "shop"}, "HALFMQ has no 'URL'"),
    "no GROUP": ({"URL": RIGHT["URL"], "GROUP": ""}, "HALFMQ has no 'GROUP'"),
    "type": ({**RIGHT, "URL": 9876}, "HALFMQ['URL'] is int"),
    "one alias": ({**RIGHT, "DATABASES": "default"}, "HALFMQ['DATABASES'] is str"),
    "unknown key": ({**RIGHT, "DATABASE": ["default"]}, "HALFMQ has an unknown key 'DATABASE'"),
    "scheme": (
        {**RIGHT, "URL": "http://127.0.0.1"},
        "HALFMQ: url 'http://***' has a scheme that is not supported",
    ),
    "group": ({**RIGHT, "GROUP": "a b"}, "HALFMQ: group 'a b' is not a valid name"),
    "option": ({**RIGHT, "OPTIONS": {"wait": 1}}, "HALFMQ: Client got an unexpected option 'wait'"),
    "value": ({**RIGHT, "OPTIONS": {"timeout": "soon"}}, "HALFMQ: timeout='soon' is not a duration"),
}


def said(*databases: str) -> list[CheckMessage]:
    return [message for message in run_checks(databases=databases or None) if str(message.id).startswith("halfmq.")]


def one(*databases: str) -> CheckMessage:
    (message,) = said(*databases)
    return message


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``DATABASES`` says of a second database."""
    values = connections.configure_settings({"default": {}, "other": {"ENGINE": "django.db.backends.sqlite3"}})["other"]
    monkeypatch.setitem(settings.DATABASES, "other", values)
    return values


def test_nothing_is_said_of_what_is_right(using: str) -> None:
    assert said() == said(using) == []


@pytest.mark.parametrize(("values", "text"), WRONG.values(), ids=WRONG)
def test_a_mistake_in_the_setting_is_said_once_with_its_remedy(
    values: dict[str, Any] | None, text: str, using: str
) -> None:
    with override_settings(HALFMQ=values):
        message = one(using)
    assert (message.id, message.msg[: len(text)]) == ("halfmq.E001", text)
    if message.hint is not None:
        assert message.hint not in message.msg


@pytest.mark.parametrize(
    ("key", "value", "example"),
    [
        ("DATABASES", "default", '["default"]'),
        ("ANSWER_CHECKS", 0, "False"),
        ("OPTIONS", ["timeout"], '{"timeout": 5}'),
    ],
)
def test_the_remedy_shows_a_value_of_the_key_that_is_wrong(key: str, value: object, example: str) -> None:
    with override_settings(HALFMQ={**RIGHT, key: value}):
        assert one().hint == f'"{key}": {example}'


def test_an_alias_that_is_no_database_is_said_once() -> None:
    with override_settings(HALFMQ={**RIGHT, "DATABASES": ["default", "orders", "orders"]}):
        message = one()
    assert (message.id, message.msg) == ("halfmq.E002", "HALFMQ['DATABASES'] names 'orders', which DATABASES has not")


def test_autocommit_off_is_an_error(other: dict[str, Any]) -> None:
    other["AUTOCOMMIT"] = False
    with override_settings(HALFMQ={**RIGHT, "DATABASES": ["default", "other"]}):
        message = one()
    assert (message.id, message.msg[:36]) == ("halfmq.E003", "database 'other' has AUTOCOMMIT off,")


def test_a_database_without_tables_of_halfmq_is_an_error(other: dict[str, Any]) -> None:
    other["ENGINE"] = "django.db.backends.dummy"
    with override_settings(HALFMQ={**RIGHT, "DATABASES": ["other"]}):
        message = one("other")
        assert said() == [], "Django has not asked about databases"
    assert (message.id, message.msg) == ("halfmq.E004", "halfmq has no tables for unknown")
    del connections["other"]


def test_a_missing_table_is_a_warning_for_the_databases_that_django_asks_about(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other["NAME"] = str(tmp_path / "other.db")
    with override_settings(HALFMQ={**RIGHT, "DATABASES": ["other"]}):
        message = one("other", "default")
        assert said("default") == []
        with connections["other"].cursor() as cursor:
            cursor.execute("CREATE TABLE mq_tx (tx_id TEXT)")
        some = one("other")
        monkeypatch.setattr(sys, "argv", ["manage.py", "migrate", "--database", "other"])
        assert said("other") == [], "it is about to create them"
    connections["other"].close()
    del connections["other"]
    missing = "mq_inbox, mq_outbox, mq_outbox_lane in database 'other'"
    assert (message.id, message.msg) == ("halfmq.W001", f"there is no table mq_tx, {missing}")
    assert (some.id, some.msg) == ("halfmq.W001", f"there is no table {missing}")
    assert message.hint == "manage.py migrate halfmq --database other"


def test_a_database_that_the_setting_does_not_name_sends_nothing(other: dict[str, Any]) -> None:
    """Nobody would answer its checks."""
    with (
        override_settings(HALFMQ=RIGHT),
        pytest.raises(UsageError, match=r"nobody answers checks about database 'other'.*add 'other'"),
    ):
        mq.atomic("other")


@pytest.mark.slow
def test_manage_py_check_says_each_message_once(tmp_path: Path) -> None:
    databases = {
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / name)} for name in ("default", "other")
    }
    project = Project(databases, "rocketmq://127.0.0.1:1", tmp_path / "log")
    assert project.manage("check", "--database", "default").count("halfmq.W001") == 1, "also before the first migrate"
    project.manage("check", "--database", "default", "--fail-level", "WARNING", status=1)
    for using in databases:
        assert "W001" not in project.manage("migrate", "--database", using), "it is about to create them"
        project.manage("migrate", "halfmq", "zero", "--verbosity", "0", "--database", using)
    shown = project.manage("check", "--database", "default", "--database", "other")
    assert re.findall(r"\((halfmq\.\w+)\).* in database '(\w+)'", shown) == [
        ("halfmq.W001", "default"),
        ("halfmq.W001", "other"),
    ]
    for using in databases:
        project.manage("migrate", "--verbosity", "0", "--database", using)
    assert "no issues" in project.manage("check", "--database", "default", "--database", "other")
    wrong = Project(databases, "http://nowhere", tmp_path / "log").manage("check", status=1)
    assert re.findall(r"halfmq\.\w+", wrong) == ["halfmq.E001"]
