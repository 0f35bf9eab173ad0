"""Orders are taken once, chances by their share; what they do to a disk: ``test_faulty_disk.py``."""

import errno
from pathlib import Path

from tests.support.disk_faults import Fails, FaultOrders

PATH = Path("/store/a.seg")


def test_an_order_is_taken_as_often_as_it_was_given_and_only_where_it_fits() -> None:
    orders = FaultOrders(1)
    assert not orders.any
    orders.order("write", ".seg", Fails(errno.EIO), 2)
    assert orders.any
    assert orders.take("sync", PATH) is None
    assert orders.take("write", Path("/store/b")) is None
    assert [orders.take("write", PATH) for _ in range(3)] == [Fails(errno.EIO), Fails(errno.EIO), None]


def test_a_new_process_keeps_the_chances_and_not_the_orders() -> None:
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
