"""The driver for MariaDB. Django's is mysqlclient, which is compiled against the server's C library on each machine that installs it; where
it is missing Django takes PyMySQL in its place."""

import importlib.util


def install() -> str:
    """Make ``import MySQLdb`` work, and name the driver."""
    if importlib.util.find_spec("MySQLdb") is None:
        import pymysql

        pymysql.install_as_MySQLdb()
    import MySQLdb

    return "PyMySQL" if MySQLdb.__name__ == "pymysql" else "mysqlclient"
