"""The database loses a transaction whose COMMIT it had confirmed: a failover to a replica that did not have it yet.

Nothing here can prevent that. What the check answers then is what the database says now, so that what was still undecided agrees with it;
what was already visible stays (``halfmq pipeline reconcile`` finds it: tests/spark/jobs/test_reconcile.py).
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.unit.sql.faces import DRIVERS, App, app, on

from halfmq.client.outcome import Outcome
from halfmq.errors import SendTimeout, TransactionUnknown

__all__ = ["app"]


@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS if driver.database == "sqlite"], indirect=True)
async def test_check_answers_what_the_database_says_after_it_has_lost_a_commit(app: App, tmp_path: Path) -> None:
    def place(order_id: int) -> Any:
        def body(session: Session, tx: Any) -> None:
            session.add(app.order_type(order_id))
            tx.send(f"t{order_id}", b"x")

        return body

    def no_answer(_tx_id: str) -> None:
        raise SendTimeout("no answer")

    await app.run(place(1))
    replica = tmp_path / "replica.db"
    with app.engine.connect() as connection:
        connection.exec_driver_sql(f"VACUUM INTO '{replica}'")

    await app.run(place(2))
    app.broker.end_error = TransactionUnknown("no answer", tx_id="")
    await app.run(place(3))
    app.broker.on_prepare = no_answer
    with pytest.raises(SendTimeout):
        await app.run(place(4))
    third, fourth = app.broker.undecided()
    assert (app.order_ids(), app.messages()) == ([1, 2, 3], ["t1", "t2"])

    await app.close()
    app.engine.dispose()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"shop.db{suffix}").unlink(missing_ok=True)
    shutil.copyfile(replica, tmp_path / "shop.db")

    app.broker.end_error = None
    assert await app.check() == {third: Outcome.ROLLBACK, fourth: Outcome.ROLLBACK}
    assert app.order_ids() == [1]
    assert app.messages() == ["t1", "t2"], "2 was visible before, and has no order any more"
