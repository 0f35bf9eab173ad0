"""A real Apache Kafka broker (KRaft, one node that is broker and controller) from published jars.

For tests one for each session: ``kafka_broker``, whose topics are created by ``create_topic`` only. In CI it must exist; elsewhere the test
is skipped and says how to get it.
"""

import base64
import shutil
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.cpu import cpu_seconds
from tests.compat.toolchain import require_java
from tests.support.jvm import QUICK
from tests.support.maven import CACHE, MavenFailed, copy_jars
from tests.support.ports import HOST, free_port
from tests.support.servers import running
from tests.support.waiting import wait_until

VERSION = "4.4.0"
POM = Path(__file__).parents[1] / "bench" / "kafka" / "pom.xml"
#: As Kafka's start script; the heap is fixed.
AS_PUBLISHED = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_START_SECONDS = 120
_API_VERSIONS = 18
#: Of the second listener, which knows one user, to whom no topic is forbidden that has no rules.
USER, PASSWORD = "relay", "relay-secret"
#: Topics only where a test creates them, and quick starts of groups.
FOR_TESTS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


class KafkaBroker:
    """The caller must call ``stop``. Topics are created on first use, with ``partitions``, unless ``settings`` say otherwise."""

    def __init__(
        self,
        directory: Path,
        partitions: int,
        *,
        heap: str = "1g",
        jvm: tuple[str, ...] = AS_PUBLISHED,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._heap = heap
        self._jvm = jvm
        self._settings = settings or {}
        self.port = free_port(1, 2)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def sasl_address(self) -> str:
        """Where one logs in as ``USER``, with SASL_PLAINTEXT and the mechanism PLAIN."""
        return f"{HOST}:{self.port + 2}"

    def fetch(self) -> str:
        """The class path. Raises MavenFailed: the jars cannot be had."""
        return f"{copy_jars(POM, CACHE / f'kafka-{VERSION}', '-Pbroker', f'-Dkafka.version={VERSION}')}/*"

    def start(self) -> None:
        """Format the directory, start, and wait until the broker answers. Raises MavenFailed: the jars cannot be had."""
        self.fetch()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        properties = self._directory / "server.properties"
        properties.write_text(self._properties())
        # 22 characters of base64; one that begins with "-" would be read as an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        tool = ("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties))
        with self._log.open("ab") as output:
            formatted = subprocess.run(self._java(*tool), stdout=output, stderr=output, timeout=_START_SECONDS)
        if formatted.returncode:
            raise RuntimeError(f"Kafka's directory could not be formatted:\n{self._log.read_text()[-3000:]}")
        self.start_broker()

    def start_broker(self) -> None:
        """Also again, after ``kill`` or ``stop``: on the same directory and ports."""
        with self._log.open("ab") as output:
            command = self._java("kafka.Kafka", str(self._directory / "server.properties"))
            process = self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._directory)

        def ended() -> str:
            return "" if process.poll() is None else f"Kafka has ended:\n{self._log.read_text()[-3000:]}"

        wait_until(self._answers, "Kafka answers", _START_SECONDS, unless=ended)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def cpu_seconds(self) -> float:
        assert self.process is not None
        return cpu_seconds(self.process.pid)

    def stop(self) -> None:
        """SIGKILL: nobody reads what it would write at an orderly stop, which takes seconds."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def create_topic(self, name: str, partitions: int, **settings: str) -> None:
        """``settings``: of the topic, with ``_`` for ``.``. It can be used at once: the broker serves it a moment after its controller
        answered.
        """
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = AdminClient({"bootstrap.servers": self.address})
        for done in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
            done.result(60)

        def is_served() -> bool:
            asked = admin.list_offsets(
                {TopicPartition(name, number): OffsetSpec.earliest() for number in range(partitions)}
            )
            try:
                return all(done.result(60) for done in asked.values())
            except KafkaException:
                return False

        wait_until(is_served, f"topic {name} is served")

    def forbid(self, topic: str) -> None:
        """``USER`` may not write to it, from now on: the broker applies what its controller answered a moment later."""
        from confluent_kafka.admin import (
            AclBinding,
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        rule = (
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.WRITE,
            AclPermissionType.DENY,
        )  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.address})
        for done in admin.create_acls([AclBinding(*rule)]).values():
            done.result(60)
        wait_until(lambda: admin.describe_acls(AclBindingFilter(*rule)).result(60), "the rule is in force")

    @property
    def _log(self) -> Path:
        return self._directory / "broker.log"

    def _java(self, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        heap = (f"-Xms{self._heap}", f"-Xmx{self._heap}")
        return ["java", *heap, *self._jvm, quiet, "-cp", self.fetch(), *arguments]

    def _properties(self) -> str:
        controller = f"{HOST}:{self.port + 1}"
        users = f'user_{USER}="{PASSWORD}"'
        return "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@{controller}",
                f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller},SASL://{self.sasl_address}",
                f"advertised.listeners=PLAINTEXT://{self.address},SASL://{self.sasl_address}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms=PLAIN",
                f"listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};",
                f"log.dirs={self._directory / 'log'}",
                f"num.partitions={self._partitions}",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                # Requests of the tuned producer.
                f"message.max.bytes={16 << 20}",
                f"socket.send.buffer.bytes={1 << 20}",
                f"socket.receive.buffer.bytes={1 << 20}",
                *(f"{name}={value}" for name, value in self._settings.items()),
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


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    require_java()
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka") / "data", 1, heap="512m", jvm=QUICK, settings=FOR_TESTS)
    yield from running(broker, MavenFailed)
