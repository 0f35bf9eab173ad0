"""What a statement does to the transaction in which it is executed, read from its first words.

Only what is visible in the text: a procedure or a script may contain a COMMIT that is not (``transaction_guard`` proves at the end
that there was none).
"""

import re
from enum import Enum
from typing import Final, NamedTuple


class Effect(Enum):
    """What a statement does to its transaction or to a savepoint in it."""

    ENDS_TRANSACTION = "ends the transaction"
    SAVEPOINT = "sets a savepoint"
    RELEASE = "releases a savepoint"
    ROLLBACK_TO = "rolls back to a savepoint"


class Read(NamedTuple):
    """The effect of a statement; ``savepoint``: its name in lower case, empty with ENDS_TRANSACTION."""

    effect: Effect
    savepoint: str = ""


_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_FIRST_WORD: Final = re.compile(rf"(?:{_SPACE}|;)*([A-Za-z]+)", re.DOTALL)
_NAME: Final = r"""["`\[]?(?!AND\b)(?P<name>\w+)["`\]]?"""

#: After the first word; a match that has a name is about a savepoint.
_SAVEPOINTS: Final = {
    "SAVEPOINT": (Effect.SAVEPOINT, re.compile(rf"\s+{_NAME}")),
    "SAVE": (Effect.SAVEPOINT, re.compile(rf"\s+TRAN(?:SACTION)?\s+{_NAME}", re.IGNORECASE)),
    "RELEASE": (Effect.RELEASE, re.compile(rf"\s+(?:SAVEPOINT\s+)?{_NAME}", re.IGNORECASE)),
    "ROLLBACK": (
        Effect.ROLLBACK_TO,
        re.compile(rf"\s+(?:(?:WORK\s+|TRAN(?:SACTION)?\s+)?TO\s+(?:SAVEPOINT\s+)?|TRAN(?:SACTION)?\s+){_NAME}", re.IGNORECASE),
    ),
}  # fmt: skip

_ANYTHING: Final = re.compile("")
#: First word, and what must follow it for the statement to end the transaction.
_ENDS: Final = {"COMMIT": _ANYTHING, "ROLLBACK": _ANYTHING, "ABORT": _ANYTHING, "END": _ANYTHING,
                "PREPARE": re.compile(r"\s+TRANSACTION\b", re.IGNORECASE)}  # fmt: skip

_NOT_TEMPORARY: Final = re.compile(r"(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)", re.IGNORECASE)
#: MySQL and MariaDB commit before most statements that are not about rows. Source: MariaDB, "SQL statements that cause an implicit commit".
_MYSQL_ENDS: Final = {
    **_ENDS,
    **dict.fromkeys(
        ("ALTER", "ANALYZE", "BACKUP", "BEGIN", "CACHE", "CHANGE", "CHECK", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE",
         "RENAME", "REPAIR", "RESET", "REVOKE", "START", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK"),
        _ANYTHING,
    ),
    "CREATE": _NOT_TEMPORARY,
    "DROP": _NOT_TEMPORARY,
    "LOAD": re.compile(r"\s+INDEX\b", re.IGNORECASE),
    "SET": re.compile(r".*\bautocommit\b|\s+(?:PASSWORD|DEFAULT\s+ROLE)\b", re.IGNORECASE | re.DOTALL),
}  # fmt: skip
_ORACLE_ENDS: Final = {
    **{word: rest for word, rest in _ENDS.items() if word != "END"},
    **dict.fromkeys(("ALTER", "CREATE", "DROP", "GRANT", "RENAME", "REVOKE", "TRUNCATE"), _ANYTHING),
}
_ENDS_BY_DIALECT: Final = {"mysql": _MYSQL_ENDS, "mariadb": _MYSQL_ENDS, "oracle": _ORACLE_ENDS}


def read(statement: str, dialect: str) -> Read | None:
    """The effect of ``statement`` on ``dialect`` (SQLAlchemy's name of the database); None: none that its text shows."""
    first = _FIRST_WORD.match(statement)
    if first is None:
        return None
    word = first[1].upper()
    ends = _ENDS_BY_DIALECT.get(dialect, _ENDS)
    if word not in ends and word not in _SAVEPOINTS:
        return None
    if word in _SAVEPOINTS:
        effect, pattern = _SAVEPOINTS[word]
        if found := pattern.match(statement, first.end()):
            return Read(effect, found["name"].lower())
    if word in ends and ends[word].match(statement, first.end()):
        return Read(Effect.ENDS_TRANSACTION)
    return None
