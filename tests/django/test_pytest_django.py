"""A project whose tests use pytest-django and the fixtures of ``halfmq.testing``, with the conftest and the tests of docs/django.md.

Our own runs are without pytest-django (pyproject.toml), so the project's tests are a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfmq.testing import TRANSACTION_POINTS
from tests.django.conftest import MARIADB, POSTGRES, place_of
from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT

_SETTINGS = """
SECRET_KEY = "of-the-test"
ALLOWED_HOSTS = ["*"]
DATABASES = {{"default": {database!r} | {{"ATOMIC_REQUESTS": True}}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "halfmq.django"]
ROOT_URLCONF = "shop.urls"
HALFMQ = {{"URL": "rocketmq://127.0.0.1:1", "GROUP": "orders"}}
if DATABASES["default"]["ENGINE"].endswith("mysql"):
    from tests.django.shop import mysql_driver

    mysql_driver.install()
"""
_PYTEST = """
[pytest]
DJANGO_SETTINGS_MODULE = settings
pythonpath = .
filterwarnings = error
# Of pytest-asyncio, which is installed beside it here.
asyncio_default_fixture_loop_scope = function
"""
_MODELS = """
from django.db import models

class Order(models.Model):
    note = models.CharField(max_length=40)
"""
_ORDERS = """
from halfmq import django as mq
from shop.models import Order

def place(note, durable=True):
    with mq.atomic(durable=durable) as tx:
        order = Order.objects.create(note=note)
        tx.send("order-created", {"id": order.pk})
    return order
"""
_URLS = """
from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from shop.orders import place

def view(request):
    place("three apples", durable=False)
    if "raises" in request.GET:
        raise ZeroDivisionError
    return HttpResponse()

@transaction.non_atomic_requests
async def asynchronous(request):
    await sync_to_async(place)("four apples")
    return HttpResponse()

urlpatterns = [path("place", view), path("asynchronous", asynchronous)]
"""
_MORE = """
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from halfmq import django as mq
from halfmq.django.models import OutboxMessage
from shop.models import Order

@pytest.mark.django_db
def test_a_view_within_the_transactions_of_its_request(client, halfmq_sent, django_capture_on_commit_callbacks):
    client.get("/place")
    assert halfmq_sent("order-created") == []
    with django_capture_on_commit_callbacks(execute=True):
        client.get("/place")
    assert len(halfmq_sent("order-created")) == 1

@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("raises", [False, True])
def test_a_view_that_raises_behind_its_block_leaves_no_phantom(client, halfmq_broker, halfmq_sent, raises):
    client.raise_request_exception = False
    status = client.get("/place", {"raises": 1} if raises else {}).status_code
    assert status == (500 if raises else 200)
    assert len(halfmq_broker.undecided()) == raises
    halfmq_broker.settle()
    assert len(halfmq_sent("order-created")) == Order.objects.count() == (not raises)

@pytest.mark.asyncio
@pytest.mark.django_db(transaction=True)
async def test_an_asynchronous_view(async_client, halfmq_sent):
    assert (await async_client.get("/asynchronous")).status_code == 200
    assert len(halfmq_sent("order-created")) == await Order.objects.acount() == 1
    # Of the thread in which Django runs what blocks; the test client keeps it open, and PostgreSQL then keeps the database.
    await sync_to_async(connections.close_all)()

@pytest.mark.django_db
def test_the_outbox_is_a_table(halfmq_sent):
    with transaction.atomic():
        mq.send_on_commit("order-created", {"id": 1})
    assert OutboxMessage.objects.get().topic == "order-created"
    halfmq_sent.nothing()

def test_without_a_database(halfmq_sent):
    halfmq_sent.nothing()
"""
_NAMED = 3 + len(TRANSACTION_POINTS) + 6


def project(directory: Path, database: dict[str, Any]) -> None:
    """Its conftest and one file of its tests are those of the page."""
    conftest, tests = blocks_of("tests/django/test_pytest_django.py::test_the_fixtures_in_a_project")
    files = {
        "settings.py": _SETTINGS.format(database=database),
        "pytest.ini": _PYTEST,
        "conftest.py": conftest.text,
        "test_orders.py": tests.text,
        "test_more.py": _MORE,
        "shop/__init__.py": "",
        "shop/models.py": _MODELS,
        "shop/orders.py": _ORDERS,
        "shop/urls.py": _URLS,
    }
    (directory / "shop").mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["sqlite", POSTGRES, pytest.param("mariadb", marks=[*MARIADB.marks, pytest.mark.thorough])]
)
def test_the_fixtures_in_a_project(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    project(tmp_path / "project", place_of(kind, request, tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path / "project", env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"=+ {_NAMED} passed in ", done.stdout), done.stdout


def _environment() -> dict[str, str]:
    """Without what our own conftest says of Django and the options of our run. The settings for MariaDB import ``tests``."""
    ours = ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"PYTHONPATH": str(ROOT)}
