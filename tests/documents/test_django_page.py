"""docs/django.md, as a reader follows it: a project with the page's settings, blocks, consumers and commands."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.blocks import blocks_of, in_test
from tests.documents.pages import commands, output, same
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

_SETTINGS = """
SECRET_KEY = "of-the-test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "OPTIONS": {"timeout": 20}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
_MODELS = """
from django.db import models

class Order(models.Model):
    note = models.CharField(max_length=40)

class Invoice(models.Model):
    order_id = models.BigIntegerField()
"""
_MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""
_BEFORE = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()
from django.db import transaction
from halfmq import django as mq
from shop.models import Order
"""
_AGE = "UPDATE {table} SET {column} = {column} - 40 * 86400000 WHERE {key} NOT LIKE '#%'"


def test_a_project_does_what_the_page_says(tmp_path: Path) -> None:
    settings, atomic, outbox, relay, consumers, worker, prune = blocks_of(
        "tests/documents/test_django_page.py::test_a_project_does_what_the_page_says"
    )
    broker = Served(tmp_path / "data", tmp_path / "broker.log", "--durability", "memory")
    broker.start()
    try:
        (tmp_path / "shop").mkdir()
        own = settings.text.replace("...", '"shop"')
        files = {
            "settings.py": _SETTINGS + in_test(own, f"127.0.0.1:{broker.name_port}", tmp_path),
            "manage.py": _MANAGE,
            "place.py": _BEFORE + atomic.text + outbox.text,
            "shop/__init__.py": "",
            "shop/models.py": _MODELS,
            "shop/consumers.py": consumers.text,
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        run(tmp_path, "manage.py", "makemigrations", "shop")
        run(tmp_path, "manage.py", "migrate")
        run(tmp_path, "place.py")
        run(tmp_path, *commands(relay)[0].split()[1:], "--once")
        work(tmp_path, commands(worker)[0].split()[1:])
        assert ask(tmp_path, "SELECT order_id FROM shop_invoice ORDER BY order_id") == [(1,), (2,)]
        assert ask(tmp_path, "SELECT topic FROM mq_outbox") == [("order-billed",)] * 2
        for table, column, key in (("mq_tx", "written_at_ms", "tx_id"), ("mq_inbox", "handled_at_ms", "message_key")):
            ask(tmp_path, _AGE.format(table=table, column=column, key=key))
        said = "".join(run(tmp_path, *command.split()[1:]) for command in commands(prune))
        assert same(output(prune), said), f"{prune.place} shows\n{output(prune)}\nand it is\n{said}"
    finally:
        broker.stop()


def run(directory: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def work(directory: Path, words: list[str]) -> None:
    """Until both orders are billed."""
    log = directory / "worker.log"
    with log.open("wb") as written:
        process = subprocess.Popen([sys.executable, *words], cwd=directory, stderr=written, env={**os.environ})
    try:
        wait_until(
            lambda: len(ask(directory, "SELECT id FROM shop_invoice")) == 2, f"two invoices; {log}", unless=process.poll
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def ask(directory: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(directory / "shop.db", timeout=20)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()
