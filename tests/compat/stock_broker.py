"""A stock Apache RocketMQ: name server and broker from the published jars, on free ports and a fresh directory.

    with StockBroker("4.9.7", tmp_path) as stock:
        ...  # stock.names is "127.0.0.1:port"

To compare with, and for tests that our client works against it.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from halfmq.client.connector import open_socket
from halfmq.errors import ProtocolError
from halfmq.model.address import Address, TlsFiles
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import Request, decode, encode_request
from tests.compat.toolchain import stock_classpath
from tests.support.jvm import QUICK
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_until

START_SECONDS = 120
#: What mapped files need on Java 9 and later; Java 8 does not know these options.
_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
#: What a broker of 5.x does while nothing happens takes a third of a core: it compares the 38 MB of its timer wheel with the file each
#: second, and a thread that writes figures spins until its interval is over for the first time. Milliseconds. 4.x knows neither setting.
_IDLE = {"timerFlushIntervalMs": "60000", "transactionMetricFlushInterval": "200"}
_LOGBACK = (
    "<configuration><appender name='out' class='ch.qos.logback.core.ConsoleAppender'>"
    "<encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>"
    "<root level='WARN'><appender-ref ref='out'/></root></configuration>"
)


def access_control(user: str, secret: str) -> dict[str, str]:
    """Settings of a broker of 5.x: access control 2.0, with this user, who may do everything."""
    auth = "org.apache.rocketmq.auth"
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": user, "password": secret}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner-broker", "secretKey": "inner secret"}),
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider",
    }


class StockBroker:
    """Two JVMs. ``settings`` are lines of ``broker.conf``, over what is set here; ``conf``: further files beside it. ``is_measured``: with
    the JVM's options and intervals of RocketMQ. ``options``: more options of both JVMs; ``tls``: files of who asks the name server, if
    those make it speak TLS.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        *,
        is_measured: bool = False,
        conf: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        tls: TlsFiles | None = None,
        **settings: str,
    ) -> None:
        self.version = version
        self.directory = directory
        self.settings = settings
        self._options = options
        self._tls = tls
        self._is_measured = is_measured
        self._conf = conf or {}
        self.name_port = 0
        self.broker_port = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._classpath = stock_classpath(version)

    @property
    def names(self) -> str:
        return f"{HOST}:{self.name_port}"

    @property
    def processes(self) -> list[int]:
        """Their ids: the name server's, then the broker's."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> "StockBroker":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the name server knows the broker; raises AssertionError with the logs when that takes too long."""
        home = self.directory / "home"
        (home / "conf").mkdir(parents=True)
        for part in ("namesrv", "broker"):
            (home / "conf" / f"logback_{part}.xml").write_text(_LOGBACK)
        for name, text in self._conf.items():
            (home / "conf" / name).write_text(text)
        self.name_port = free_port()
        names_conf = self.directory / "namesrv.conf"
        names_conf.write_text(f"listenPort={self.name_port}\n")
        self._java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", str(names_conf))
        # The broker also listens two below its port (VIP channel) and one above it (HA).
        self.broker_port = free_port(-2, 1)
        store = self.directory / "store"
        lines = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": HOST,
            "listenPort": str(self.broker_port),
            "haListenPort": str(self.broker_port + 1),
            "namesrvAddr": self.names,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "mappedFileSizeCommitLog": str(256 << 20),
            "diskMaxUsedSpaceRatio": "95",
            # 200 ms by default: on a busy test machine a cold broker would refuse its first messages as "busy".
            "waitTimeMillsInSendQueue": "10000",
            "autoCreateTopicEnable": "true",
            **({} if self._is_measured else _IDLE),
        } | self.settings
        (self.directory / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self.start_broker()

    def start_broker(self) -> None:
        """Also again, after ``kill_broker``: on the same store and ports."""
        self._java("broker", "org.apache.rocketmq.broker.BrokerStartup", str(self.directory / "broker.conf"))
        self._wait_until_registered()

    def kill_broker(self) -> None:
        """SIGKILL. The name server goes on."""
        broker = self._processes.pop()
        broker.kill()
        broker.wait()

    def stop(self) -> None:
        """SIGKILL: nobody reads what they would write at an orderly stop, which takes up to 20 s."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def log(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )

    def _java(self, part: str, main: str, conf: str) -> None:
        home = str(self.directory / "home")
        command = [
            "java", "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", *(() if self._is_measured else QUICK), *_OPENS,
            f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *self._options, "-cp", self._classpath, main, "-c", conf,
        ]  # fmt: skip
        with (self.directory / f"{part}.log").open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    command, stdout=output, stderr=output, cwd=self.directory, env={**os.environ, "ROCKETMQ_HOME": home}
                )
            )

    def _wait_until_registered(self) -> None:
        def is_registered() -> bool:
            try:
                wanted = {"topic": "TBW102"}
                return ask(self.name_port, RequestCode.GET_ROUTEINFO_BY_TOPIC, wanted, tls=self._tls).code == 0
            except (OSError, ProtocolError):
                return False

        def ended() -> str:
            ends = [process.returncode for process in self._processes if process.poll() is not None]
            return f"it ended with {ends[0]}\n{self.log()}" if ends else ""

        wait_until(is_registered, f"RocketMQ {self.version} at its name server", START_SECONDS, unless=ended)


def ask(
    port: int, code: int, ext: dict[str, object], body: bytes = b"", tls: TlsFiles | None = None
) -> Request[dict[str, str]]:
    """One command over a connection of its own, and its answer.

    Raises:
        OSError: nobody listens, the connection was closed, no TLS, or no answer came in 5 s.
    """
    with open_socket(Address(HOST, port), tls, 5, 5) as connection:
        connection.sendall(encode_request(code, 1, ext, body))
        splitter = FrameSplitter()
        while True:
            data = connection.recv(65_536)
            if not data:
                raise ConnectionResetError(f"{HOST}:{port} closed the connection without an answer")
            for frame in splitter.feed(data):
                return decode(frame)
