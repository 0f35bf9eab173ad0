"""Text columns with binary comparison on every database.

Transaction ids ``T-1`` and ``t-1`` are different. MySQL, MariaDB and SQL Server compare case-insensitively by default, and a
PostgreSQL database may have a case-insensitive ICU collation: the marker of one transaction would answer for the other. So
the column declares a binary collation.
"""

from sqlalchemy import String
from sqlalchemy.dialects import mssql, mysql
from sqlalchemy.types import TypeEngine


def exact_text(length: int) -> TypeEngine[str]:
    """VARCHAR(length) with a binary collation. ``length`` in characters; the text is ASCII or UTF-8.

    MySQL: ``utf8mb4_bin`` compares code points (and pads with spaces, which no id contains). PostgreSQL: ``C``.
    SQLite and Oracle compare bytes unless told otherwise.
    """
    binary_on_mysql = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return (
        String(length)
        .with_variant(binary_on_mysql, "mysql", "mariadb")
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(mssql.VARCHAR(length, collation="Latin1_General_100_BIN2"), "mssql")
        .with_variant(String(length, collation="BINARY"), "sqlite")
    )
