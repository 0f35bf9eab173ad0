"""An Apache Kafka broker (KRaft, one node that is broker and controller) from published jars, to compare with."""

import base64
import shutil
import socket
import struct
import subprocess
import time
import uuid
from pathlib import Path

from tests.bench.cpu import cpu_seconds
from tests.support.maven import CACHE, copy_jars
from tests.support.ports import HOST, free_port

VERSION = "4.4.0"
POM = Path(__file__).parent / "kafka" / "pom.xml"
#: As Kafka's start script, with a fixed heap.
_JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_START_SECONDS = 120
_API_VERSIONS = 18


class KafkaBroker:
    """The caller must call ``stop``. Topics are created on first use, with ``partitions``."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self._directory = directory
        self._partitions = partitions
        self._classpath = f"{copy_jars(POM, CACHE / f'kafka-{VERSION}', '-Pbroker', f'-Dkafka.version={VERSION}')}/*"
        self.port = free_port(1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Format the directory, start, and wait until the broker answers."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        properties = self._directory / "server.properties"
        properties.write_text(self._properties())
        # 22 characters of base64; one that begins with "-" would be read as an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        log = self._directory / "broker.log"
        with log.open("ab") as output:
            tool = ("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties))
            formatted = subprocess.run(self._java(*tool), stdout=output, stderr=output, timeout=_START_SECONDS)
            if formatted.returncode:
                raise RuntimeError(f"Kafka's directory could not be formatted:\n{log.read_text()[-3000:]}")
            command = self._java("kafka.Kafka", str(properties))
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._directory)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        assert self.process is not None
        return cpu_seconds(self.process.pid)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 30 s."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _java(self, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *_JAVA_OPTIONS, quiet, "-cp", self._classpath, *arguments]

    def _properties(self) -> str:
        controller = f"{HOST}:{self.port + 1}"
        return "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@{controller}",
                f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}",
                f"advertised.listeners=PLAINTEXT://{self.address}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                f"log.dirs={self._directory / 'log'}",
                f"num.partitions={self._partitions}",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                # Requests of the tuned producer.
                f"message.max.bytes={16 << 20}",
                f"socket.send.buffer.bytes={1 << 20}",
                f"socket.receive.buffer.bytes={1 << 20}",
                "",
            )
        )

    def _answers(self) -> bool:
        """Whether it answers ApiVersions, version 0."""
        request = struct.pack(">hhih", _API_VERSIONS, 0, 7, -1)
        try:
            with socket.create_connection((HOST, self.port), 5) as stream:
                stream.sendall(struct.pack(">i", len(request)) + request)
                answer = stream.recv(8)
        except OSError:
            return False
        return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 7
