"""The control: our Java programs against a stock Apache RocketMQ. What they demand of halfmq must be true there."""

from pathlib import Path

import pytest

from tests.compat import expectations
from tests.compat.java_runs import FEATURES, QUICK_REBALANCE, run
from tests.compat.stock_broker import StockBroker

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(400)]

VERSION = "4.9.7"


def test_the_programs_say_of_a_stock_broker_what_it_does(tmp_path: Path):
    with StockBroker(VERSION, tmp_path / "stock", transactionTimeOut="1000", transactionCheckInterval="1000") as stock:
        options = (*QUICK_REBALANCE, "-Dtransactions=300")
        results = run(VERSION, stock.names, tmp_path / "home", *FEATURES, "Transactions", options=options)
    for program in FEATURES:
        expectations.feature(program, results[program], ours=False)
    expectations.transactions(results["Transactions"], 300, ours=False)
