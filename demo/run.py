"""One run of the demo: its directory, and what every process of it must agree on. Kept as ``run.json``."""

from pathlib import Path
from typing import Self

import msgspec


class Run(msgspec.Struct, kw_only=True):
    directory: str
    baskets: int
    #: Order services, and how many transactions each has open at once.
    services: int
    workers: int
    seed: int
    #: Name service of the broker, ``rocketmq://host:port``.
    url: str
    #: SQLAlchemy URLs of the two databases: the shop's and the loyalty programme's.
    shop_db: str
    loyalty_db: str
    #: Number of a basket that the order services leave alone, for ``demo.plant``; -1 for none.
    held_out: int = -1

    @property
    def path(self) -> Path:
        return Path(self.directory)

    def save(self) -> None:
        (self.path / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def load(cls, directory: Path) -> Self:
        return msgspec.json.decode((directory / "run.json").read_bytes(), type=cls)


#: How long a half rests before its service is asked, ms. Short, because here a service that does not end its
#: transaction within two seconds is dead.
CHECK_IMMUNITY_MS = 2_000

ORDERS_TOPIC = "orders"
LOYALTY_TOPIC = "loyalty"
#: Written by Spark: parts of the revenue of a department on a day.
REVENUE_TOPIC = "revenue"
#: The producer group: every order service, all of them on one database, so that any of them can answer any check.
PRODUCER_GROUP = "order-service"
LOYALTY_GROUP = "loyalty-service"
