"""Which errors mean that a lock was waited for in vain, and what limits the wait."""

import pytest

from halfmq.sql.rules.lock_wait import CONNECTION_SETTINGS, is_lock_wait, transaction_setting


class Driver(Exception):
    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args)
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Driver(sqlstate="55P03"), True),
        (Driver(sqlstate="57014"), True),
        (Driver(pgcode="40P01"), True),
        (Driver(sqlstate="40001"), True),
        (Driver(sqlstate="57P01"), False),
        (Driver(sqlstate="23505"), False),
        (Driver(sqlite_errorcode=5), True),
        (Driver(sqlite_errorcode=517), True),  # SQLITE_BUSY_SNAPSHOT
        (Driver(sqlite_errorcode=6), True),
        (Driver(sqlite_errorcode=19), False),
        (Driver(1205, "Lock wait timeout exceeded"), True),
        (Driver(1213, "Deadlock found"), True),
        (Driver(3572, "NOWAIT"), True),
        (Driver(1062, "Duplicate entry"), False),
        (Driver("?"), False),
    ],
)
def test_errors(error: Driver, expected: bool) -> None:
    assert is_lock_wait(error, is_connection_lost=False) is expected
    assert not is_lock_wait(error, is_connection_lost=True)


def test_limit_is_a_setting_of_the_connection_or_of_the_transaction() -> None:
    for product, written in {"sqlite": "77", "mssql": "77", "mysql": "1", "mariadb": "1"}.items():
        setting = CONNECTION_SETTINGS[product]
        assert setting.write.format(setting.from_ms(77)).split()[-1] == written
        assert transaction_setting(product, 77) is None
    assert transaction_setting("postgresql", 77) == "SET LOCAL lock_timeout = 77"
    assert transaction_setting("oracle", 77) is None
    assert CONNECTION_SETTINGS.keys() == {"sqlite", "mssql", "mysql", "mariadb"}
