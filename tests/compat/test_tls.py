"""TLS with programs that we did not write: RocketMQ's Java client and mqadmin against ``halfmq serve``, and our client against an Apache
RocketMQ, all of them unchanged.

In required mode a program that comes to its end has spoken TLS: every port closes other connections. In permissive mode a client that
trusts another authority must fail, which shows that one with TLS does not go on without it.
"""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from halfmq import Client, ConnectError
from halfmq.client.blocking import Connections, NameServers
from halfmq.model.address import TlsFiles, parse_url
from halfmq.wire.remoting.codes import RequestCode
from tests.compat import expectations
from tests.compat.java_runs import BINARY, FEATURES, JSON, QUICK_REBALANCE, VIP_CHANNEL, ProgramFailed, run
from tests.compat.stock_broker import StockBroker, ask
from tests.compat.test_mqadmin import Walk, compared, printed
from tests.compat.toolchain import client_classpath
from tests.documents.blocks import blocks_of
from tests.support.certificates import Authority, Issued
from tests.support.served import Served
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

TRANSACTIONS = 50
NO_CERTIFICATE = "peer did not return a certificate"
NO_TLS = "does the client speak TLS?"
CLOSED = "it closed the connection"
#: Of a client that says why it closes the connection, and of one whose last words are lost with it.
NO_TRUST = "not trust the certificate"


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("server")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Issued:
    return authority.issue("client")


def required(server: Issued) -> tuple[str, ...]:
    """Options of ``halfmq serve``."""
    return "--tls-cert", str(server.certificate), "--tls-key", str(server.key)


def mutual(server: Issued, authority: Authority) -> tuple[str, ...]:
    return *required(server), "--tls-client-ca", str(authority.certificate)


def permissive(server: Issued) -> tuple[str, ...]:
    return *required(server), "--tls-mode", "permissive"


def trusting(authority: Authority, own: Issued | None = None) -> dict[str, str]:
    """Properties of a Java client that checks the server, and that has a certificate ``own``."""
    properties = {
        "tls.test.mode.enable": "false",  # true, the default, trusts everybody and sends no certificate
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.certificate),
    }
    if own is not None:
        properties |= {"tls.client.certPath": str(own.certificate), "tls.client.keyPath": str(own.key)}
    return properties


def options(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Of the JVM."""
    return "-Dtls.enable=true", *(f"-D{name}={value}" for name, value in properties.items())


def as_on_the_page(test: str, **files: Issued | Path) -> dict[str, str]:
    """The properties in the block of the page that names this test. ``files``: of ``NAME.pem``, and of ``NAME.key`` beside it."""
    (block,) = blocks_of(f"tests/compat/test_tls.py::{test}")
    properties = {}
    for line in block.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("=")
            stem, _, suffix = value.partition(".")
            file = files.get(stem, value)
            properties[name] = str(
                (file.key if suffix == "key" else file.certificate) if isinstance(file, Issued) else file
            )
    return properties


def options_by_file(properties: Mapping[str, str], file: Path) -> tuple[str, ...]:
    """Of the JVM, with everything but ``tls.enable`` in a file."""
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return "-Dtls.enable=true", f"-Dtls.config.file={file}"


def names(broker: Served) -> str:
    return f"127.0.0.1:{broker.name_port}"


def refusals(broker: Served) -> list[str]:
    """What the broker logged about connections that did not come to TLS, but for those that were closed meanwhile: a JVM that ends may be
    in the middle of a handshake.
    """
    return [line for line in _refusals(broker) if CLOSED not in line]


def _refusals(broker: Served) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if "no TLS with" in line]


CLIENTS = [
    pytest.param(version, header, is_mutual, id=f"{version}-{header.lower()}{'-mutual' if is_mutual else ''}", marks=marks)
    for version, header, is_mutual, marks in (
        ("4.9.7", BINARY, True, ()), ("5.5.0", JSON, False, ()),
        ("4.9.7", JSON, False, pytest.mark.thorough), ("5.5.0", BINARY, True, pytest.mark.thorough),
    )
]  # fmt: skip


@pytest.mark.parametrize(("version", "header", "is_mutual"), CLIENTS)
def test_the_stock_client_does_over_tls_what_it_does_without(
    version: str,
    header: str,
    is_mutual: bool,
    serve: Callable[..., Served],
    authority: Authority,
    server: Issued,
    client: Issued,
    tmp_path: Path,
) -> None:
    """With certificates of both ends it reads its properties from a file, as the page has it, and sends to the VIP channel."""
    ports = mutual(server, authority) if is_mutual else required(server)
    broker = serve("--check-interval-ms", "1000", *ports)
    if is_mutual:
        properties = as_on_the_page(
            "test_the_stock_client_does_over_tls_what_it_does_without", ca=authority.certificate, client=client
        )
        assert properties == trusting(authority, client)
        tls = (*options_by_file(properties, tmp_path / "tls.properties"), *VIP_CHANNEL)
    else:
        tls = options(trusting(authority))
    jvm = (*QUICK_REBALANCE, *tls, f"-Dtransactions={TRANSACTIONS}")
    results = run(version, names(broker), tmp_path, *FEATURES, "Transactions", header=header, options=jvm)
    for program in FEATURES:
        expectations.feature(program, results[program], ours=True)
    expectations.transactions(results["Transactions"], TRANSACTIONS, ours=True, queues_move=True)
    assert refusals(broker) == []
    assert broker.stop() == 0


async def test_a_permissive_broker_serves_a_client_with_tls_beside_one_without(
    serve: Callable[..., Served], authority: Authority, server: Issued, tmp_path: Path
) -> None:
    broker = serve(*permissive(server))
    programs = ("Sends", "Restart")
    kinds = {"with": ("5.5.0", options(trusting(authority))), "without": ("4.9.7", ())}
    for version, _ in kinds.values():
        client_classpath(version)  # compiled before one waits for the other
    both = await asyncio.gather(
        *(
            asyncio.to_thread(
                run, version, names(broker), tmp_path / kind, *programs, prefix=kind, options=(*QUICK_REBALANCE, *tls, *VIP_CHANNEL)
            )
            for kind, (version, tls) in kinds.items()
        )
    )  # fmt: skip
    for results in both:
        for program in programs:
            expectations.feature(program, results[program], ours=True)
    assert refusals(broker) == []
    stranger = Authority(tmp_path / "stranger")
    with pytest.raises(ProgramFailed):
        run("5.5.0", names(broker), tmp_path / "stranger", "Sends", options=options(trusting(stranger)))
    assert any(NO_TRUST in line for line in _refusals(broker))


@pytest.mark.parametrize("version", ["5.5.0", pytest.param("4.9.7", marks=pytest.mark.thorough)])
def test_a_client_without_a_certificate_fails_and_the_broker_logs_one_line_for_each_reason(
    version: str, serve: Callable[..., Served], authority: Authority, server: Issued, client: Issued, tmp_path: Path
) -> None:
    """Two of one machine within seconds: what is said of the first does not hide the second."""
    broker = serve(*mutual(server, authority))
    own = {
        **trusting(authority, client),
        "tls.test.mode.enable": "true",
    }  # it sends no certificate then, though it has one
    wrong = (
        (options(trusting(authority)), NO_CERTIFICATE),
        (options(own), NO_CERTIFICATE),
        ((), NO_TLS),
    )
    for number, (tls, _) in enumerate(wrong):
        with pytest.raises(ProgramFailed, match="Exception"):
            run(version, names(broker), tmp_path / str(number), "Sends", options=tls)
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert "tls.client.certPath" in log, "it names what the client lacks"
    for reason in (NO_CERTIFICATE, NO_TLS):
        said = [line for line in refusals(broker) if reason in line]
        assert said, reason
        times = [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f") for line in said]  # noqa: DTZ007 - both of one clock
        assert all(later - earlier > timedelta(seconds=9) for earlier, later in pairwise(times)), said
    run(version, names(broker), tmp_path / "right", "Sends", options=options(trusting(authority, client)))


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_what_rocketmqs_client_checks_and_what_it_does_not(
    version: str, serve: Callable[..., Served], authority: Authority, client: Issued, tmp_path: Path
) -> None:
    """What docs/tls.md says of it. Ours checks the name of the host: tests/unit/broker/test_tls.py."""
    elsewhere = authority.issue("elsewhere", "DNS:elsewhere.example")
    broker = serve(*required(elsewhere))
    stranger = trusting(Authority(tmp_path / "stranger"))
    missing = trusting(authority, Issued(tmp_path / "missing.pem", client.key))

    def sends(broker: Served, **properties: str) -> bool:
        try:
            run(version, names(broker), tmp_path, "Sends", options=options(properties))
        except ProgramFailed:
            return False
        return True

    assert sends(broker, **trusting(authority)), "the name of the host is not checked"
    assert not sends(broker, **stranger)
    assert sends(broker, **stranger | {"tls.client.authServer": "false"}), "which is the default"
    assert sends(broker, **stranger | {"tls.test.mode.enable": "true"}), "which is the default"
    assert not sends(broker, **missing)
    assert any(NO_TLS in line for line in refusals(broker)), "the broker, which requires TLS, is what stopped it"
    assert sends(serve(*permissive(elsewhere)), **missing), "it goes on without TLS when a file of its own is missing"
    asking = serve(*mutual(elsewhere, authority))
    own = trusting(authority, client)
    assert sends(asking, **own)
    assert not sends(asking, **own | {"tls.test.mode.enable": "true"}), "which sends no certificate"
    assert any(NO_CERTIFICATE in line for line in refusals(asking))


def _encrypted(key: Path, algorithm: tuple[str, ...]) -> Path:
    encrypted = key.with_suffix(f".{'-'.join(algorithm[1:])}")
    encrypting = ("-passout", "pass:secret", *algorithm, "-out", encrypted)
    subprocess.run(["openssl", "pkcs8", "-topk8", "-in", key, *encrypting], check=True)
    return encrypted


def _sec1(key: Path) -> Path:
    other = key.with_suffix(".sec1")
    subprocess.run(["openssl", "ec", "-in", key, "-out", other], check=True, capture_output=True)
    return other


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "remake", "is_taken"),
    [
        ("5.5.0", _sec1, False),
        ("4.9.7", _sec1, False),
        ("5.5.0", lambda key: _encrypted(key, ("-v2", "aes-256-cbc")), True),
        ("4.9.7", lambda key: _encrypted(key, ("-v2", "aes-256-cbc")), False),
        ("4.9.7", lambda key: _encrypted(key, ("-v1", "PBE-SHA1-3DES")), True),
    ],
    ids=["5.5.0-sec1", "4.9.7-sec1", "5.5.0-pbes2", "4.9.7-pbes2", "4.9.7-pbes1"],
)
def test_keys_that_rocketmqs_client_takes(
    version: str,
    remake: Callable[[Path], Path],
    is_taken: bool,
    serve: Callable[..., Served],
    authority: Authority,
    server: Issued,
    client: Issued,
    tmp_path: Path,
) -> None:
    """PKCS #8, which is what the other tests have; encrypted too, for 4.9.7 by the old algorithms only."""
    broker = serve(*mutual(server, authority))
    properties = {
        **trusting(authority, Issued(client.certificate, remake(client.key))),
        "tls.client.keyPassword": "secret",
    }
    if is_taken:
        run(version, names(broker), tmp_path, "Sends", options=options(properties))
    else:
        with pytest.raises(ProgramFailed, match="does not contain valid private key"):
            run(version, names(broker), tmp_path, "Sends", options=options(properties))


@pytest.mark.thorough
async def test_mqadmin_over_tls(
    serve: Callable[..., Served], authority: Authority, server: Issued, client: Issued, tmp_path: Path
) -> None:
    broker = serve(*mutual(server, authority))
    walk: Walk = (
        ("clusterList", ("DefaultCluster",)),
        ("updateTopic -b BROKER -t T -r 4 -w 4", ("create topic to BROKER success",)),
        ("topicRoute -t T", ('"brokerName":"halfmq"',)),
        ("sendMessage -t T -p hello", ("SEND_OK",)),
        ("topicStatus -t T", ("halfmq 3 0",)),
        ("brokerStatus -b BROKER", ("msgPutTotalTodayNow",)),
    )
    outputs = await printed(broker, tmp_path, walk, *options(trusting(authority, client)))
    compared(broker, walk, outputs)
    assert refusals(broker) == []


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_certificates_are_replaced_while_java_sends_and_nothing_is_lost(
    version: str, serve: Callable[..., Served], authority: Authority, tmp_path: Path
) -> None:
    """Of both ends, three times. Connections that exist go on; new ones get the new certificate, the last of them after the last one."""
    client_classpath(version)
    ours = Issued(tmp_path / "broker.pem", tmp_path / "broker.key")
    theirs = Issued(tmp_path / "client.pem", tmp_path / "client.key")

    def replace(files: Issued, name: str) -> None:
        for new, old in zip(authority.issue(name), files, strict=True):
            beside = old.with_suffix(".new")
            shutil.copy(new, beside)
            beside.rename(old)  # a client that reads it meanwhile reads one of both

    replace(ours, "broker 0")
    replace(theirs, "client")
    broker = serve(*mutual(ours, authority))
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    trusted.load_cert_chain(theirs.certificate, theirs.key)

    def shown() -> str:
        with (
            socket.create_connection(("127.0.0.1", broker.port)) as stream,
            trusted.wrap_socket(stream, server_hostname="127.0.0.1") as tls,
        ):
            (((_, name),),) = tls.getpeercert()["subject"]  # type: ignore[index, misc]
            return str(name)

    stop = tmp_path / "stop"
    jvm = (*options(trusting(authority, theirs)), f"-Dsteady.until={stop}")
    asking = TlsFiles(str(authority.certificate), str(theirs.certificate), str(theirs.key))

    def stored() -> int:
        answer = ask(broker.port, RequestCode.GET_BROKER_RUNTIME_INFO, {}, tls=asking)
        return int(json.loads(answer.body)["table"]["msgPutTotalTodayNow"])

    with ThreadPoolExecutor() as threads:
        java = threads.submit(run, version, names(broker), tmp_path / "java", "Steady", options=jvm)
        try:
            for number in range(3):
                before = stored()
                wait_until(
                    lambda before=before: stored() > before + 200,
                    "messages",
                    unless=lambda: java.done() and java.result(),
                )
                replace(theirs, f"client {number + 1}")
                replace(ours, f"broker {number + 1}")
                wait_until(lambda name=f"broker {number + 1}": shown() == name, "the new certificate")
        finally:
            stop.touch()
        result = java.result()["Steady"]
    assert result["errors"] == []
    assert len([text for text in result["sent"] if text.startswith("new")]) > 3
    assert Counter(result["log"]) == Counter(result["sent"])
    assert refusals(broker) == []


@pytest.fixture(scope="module", params=["5.5.0", pytest.param("4.9.7", marks=pytest.mark.thorough)])
def stock(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    authority: Authority,
    server: Issued,
    client: Issued,
) -> Iterator[str]:
    """The url of an Apache RocketMQ that speaks TLS with clients that have a certificate, name server and broker."""
    directory = tmp_path_factory.mktemp("stock")
    properties = trusting(authority, client)  # of the broker, as a client of the name server
    properties |= as_on_the_page("stock", ca=authority.certificate, server=server)
    tls = TlsFiles(str(authority.certificate), str(client.certificate), str(client.key))
    jvm = ("-Dtls.server.mode=enforcing", *options_by_file(properties, directory / "tls.properties"))
    with StockBroker(request.param, directory / "stock", options=jvm, tls=tls) as broker:
        yield f"rocketmqs://{broker.names}?cafile={tls.cafile}&certfile={tls.certfile}&keyfile={tls.keyfile}"


def test_our_clients_speak_tls_with_an_apache_rocketmq(stock: str) -> None:
    with Client(stock, group="g", timeout=20.0) as mq:
        mq.send("orders", "plain")
        with mq.begin() as tx:
            tx.send("orders", "in a transaction")
        assert tx.receipt is not None
        assert tx.receipt.acknowledged
        seen: list[str] = []
        with mq.consumer("orders", group="readers") as messages:
            for batch in messages.batches(max=10, wait=20.0):
                seen += [message.text() for message in batch]
                batch.ack()
                if len(seen) >= 2:
                    break
    assert Counter(seen) == Counter(["plain", "in a transaction"])
    url = parse_url(stock)
    connections = Connections(url.security)  # of the Spark source
    assert "orders" in NameServers(url, connections).topics()
    connections.close()


def test_an_apache_rocketmq_rejects_our_client_without_tls_or_certificate(stock: str) -> None:
    """What the others of this module are compared with: the servers do not accept everybody."""
    url = parse_url(stock)
    tls = url.security.tls
    assert tls is not None
    for wrong in (f"rocketmq://{url.addresses}", f"rocketmqs://{url.addresses}?cafile={tls.cafile}"):
        with pytest.raises(ConnectError, match="rocketmqs://"), Client(wrong, timeout=2.0) as mq:
            mq.send("orders", b"x")
