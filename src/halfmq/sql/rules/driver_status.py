"""What a driver says of its connection, without I/O: sqlite3 and aiosqlite, psycopg 2 and 3, asyncpg, PyMySQL, aiomysql, asyncmy."""

from enum import Enum
from typing import Any, Final

#: Flags that MySQL and MariaDB send with each response.
_MYSQL_IN_TRANSACTION: Final = 1
_MYSQL_AUTOCOMMIT: Final = 2


class Status(Enum):
    """What the driver says about its connection."""

    OPEN = "in a transaction"
    FAILED = "in a transaction that can only be rolled back"
    NONE = "in no transaction"
    UNKNOWN = "nothing"


def driver_status(product: str, driver: Any) -> Status:
    """``driver``: the driver's own connection."""
    match product:
        case "sqlite":
            is_open = getattr(driver, "in_transaction", None)
        case "postgresql":
            info = getattr(driver, "info", None)
            if (status := getattr(info, "transaction_status", None)) is not None:
                return {0: Status.NONE, 2: Status.OPEN, 3: Status.FAILED}.get(int(status), Status.UNKNOWN)
            ask = getattr(driver, "is_in_transaction", None)
            is_open = ask() if ask is not None else None
        case "mysql" | "mariadb":
            flags = getattr(driver, "server_status", None)
            is_open = bool(flags & _MYSQL_IN_TRANSACTION) if isinstance(flags, int) else None
        case _:
            is_open = None
    return Status.UNKNOWN if is_open is None else Status.OPEN if is_open else Status.NONE


def commits_by_itself(product: str, driver: Any) -> bool:
    """Whether the driver's connection commits each statement, so that nothing could be rolled back. Ask before the first one."""
    if driver_status(product, driver) is not Status.NONE:  # an application that executes BEGIN itself
        return False
    match product:
        case "sqlite":
            mode = getattr(driver, "autocommit", -1)  # since Python 3.12; -1: ``isolation_level`` counts
            return mode is True or (mode == -1 and getattr(driver, "isolation_level", "") is None)
        case "postgresql":
            return getattr(driver, "autocommit", False) is True
        case "mysql" | "mariadb":
            return bool(driver.server_status & _MYSQL_AUTOCOMMIT)
        case _:
            return False
