"""Numbers are found below the wrappers of a database library, and nowhere else. What real drivers say: ``test_driver_errors`` of the
adapter.
"""

import pytest

from halfmq.sql.rules.driver_errors import (
    driver_error,
    is_check_violation,
    mysql_error_number,
    sqlite_error_code,
    sqlstate,
)


class Driver(Exception):
    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args)
        vars(self).update(fields)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


#: As each library passes a driver's exception on.
WRAPPED = {
    "not at all": lambda error: error,
    "SQLAlchemy": lambda error: Driver("COMMIT failed", orig=error),
    "SQLAlchemy over an asyncio dialect": lambda error: Driver("failed", orig=caused(Exception("adapter"), error)),
    "Django": lambda error: caused(Exception(*error.args), error),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Driver("duplicate key", sqlstate="23505"), (None, "23505", None)),
        (Driver("duplicate key", pgcode="23505"), (None, "23505", None)),
        (Driver("UNIQUE constraint failed", sqlite_errorcode=2067), (2067, None, None)),
        (Driver(1213, "Deadlock found"), (None, None, 1213)),
        (Driver(1213, "Deadlock found", sqlstate="40001"), (None, None, 1213)),
        (Driver("near NONSENSE: syntax error", sqlstate=None), (None, None, None)),
        (Driver(), (None, None, None)),
    ],
)
def test_numbers(wrap, error: Driver, expected: tuple[int | None, str | None, int | None]) -> None:  # type: ignore[no-untyped-def]
    wrapped = wrap(error)
    assert (sqlite_error_code(wrapped), sqlstate(wrapped), mysql_error_number(wrapped)) == expected


def test_chain_that_never_ends_is_left() -> None:
    first, second = Exception("a"), Exception("b")
    first.__cause__, second.__cause__ = second, first
    assert sqlstate(first) is None


def test_driver_error_is_what_the_library_received() -> None:
    inner = Driver("inner")
    assert driver_error(Driver(orig=inner)) is inner
    assert driver_error(inner) is inner
    without = Driver(orig=None)
    assert driver_error(without) is without


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Driver(sqlite_errorcode=275), True),
        (Driver(sqlite_errorcode=19), False),
        (Driver(sqlstate="23514"), True),
        (Driver(sqlstate="23505"), False),
        (Driver(3819, "MySQL"), True),
        (Driver(4025, "MariaDB"), True),
        (Driver(1062, "Duplicate entry"), False),
        (Driver("?"), False),
    ],
)
def test_check_violation(error: Driver, expected: bool) -> None:
    assert is_check_violation(error) is expected
