"""What a statement does to its transaction, read from its first words, and which savepoints are open after it.

Only what is visible in the text: a procedure or a script may contain a COMMIT that is not (``transaction_proof`` shows at the end
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
    """The effect of a statement; ``savepoint``: its name as the database compares it, empty with ENDS_TRANSACTION."""

    effect: Effect
    savepoint: str = ""


#: ``#`` begins a comment on MySQL and MariaDB, and no statement elsewhere; ``/*!`` is one that they execute.
_SPACE: Final = r"(?>\s|(?:--|#)[^\n]*(?:\n|$)|/\*(?!!|M!).*?\*/)"
_FIRST_WORD: Final = re.compile(rf"(?:{_SPACE}|[;(])*+([A-Za-z]+)", re.DOTALL)
#: A name as it is, or quoted, with the quote doubled inside.
_NAME: Final = (
    r"""(?:"(?P<double>(?:[^"]|"")+)"|`(?P<back>(?:[^`]|``)+)`|\[(?P<bracket>[^\]]+)\]|(?!AND\b)(?P<bare>\w[\w$#@]*))"""
)


def _pattern(text: str) -> re.Pattern[str]:
    """``text`` with white space and comments where it has a space."""
    return re.compile(text.replace(" ", f"{_SPACE}++"), re.IGNORECASE | re.DOTALL)


#: After the first word; a match is about a savepoint.
_SAVEPOINTS: Final = {
    "SAVEPOINT": (Effect.SAVEPOINT, _pattern(f" {_NAME}")),
    "SAVE": (Effect.SAVEPOINT, _pattern(f" TRAN(?:SACTION)? {_NAME}")),
    "RELEASE": (Effect.RELEASE, _pattern(f"(?: SAVEPOINT)? {_NAME}")),
    "ROLLBACK": (
        Effect.ROLLBACK_TO,
        _pattern(f"(?: (?:WORK |TRAN(?:SACTION)? )?TO (?:SAVEPOINT )?| TRAN(?:SACTION)? ){_NAME}"),
    ),
}
#: Databases that compare names without regard to case, also quoted ones. Others fold the case of names that are not quoted, except SQL
#: Server.
_ANY_CASE: Final = frozenset({"sqlite", "mysql", "mariadb"})
#: PostgreSQL's NAMEDATALEN - 1: it cuts longer names.
_POSTGRESQL_NAME_BYTES: Final = 63

_ANYTHING: Final = re.compile("")
#: First word, and what must follow it for the statement to end the transaction.
_ENDS: Final = {"COMMIT": _ANYTHING, "ROLLBACK": _ANYTHING, "ABORT": _ANYTHING, "END": _ANYTHING,
                "PREPARE": _pattern(r" TRANSACTION\b")}  # fmt: skip

_NOT_TEMPORARY: Final = _pattern(r"(?! (?:OR REPLACE )?TEMPORARY TABLE\b)")
#: MySQL and MariaDB commit before most statements that are not about rows. Source: MariaDB, "SQL statements that cause an implicit commit".
_MYSQL_ENDS: Final = {
    **_ENDS,
    **dict.fromkeys(
        ("ALTER", "BACKUP", "CACHE", "CHANGE", "CHECK", "FLUSH", "GRANT", "INSTALL", "LOCK", "OPTIMIZE",
         "RENAME", "REPAIR", "RESET", "REVOKE", "START", "STOP", "TRUNCATE", "UNINSTALL", "UNLOCK"),
        _ANYTHING,
    ),
    "ANALYZE": _pattern(r"(?: (?:NO_WRITE_TO_BINLOG|LOCAL))? TABLE\b"),
    "BEGIN": _pattern(r"(?! NOT ATOMIC\b)"),
    "CREATE": _NOT_TEMPORARY,
    "DROP": _pattern(r"(?! (?:TEMPORARY TABLE|PREPARE)\b)"),
    "LOAD": _pattern(r" INDEX\b"),
    "SET": _pattern(r"[^'\"]*(?:[\s.,]|@@)autocommit\s*:?=| (?:PASSWORD|DEFAULT ROLE)\b"),
}  # fmt: skip
_ORACLE_ENDS: Final = {
    **{word: rest for word, rest in _ENDS.items() if word != "END"},
    **dict.fromkeys(("ALTER", "CREATE", "DROP", "GRANT", "RENAME", "REVOKE", "TRUNCATE"), _ANYTHING),
}
_ENDS_BY_PRODUCT: Final = {"mysql": _MYSQL_ENDS, "mariadb": _MYSQL_ENDS, "oracle": _ORACLE_ENDS}


def read(statement: str, product: str) -> Read | None:
    """The effect of ``statement`` on ``product``; None: none that its text shows."""
    first = _FIRST_WORD.match(statement)
    if first is None:
        return None
    word = first[1].upper()
    ends = _ENDS_BY_PRODUCT.get(product, _ENDS)
    if word not in ends and word not in _SAVEPOINTS:
        return None
    if word in _SAVEPOINTS:
        effect, pattern = _SAVEPOINTS[word]
        if found := pattern.match(statement, first.end()):
            return Read(effect, _compared(found, product))
    if word in ends and ends[word].match(statement, first.end()):
        return Read(Effect.ENDS_TRANSACTION)
    return None


def first_word(statement: str) -> str:
    """In upper case, behind comments and parentheses; empty: none, or a comment that MySQL and MariaDB execute."""
    found = _FIRST_WORD.match(statement)
    return found[1].upper() if found else ""


def first_words(statement: str) -> str:
    """For messages: its beginning, quoted."""
    return repr(" ".join(statement.split())[:60])


def _compared(found: re.Match[str], product: str) -> str:
    """The name in a match of ``_NAME``, so that equal texts are names of one savepoint."""
    name = next(text for text in found.groups() if text is not None)
    for quote in '"', "`":
        if found["bare"] is None:
            name = name.replace(quote * 2, quote)
    if product in _ANY_CASE:
        return name.lower()
    if found["bare"] is not None and product != "mssql":
        name = name.upper() if product == "oracle" else name.lower()
    return name.encode()[:_POSTGRESQL_NAME_BYTES].decode(errors="ignore") if product == "postgresql" else name


class Savepoint:
    """A savepoint that was set on the guarded connection."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Savepoints:
    """Which savepoints are open. Call ``executed`` after each statement."""

    def __init__(self) -> None:
        #: Outermost first.
        self.open: tuple[Savepoint, ...] = ()
        #: The statement that rolled back to a savepoint that was not seen; empty: none. What was undone with it is unknown.
        self.unknown_rollback = ""

    def executed(self, statement: str, product: str) -> Savepoint | None:
        """Returns the savepoint that ``statement`` has rolled back to: what belongs to it is undone."""
        found = read(statement, product)
        if found is None:
            return None
        name, open_ones = found.savepoint, self.open
        if found.effect is Effect.SAVEPOINT:
            self.open = (*open_ones, Savepoint(name))
            return None
        for place in range(len(open_ones) - 1, -1, -1):
            if open_ones[place].name == name:
                if found.effect is Effect.RELEASE:
                    self.open = open_ones[:place]
                    return None
                self.open = open_ones[: place + 1]
                return open_ones[place]
        if found.effect is Effect.ROLLBACK_TO:
            # Set on the driver's connection, or behind another statement in one string.
            self.unknown_rollback = statement
        return None
