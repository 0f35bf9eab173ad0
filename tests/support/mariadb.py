"""A real MariaDB for tests, one server per session. In CI it must exist; elsewhere the test is skipped and says how to get it."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.support.servers import running
from tests.support.waiting import wait_until

_MISSING = "no MariaDB server here: apt-get install mariadb-server"


class MariaDBServer:
    """``start()``, then connect over ``socket`` as root without a password; ``stop()`` at the end. Its data are thrown away."""

    def __init__(self) -> None:
        # Short, because the path of a Unix socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="hmq-my-", dir="/tmp"))
        self.socket = self.directory / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises FileNotFoundError: no programs."""
        server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if server is None or install is None:
            raise FileNotFoundError(_MISSING)
        data = self.directory / "data"
        # Root starts it as the package's user; anybody else as themselves.
        as_user = ["--user=mysql"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(self.directory, "mysql")
            os.chmod(self.directory, 0o755)
        own_tmpdir = [f"--tmpdir={self.directory}"]  # a start deletes what is left in it, also of servers that run
        made = subprocess.run(
            [install, "--no-defaults", *as_user, f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db",
             *own_tmpdir],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"mariadb-install-db:\n{made.stdout[-2_000:]}{made.stderr[-2_000:]}")
        log = self.directory / "log"
        self._process = subprocess.Popen(
            [server, "--no-defaults", *as_user, f"--datadir={data}", f"--socket={self.socket}", "--skip-networking",
             f"--pid-file={self.directory / 'pid'}", f"--log-error={log}", *own_tmpdir,
             "--innodb-flush-log-at-trx-commit=0",
             "--innodb-buffer-pool-size=32M", "--skip-log-bin"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        process = self._process

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"mariadbd has ended:\n{log.read_text()[-3_000:]}")
            return self.socket.exists()

        wait_until(answers, "MariaDB listens")

    def execute(self, statement: str) -> None:
        """One statement, as root."""
        connection = pymysql.connect(unix_socket=str(self.socket), user="root", autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()

    def stop(self) -> None:
        """Afterwards the process is gone, and so is the directory."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    yield from running(MariaDBServer(), FileNotFoundError)


@pytest.fixture
def mariadb_database(mariadb_server: MariaDBServer) -> Iterator[str]:
    """The name of a fresh database."""
    name = f"t{uuid.uuid4().hex[:12]}"
    mariadb_server.execute(f"CREATE DATABASE {name}")
    yield name
    mariadb_server.execute(f"DROP DATABASE {name}")
