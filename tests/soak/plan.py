"""The parameters for all processes of a round, in one file of the round's directory."""

from pathlib import Path
from typing import Final

import msgspec

from tests.soak.profile import PROFILES, Profile

TOPICS: Final = ("SoakOrders", "SoakStock", "SoakLoyalty")
QUEUES: Final = 4
#: Producer groups: each has its own processes, and all of one group use one database.
SQLITE_GROUP: Final = "soak-sqlite"
POSTGRES_GROUP: Final = "soak-postgres"
JAVA_GROUP: Final = "soak-java"
#: The consumer group that receives every message.
CREDITS_GROUP: Final = "soak-credits"
#: The tag of a message is derived from the CRC of its body; a quarter of the messages have none.
TAGS: Final = ("", "red", "blue", "green")
#: The subscription of the filtering readers: a consumer group, and a watcher that reads raw frames.
SUBSCRIPTION: Final = "red || blue"
SUBSCRIBED_TAGS: Final = frozenset(("red", "blue"))
FILTERED_GROUP: Final = "soak-filtered"
FILTERED_WATCHER: Final = "filtered-witness"


def tag_of(crc: int) -> str:
    return TAGS[crc % len(TAGS)]


class Plan(msgspec.Struct, frozen=True):
    """``rate``: transactions per second of all producers together while nothing is killed.

    ``retention_s``: retention time of the log. ``patient_s``: the grace period of some transactions; longer than the
    retention, so that they must be copied forward.
    """

    directory: str
    seed: int
    broker_port: int
    name_port: int
    sqlite_url: str
    postgres_url: str
    jdbc_url: str
    rate: float
    retention_s: float
    patient_s: int
    #: The bug of ``planted`` in the broker; empty: none.
    bug: str = ""
    #: Name of a ``Profile``.
    profile_name: str = "everything"

    @property
    def profile(self) -> Profile:
        return PROFILES[self.profile_name]

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self.name_port}"

    @property
    def histories(self) -> Path:
        return self.path / "history"

    @property
    def quiet_file(self) -> Path:
        """While it exists, producers begin no transactions, but answer checks."""
        return self.path / "quiet"

    @property
    def late_file(self) -> Path:
        """While it exists, no transactions with a long grace period begin."""
        return self.path / "late"

    def counter_file(self, name: str) -> Path:
        return self.path / f"{name}.count"

    def save(self) -> None:
        self.histories.mkdir(parents=True, exist_ok=True)
        (self.path / "plan.json").write_bytes(msgspec.json.encode(self))


def load_plan(directory: str | Path) -> Plan:
    return msgspec.json.decode((Path(directory) / "plan.json").read_bytes(), type=Plan)
