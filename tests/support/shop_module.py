"""An application in a module of its own, as commands import it: ``shop.py`` with an ``App``, all tables of halfmq, and one relay."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

_SOURCE = """
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from halfmq import App
from halfmq.sql import Inbox, MarkerTable, Outbox

metadata = MetaData()
markers, inbox, outbox = MarkerTable(metadata), Inbox(metadata), Outbox(metadata)
sessions = sessionmaker(create_engine("sqlite:///{path}"))
app = App("{url}", group="shop", sessions=sessions)
app.answer_checks(markers)
app.relay(outbox)

asynchronous = App("{url}", group="shop", sessions=async_sessionmaker(create_async_engine("sqlite+aiosqlite:///{path}")))
asynchronous.relay(outbox)
without = App("{url}", group="shop", sessions=sessions)
other = Outbox(metadata, "mq_other")
two = App("{url}", group="shop", sessions=sessions)
two.relay(outbox)
two.relay(other)
wrong = App("{url}", group="shop", sessions=sessions)
wrong.relay(outbox, lease=-1)
"""


def shop_module(
    monkeypatch: pytest.MonkeyPatch, directory: Path, url: str = "rocketmq://127.0.0.1:1", *, tables: bool = True
) -> Any:
    """Write it to ``directory``, which becomes the current one; returns the imported module. ``tables``: create them."""
    (directory / "shop.py").write_text(_SOURCE.format(path=directory / "shop.db", url=url))
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    importlib.invalidate_caches()
    shop = importlib.import_module("shop")
    if tables:
        shop.metadata.create_all(shop.sessions.kw["bind"])
    return shop
