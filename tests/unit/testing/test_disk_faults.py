"""Ordered faults happen as often as ordered, random ones with their probability. Their effect on a disk: ``test_faulty_disk.py``."""

import errno
from pathlib import Path

from tests.support.disk_faults import Fails, FaultOrders

PATH = Path("/store/a.seg")


def test_an_ordered_fault_happens_as_often_as_ordered_and_only_where_it_matches() -> None:
    orders = FaultOrders(1)
    assert not orders.any
    orders.order("write", ".seg", Fails(errno.EIO), 2)
    assert orders.any
    assert orders.take("sync", PATH) is None
    assert orders.take("write", Path("/store/b")) is None
    assert [orders.take("write", PATH) for _ in range(3)] == [Fails(errno.EIO), Fails(errno.EIO), None]


def test_after_a_crash_probabilities_remain_and_orders_do_not() -> None:
    orders = FaultOrders(1)
    orders.order("write", "", Fails(errno.EIO), 1)
    orders.order_by_chance("sync", "", Fails(errno.EIO), 1.0)
    orders.clear_next()
    assert orders.take("write", PATH) is None
    assert orders.take("sync", PATH) == Fails(errno.EIO)
    orders.clear()
    assert not orders.any
    assert orders.take("sync", PATH) is None


def test_errors_are_counted_by_operation_and_name() -> None:
    orders = FaultOrders(1)
    orders.count_error("write", errno.ENOSPC)
    orders.count_error("write", errno.ENOSPC)
    assert orders.counts == {"write ENOSPC": 2}
