"""The stock Java client, 4.9.7 and 5.5.0, with JSON and with binary headers, unchanged against ``halfmq serve``."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfmq import App, Message, NoReply
from tests.compat import expectations
from tests.compat.java_runs import BINARY, FEATURES, JSON, QUICK_REBALANCE, VIP_CHANNEL, run
from tests.compat.toolchain import client_classpath
from tests.support.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(400)]

#: Each version and each header in `make test`, all four combinations in `make test-all`.
CLIENTS = [
    pytest.param((version, header), id=f"{version}-{header.lower()}", marks=marks)
    for version, header, marks in (
        ("4.9.7", BINARY, ()), ("5.5.0", JSON, ()), ("4.9.7", JSON, pytest.mark.thorough), ("5.5.0", BINARY, pytest.mark.thorough),
    )
]  # fmt: skip


@pytest.fixture(scope="module", params=CLIENTS)
def features(
    request: pytest.FixtureRequest, serve: Callable[..., Served], java_home: Path
) -> dict[str, dict[str, Any]]:
    """All feature programs of one client, side by side in one JVM, against one broker."""
    version, header = request.param
    broker = serve("--check-interval-ms", "1000")
    home = java_home / f"{version}-{header}"
    # Half of them send to the port minus 2, as clients before 4.5.1 do by default.
    options = (*QUICK_REBALANCE, *(VIP_CHANNEL if header == BINARY else ()), "-Dtransactions=100")
    programs = (*FEATURES, "Transactions")
    results = run(version, f"127.0.0.1:{broker.name_port}", home, *programs, header=header, options=options)
    assert broker.stop() == 0
    return results


@pytest.mark.parametrize("program", FEATURES)
def test_the_stock_client_finds_what_it_finds_at_a_stock_broker(program: str, features: dict[str, dict[str, Any]]):
    expectations.feature(program, features[program], ours=True)


def test_a_hundred_transactions_have_one_outcome_each(features: dict[str, dict[str, Any]]):
    expectations.transactions(features["Transactions"], 100, ours=True, queues_move=True)


@pytest.mark.parametrize(
    ("version", "header"),
    [pytest.param("4.9.7", BINARY, marks=pytest.mark.thorough), ("5.5.0", JSON)],
    ids=["4.9.7-rocketmq", "5.5.0-json"],
)
def test_a_thousand_transactions_have_one_outcome_each(
    version: str, header: str, serve: Callable[..., Served], java_home: Path
):
    """No quick rebalance here: that both consumers get queues at once shows that the push (40) reaches them."""
    broker = serve("--check-interval-ms", "1000")
    home = java_home / f"transactions-{version}-{header}"
    results = run(version, f"127.0.0.1:{broker.name_port}", home, "Transactions", header=header)
    expectations.transactions(results["Transactions"], 1000, ours=True)
    assert broker.stop() == 0


@pytest.mark.parametrize(
    ("version", "header"),
    [("4.9.7", BINARY), pytest.param("5.5.0", JSON, marks=pytest.mark.thorough)],
    ids=["4.9.7-rocketmq", "5.5.0-json"],
)
async def test_java_and_our_client_reply_to_each_other(
    version: str, header: str, serve: Callable[..., Served], java_home: Path
) -> None:
    """``RequestResponse`` of RocketMQ: each of the two asks the other one, small and large (which Java compresses)."""
    client_classpath(version)  # compiled before anything waits for it
    names = f"127.0.0.1:{serve().name_port}"
    home = java_home / f"exchange-{version}"
    until = home / "until"
    app = App(f"rocketmq://{names}", group="exchange")

    @app.consumer("c-Exchange-to-python", group="exchange")
    async def handle(message: Message) -> None:
        await message.reply(f"python: {message.text()}")

    options = (*QUICK_REBALANCE, f"-Dexchange.until={until}")
    java = asyncio.ensure_future(
        asyncio.to_thread(run, version, names, home, "Exchange", header=header, options=options)
    )
    async with app.run() as mq:
        for text in ("small", "large " * 20_000):
            while True:  # until its consumer is there
                try:
                    reply = await mq.request("c-Exchange-to-java", text, timeout=3)
                except NoReply:
                    assert not java.done(), java.result()
                else:
                    break
            assert reply.text() == f"java: {text}"
            assert reply.properties["MSG_TYPE"] == "reply"
        until.touch()
        result = (await java)["Exchange"]
    assert result == {"small": True, "large": True, "ended": True}
