"""docs/idempotent-requests.md: its program, killed at each step of its transaction and asked again: one order, one message, one
response."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine, text

from halfmq import AsyncClient, Outcome, TransactionRefused, TransactionUndecided, compose
from tests.documents.blocks import blocks_of, in_test
from tests.documents.pages import quotes
from tests.documents.shell import shell
from tests.support.ports import free_port
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_HERE: Final = (
    "tests/documents/test_idempotent_requests_page.py::test_a_request_that_is_repeated_gets_the_same_response"
)
_PROGRAM, _CREATE, _SERVE, _ASK = blocks_of(_HERE)
_KEY: Final = "5f0c1f2e-cart-17"
_QUICK: Final = ("--check-immunity-ms", "300", "--check-interval-ms", "300", "--check-interval-max-ms", "600")
_PRINTED: Final = '{"id":1,"article":"lamp"}'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log", *_QUICK)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def shop(tmp_path: Path, broker: Served, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the program, with its database."""
    monkeypatch.setenv("HALFMQ_URL", broker.url)
    (tmp_path / "orders.py").write_text(_PROGRAM.text)
    shell(in_test(_CREATE.text, f"127.0.0.1:{broker.name_port}", tmp_path), tmp_path)
    return tmp_path


@contextmanager
def serving(shop: Path, port: int, killed_at: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    program = shutil.which("uvicorn", path=str(Path(sys.executable).parent))
    assert program is not None
    crash = ["-m", "halfmq.testing.crashes", killed_at] if killed_at else []
    command = [sys.executable, *crash, program, *_SERVE.text.replace("8000", str(port)).split()[1:]]
    with (shop / "out").open("ab") as out:
        process = subprocess.Popen(command, cwd=shop, env=os.environ, stdout=out, stderr=out)
    try:
        wait_until(lambda: answers(port), (shop / "out").read_text, unless=process.poll)
        yield process
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    with suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=PATIENCE_S).status == 200
    return False


def ask(port: int, article: str = "lamp", key: str = _KEY) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders",
        json.dumps({"article": article}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": key},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def orders(shop: Path) -> list[tuple[int, str]]:
    engine = create_engine(f"sqlite:///{shop / 'shop.db'}")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text("SELECT id, article FROM orders"))]
    engine.dispose()
    return found


def messages(shop: Path) -> list[Any]:
    """Bodies of all messages, once nothing is undecided any more."""
    wait_until(
        lambda: not json.loads(shell("halfmq tx list --json", shop).stdout)["transactions"], "nothing is undecided"
    )
    found = json.loads(shell("halfmq peek order-created --last 10 --json", shop).stdout)["messages"]
    return [json.loads(one["body"]) for one in found]


@pytest.mark.parametrize("point", ["after-marker", "before-local-commit", "after-local-commit", "after-verdict"])
def test_a_request_whose_service_is_killed_is_asked_again(shop: Path, point: str) -> None:
    port = free_port()
    with serving(shop, port, point) as process:
        with pytest.raises(ConnectionResetError):
            ask(port)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    is_committed = point in ("after-local-commit", "after-verdict")
    assert orders(shop) == ([(1, "lamp")] if is_committed else [])
    with serving(shop, port):
        first = ask(port)
        assert first == (201, {"id": 1, "article": "lamp"})
        assert ask(port) == first
        assert orders(shop) == [(1, "lamp")]
        assert messages(shop) == [first[1]]


def test_a_request_that_is_repeated_gets_the_same_response(shop: Path) -> None:
    port = free_port()
    with serving(shop, port):
        ask_as_shown = _ASK.text.replace("8000", str(port))
        first = shell(ask_as_shown, shop).stdout
        assert first == _PRINTED
        assert _PRINTED in {quote.text for quote in quotes("docs/idempotent-requests.md")}
        assert shell(ask_as_shown, shop).stdout == first
        assert ask(port, "table") == (422, {"detail": "this Idempotency-Key was used for another request"})
        assert ask(port, "table", "another-cart") == (201, {"id": 2, "article": "table"})
        assert sorted(one["id"] for one in messages(shop)) == [1, 2]


def test_requests_with_one_key_at_once_make_one_order(shop: Path) -> None:
    ports = (free_port(), free_port())
    with serving(shop, ports[0]), serving(shop, ports[1]), ThreadPoolExecutor(8) as threads:
        for number in range(5):
            key = f"cart-of-{number}"
            got = list(threads.map(lambda port, key=key: ask(port, "lamp", key), ports * 4))
            assert got == [(201, {"id": number + 1, "article": "lamp"})] * 8
    assert len(orders(shop)) == 5
    assert sorted(one["id"] for one in messages(shop)) == [1, 2, 3, 4, 5]


async def test_the_id_of_a_transaction_may_be_the_one_of_the_request(broker: Served) -> None:
    """The last section of the page."""
    async with AsyncClient(broker.url, group="shop") as mq:
        mq.add_check("order.create", lambda check: Outcome.UNKNOWN)
        done = []

        async def place(outcome: Outcome) -> None:
            async with mq.begin("order.create", tx_id=f"{_KEY}:{outcome}", topic="order-created") as tx:
                tx.send({"id": 1})
                await tx.prepare()
                done.append(outcome)
                if outcome is Outcome.ROLLBACK:
                    await tx.rollback()

        for outcome, standing in ((Outcome.COMMIT, "COMMITTED"), (Outcome.ROLLBACK, "ROLLED_BACK")):
            await place(outcome)
            with pytest.raises(TransactionRefused) as refused:
                await place(outcome)
            assert refused.value.standing == standing
        assert done == [Outcome.COMMIT, Outcome.ROLLBACK]

        await mq.prepare([compose("order-created", b"{}")], tx_id=_KEY, name="order.create")
        with pytest.raises(TransactionUndecided):
            async with mq.begin("order.create", tx_id=_KEY, topic="order-created") as tx:
                tx.send({"id": 1})
