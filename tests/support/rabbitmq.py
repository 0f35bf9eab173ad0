"""A real RabbitMQ for tests, one server per session. In CI it must exist; elsewhere the test is skipped and says how to get it."""

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port
from tests.support.servers import running
from tests.support.waiting import wait_until

_MISSING = "no RabbitMQ server here: apt-get install rabbitmq-server openssl"
#: The program behind the wrapper in /usr/sbin, which as root would switch to the user of the installed service.
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONTROL = _SERVER.with_name("rabbitmqctl")
#: Larger ones are refused. Bytes.
MESSAGE_BYTES_MAX = 1 << 20
#: A topic exchange, to which ``LIMITED`` may publish under keys that begin with "allowed" only.
EVENTS = "events"
LIMITED = "limited"
_PASSWORD = "guest"


class RabbitMqServer:
    """``start()``, then connect to ``url``; ``stop()`` at the end. Its data are thrown away. Nothing of an installed service is touched."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hmq-rabbit-", dir="/tmp"))
        self.port = free_port()
        self.tls_port = free_port()
        #: That of its own certificate.
        self.ca = self.directory / "certificate.pem"
        self._epmd_port = free_port()
        self._dist_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_of("guest")

    def url_of(self, user: str, password: str = _PASSWORD) -> str:
        return f"amqp://{user}:{password}@{HOST}:{self.port}/"

    def start(self) -> None:
        """Raises FileNotFoundError: no programs."""
        epmd = shutil.which("epmd")
        openssl = shutil.which("openssl")
        if not _SERVER.exists() or epmd is None or openssl is None:
            raise FileNotFoundError(_MISSING)
        self._write_settings()
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9",
             "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}", "-keyout", self._key, "-out", self.ca],
            check=True, capture_output=True,
        )  # fmt: skip
        # Erlang's port mapper: the server would start one that outlives it, as it does if this one does not listen yet.
        self._epmd = subprocess.Popen(
            [epmd], env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: _listens(self._epmd_port), "epmd listens")
        self.start_server()

    def start_server(self) -> None:
        """Also again, after ``kill``: on the same data and ports."""
        with self._log.open("ab") as output:
            process = self._process = subprocess.Popen(
                [_SERVER], env=self._environment(), cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip

        def ended() -> str:
            return "" if process.poll() is None else f"RabbitMQ has ended:\n{self._log.read_text()[-3000:]}"

        wait_until(self._answers, "RabbitMQ answers", 120, unless=ended)

    def signal(self, number: int) -> None:
        """To all processes of the server."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait()
        # What waited is the shell around the server, which may still be ending.
        wait_until(self._has_gone, "no process of RabbitMQ is left")

    def log(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-3000:] for path in sorted((self.directory / "log").glob("*.log"))
        )

    def control(self, *arguments: str) -> str:
        """``rabbitmqctl`` on the running server. Returns what it printed."""
        environment = self._environment()
        done = subprocess.run(
            [_CONTROL, "--node", environment["RABBITMQ_NODENAME"], *arguments], env=environment, cwd=self.directory,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """Afterwards the processes are gone, and so is the directory."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _key(self) -> Path:
        return self.directory / "key.pem"

    @property
    def _log(self) -> Path:
        return self.directory / "output"

    def _environment(self) -> dict[str, str]:
        at = self.directory
        return {
            **os.environ,
            "LANG": "C.UTF-8",
            "HOME": str(at),  # of the cookie
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"hmq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(at / "data"),
            "RABBITMQ_LOG_BASE": str(at / "log"),
            "RABBITMQ_CONFIG_FILE": str(at / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(at / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(at / "plugins"),
        }

    def _write_settings(self) -> None:
        salt = b"salt"
        password = base64.b64encode(salt + hashlib.sha256(salt + _PASSWORD.encode()).digest()).decode()
        everything = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "users": [
                {"name": user, "password_hash": password, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
                for user in ("guest", LIMITED)
            ],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": user, **everything} for user in ("guest", LIMITED)],
            "topic_permissions": [
                {"user": LIMITED, "vhost": "/", "exchange": EVENTS, "write": "^allowed", "read": ".*"}
            ],
            "exchanges": [
                {
                    "name": EVENTS, "vhost": "/", "type": "topic", "durable": True, "auto_delete": False,
                    "internal": False, "arguments": {},
                }
            ],
        }  # fmt: skip
        (self.directory / "definitions.json").write_text(json.dumps(definitions))
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"load_definitions = {self.directory / 'definitions.json'}\n"
            f"max_message_size = {MESSAGE_BYTES_MAX}\n"
            f"listeners.ssl.1 = {HOST}:{self.tls_port}\nssl_options.verify = verify_none\n"
            f"ssl_options.certfile = {self.ca}\nssl_options.keyfile = {self._key}\n"
            "loopback_users = none\nlog.file.level = warning\nlog.console = false\n"
        )

    def _has_gone(self) -> bool:
        try:
            self.signal(0)
        except ProcessLookupError:
            return True
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), 5) as stream:
                stream.sendall(b"AMQP\0\0\x09\x01")
                return stream.recv(1) == b"\x01"
        except OSError:
            return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMqServer]:
    yield from running(RabbitMqServer(), FileNotFoundError)
