"""In Django's own test cases: nothing is sent before the functions of on_commit run, and captureOnCommitCallbacks runs them."""

import unittest
from typing import Any

import pytest
from django.test import TestCase, TransactionTestCase

from halfmq.django.markers import Markers
from tests.django.shop.models import Order
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient


class _Sends:
    def setUp(self) -> None:
        self.broker = MemoryBroker()
        self.markers = Markers("default")

    def place(self, note: str) -> None:
        with self.markers.bind(MemoryClient(self.broker), True) as tx:  # durable is allowed in a TestCase
            Order.objects.create(note=note)
            tx.send("orders", note)

    def texts(self) -> list[str]:
        return [message.body.decode() for message in self.broker.visible()]


class InATestCase(_Sends, TestCase):
    __test__ = False  # run below, on a database of its own

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        self.place("a")
        assert self.texts() == [], "the transaction of the test is never committed"
        with self.captureOnCommitCallbacks(execute=True) as called:
            self.place("b")
        assert self.texts() == ["b"]
        assert len(called) == 1


class InATransactionTestCase(_Sends, TransactionTestCase):
    __test__ = False

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        self.place("a")
        assert self.texts() == ["a"]


@pytest.mark.parametrize("case", [InATestCase, InATransactionTestCase])
def test_a_case_of_django(using: str, case: Any) -> None:
    result = unittest.TestResult()
    unittest.TestSuite([case()]).run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    assert result.testsRun == 1
