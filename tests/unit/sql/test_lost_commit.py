"""A real connection to a server that is lost in COMMIT: before it got there, and after it took effect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session
from tests.support.cut_line import CutLine
from tests.unit.sql.faces import DRIVERS, App, agree, app, on, place

from halfmq.client.outcome import Outcome
from halfmq.errors import TransactionUnknown

__all__ = ["app"]

CUTS = [
    pytest.param("before", Outcome.ROLLBACK, [], id="before"),
    pytest.param("after", Outcome.COMMIT, [1], id="after"),
]


@pytest.fixture
def line(app: App, request: pytest.FixtureRequest) -> Iterator[CutLine]:
    """The application's way to its server."""
    if app.driver.database == "postgresql":
        directory: Path = request.getfixturevalue("postgres_server").directory
        line = CutLine(directory)
    else:
        socket: Path = request.getfixturevalue("mariadb_server").socket
        directory, line = socket.parent, CutLine(socket.parent, socket.name)
    app.url = app.url.replace(str(directory), str(line.directory))
    yield line
    line.close()


@pytest.mark.parametrize(("cut", "outcome", "orders"), CUTS)
@pytest.mark.parametrize("app", [on(driver) for driver in DRIVERS if driver.database != "sqlite"], indirect=True)
async def test_nothing_is_told_and_the_check_finds_the_truth(
    app: App, line: CutLine, cut: Any, outcome: Outcome, orders: list[int]
) -> None:
    def body(session: Session, tx: Any) -> None:
        place(app, session, tx, 1)
        line.cut = cut

    with pytest.raises(TransactionUnknown) as caught:
        await app.run(body)
    assert (line.cuts, caught.value.tx_id) == (1, "tx-1")
    assert app.broker.calls == [("prepare", "tx-1")]
    assert app.order_ids() == orders
    assert await app.check() == {"tx-1": outcome}
    assert agree(app) == orders
