"""What the first words of a statement say about its transaction."""

import pytest

from halfmq.sql.rules.statements import Effect, Read, read

ENDS = Read(Effect.ENDS_TRANSACTION)


@pytest.mark.parametrize(
    ("statement", "dialect", "effect"),
    [
        ("COMMIT", "sqlite", ENDS),
        (" -- a\n /* b\n */ ;commit work", "postgresql", ENDS),
        ("END TRANSACTION", "sqlite", ENDS),
        ("ABORT", "postgresql", ENDS),
        ("ROLLBACK", "mysql", ENDS),
        ("rollback transaction", "postgresql", ENDS),
        ("ROLLBACK AND CHAIN", "postgresql", ENDS),
        ("ROLLBACK TRANSACTION AND CHAIN", "postgresql", ENDS),
        ("PREPARE TRANSACTION 'x'", "postgresql", ENDS),
        ("PREPARE plan AS SELECT 1", "postgresql", None),
        ("PREPARE plan FROM 'SELECT 1'", "mariadb", None),
        ("CREATE TABLE t (i INT)", "mariadb", ENDS),
        ("CREATE OR REPLACE TEMPORARY TABLE t (i INT)", "mariadb", None),
        ("DROP TEMPORARY TABLE t", "mysql", None),
        ("DROP TABLE t", "mysql", ENDS),
        ("CREATE TEMPORARY SEQUENCE s", "mariadb", ENDS),
        ("DROP PREPARE p", "mariadb", None),
        ("ANALYZE FORMAT=JSON SELECT 1", "mariadb", None),
        ("ANALYZE LOCAL TABLE t", "mariadb", ENDS),
        ("BEGIN NOT ATOMIC SELECT 1; END", "mariadb", None),
        ("SET @autocommit = 1", "mariadb", None),
        ("SET @@autocommit = 1", "mariadb", ENDS),
        ("SET a = 1, autocommit = 0", "mariadb", ENDS),
        ("/* a */" * 100 + "(SELECT 1", "postgresql", None),  # in no time
        ("CREATE TABLE t (i INT)", "postgresql", None),
        ("CREATE TABLE t (i INT)", "sqlite", None),
        ("CREATE TABLE t (i INT)", "oracle", ENDS),
        ("BEGIN", "mariadb", ENDS),
        ("START TRANSACTION", "mysql", ENDS),
        ("BEGIN x := 1; END;", "oracle", None),
        ("SET SESSION autocommit=1", "mariadb", ENDS),
        ("SET NAMES utf8mb4", "mariadb", None),
        ("LOAD INDEX INTO CACHE t", "mariadb", ENDS),
        ("LOAD DATA INFILE 'x' INTO TABLE t", "mariadb", None),
        ("SELECT 'commit'", "mariadb", None),
        ("INSERT INTO rollback VALUES (1)", "sqlite", None),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "postgresql", None),
        ("", "sqlite", None),
        ("SAVEPOINT A1", "sqlite", Read(Effect.SAVEPOINT, "a1")),
        ("SAVEPOINT /* a */ -- b\n q1", "postgresql", Read(Effect.SAVEPOINT, "q1")),
        ('SAVEPOINT "sp-1"', "postgresql", Read(Effect.SAVEPOINT, "sp-1")),
        ('SAVEPOINT "SP"', "postgresql", Read(Effect.SAVEPOINT, "SP")),
        ("SAVEPOINT SP", "postgresql", Read(Effect.SAVEPOINT, "sp")),
        ("SAVEPOINT sp", "oracle", Read(Effect.SAVEPOINT, "SP")),
        ('SAVEPOINT "SP"', "sqlite", Read(Effect.SAVEPOINT, "sp")),
        ("SAVEPOINT `a``b`", "mariadb", Read(Effect.SAVEPOINT, "a`b")),
        ('ROLLBACK TO "a""b"', "postgresql", Read(Effect.ROLLBACK_TO, 'a"b')),
        ('ROLLBACK TO "$1"', "postgresql", Read(Effect.ROLLBACK_TO, "$1")),
        ("ROLLBACK TO " + "x" * 70, "postgresql", Read(Effect.ROLLBACK_TO, "x" * 63)),
        ("ROLLBACK /* all */", "postgresql", ENDS),
        ("CREATE /* here */ TEMPORARY TABLE t (i INT)", "mariadb", None),
        ("SAVE TRANSACTION A", "mssql", Read(Effect.SAVEPOINT, "A")),
        ("SAVE TRANSACTION a", "mssql", Read(Effect.SAVEPOINT, "a")),
        ("RELEASE SAVEPOINT a", "postgresql", Read(Effect.RELEASE, "a")),
        ('release "a"', "sqlite", Read(Effect.RELEASE, "a")),
        ("ROLLBACK TO SAVEPOINT a", "mariadb", Read(Effect.ROLLBACK_TO, "a")),
        ("rollback work to a", "mariadb", Read(Effect.ROLLBACK_TO, "a")),
        ("ROLLBACK TRANSACTION TO `a`", "sqlite", Read(Effect.ROLLBACK_TO, "a")),
        ("ROLLBACK TRANSACTION a", "mssql", Read(Effect.ROLLBACK_TO, "a")),
    ],
)
def test_effect(statement: str, dialect: str, effect: Read | None) -> None:
    assert read(statement, dialect) == effect
