"""The relay's engine for a database of Django: SQLAlchemy's, over connections that Django opens by its own settings, so that there is no
second URL to write down, and a backend with its own way to connect keeps it.
"""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy import URL, Engine, create_engine

from halfmq.django.database import connection_to, created_by
from halfmq.errors import UnsupportedCombination
from halfmq.sql.alchemy.errors import CREATED_BY


def engine_of(using: str) -> Engine:
    """The engine of an alias, which has connected to nothing yet. ``dispose`` closes its connections.

    Raises:
        UnsupportedCombination: halfmq has no tables for that database.
    """
    connection = connection_to(using)
    values = connection.settings_dict
    # Only the dialect counts; the rest is for messages, without user and password.
    url = URL.create(
        _driver_name(connection),
        host=values["HOST"] or None,
        port=int(values["PORT"]) if values["PORT"] else None,
        database=str(values["NAME"]),
    )
    return create_engine(url, creator=lambda: _connect(connection), execution_options={CREATED_BY: created_by(using)})


def _driver_name(connection: BaseDatabaseWrapper) -> str:
    module = connection.Database.__name__.partition(".")[0]
    match connection.vendor:
        case "postgresql":
            return f"postgresql+{module}"
        case "mysql":  # PyMySQL may stand for mysqlclient
            return f"mysql+{module.lower()}"
        case "sqlite":
            return "sqlite+pysqlite"
        case vendor:
            raise UnsupportedCombination(
                f"halfmq has no tables for {vendor}", hint="PostgreSQL, MariaDB, MySQL or SQLite"
            )


def _connect(connection: BaseDatabaseWrapper) -> Any:
    """A driver's connection of its own, as the driver makes one: with a transaction that begins by itself. Called in any thread."""
    own = connection.copy()
    # The engine pools.
    own.settings_dict["OPTIONS"] = {
        name: value for name, value in own.settings_dict["OPTIONS"].items() if name != "pool"
    }
    own.connect()
    own.set_autocommit(False)
    driver, own.connection = own.connection, None
    return driver
