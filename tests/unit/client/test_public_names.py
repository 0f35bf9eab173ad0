"""``import halfmq`` is cheap, and every public name is there when it is asked for."""

import inspect
import subprocess
import sys
from typing import Final

import pytest

import halfmq
from halfmq.client import sync

HEAVY = ("sqlalchemy", "typer", "rich", "pydantic", "pyspark", "pyarrow", "numpy", "uvloop", "opentelemetry")


def test_every_public_name_loads() -> None:
    for name in halfmq.__all__:
        assert getattr(halfmq, name) is not None
    assert dir(halfmq) == halfmq.__all__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        halfmq.nothing_like_it  # noqa: B018


def test_client_package_gives_the_same_names() -> None:
    import halfmq.client as client

    assert all(getattr(client, name) is not None for name in client.__all__)
    with pytest.raises(AttributeError):
        client.nothing_like_it  # noqa: B018


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


def test_import_of_the_package_loads_nothing_of_it() -> None:
    loaded = loaded_by("import halfmq")
    assert not any(name.startswith("halfmq.") for name in loaded)
    assert "asyncio" not in loaded


def test_import_of_the_client_loads_no_heavy_package() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("from halfmq import App, AsyncClient, Client")}
    assert not loaded & set(HEAVY)
    assert "msgspec" in loaded


def test_a_service_that_only_sends_loads_neither_transactions_nor_consumers() -> None:
    loaded = loaded_by("from halfmq import AsyncClient, compose")
    for later in (
        "transaction",
        "transaction_block",
        "prepare",
        "check_listener",
        "message",
        "consumer",
        "queue_puller",
        "sync",
    ):
        assert f"halfmq.client.{later}" not in loaded, later
    assert "halfmq.client.producer" in loaded


#: Classes with which code without asyncio works; a reader must not have to look up what the asynchronous ones say.
_BLOCKING: Final = (sync.Client, sync.BlockingMessage, sync.BlockingBatch, sync.BlockingConsumer, sync.BlockingRelay)


def test_each_public_name_of_the_blocking_client_is_documented_by_itself() -> None:
    documented = 0
    for owner in _BLOCKING:
        for name, member in vars(owner).items():
            if name.startswith("_"):
                continue
            text = inspect.getdoc(member.__func__ if isinstance(member, classmethod) else member)
            if not callable(member) and not isinstance(member, property | classmethod):
                continue
            assert text, f"{owner.__name__}.{name}"
            assert not text.startswith("See "), f"{owner.__name__}.{name}: {text}"
            documented += 1
    assert documented > 40
