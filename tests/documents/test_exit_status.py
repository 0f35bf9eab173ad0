"""Every exit status that ``exit_status.MEANINGS`` names is reached by a real run of its command."""

import ast
import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import typer

from halfmq import Client, Outcome, compose
from halfmq.cli import main
from halfmq.cli.exit_status import MEANINGS, ExitStatus, exit_text
from halfmq.wire.remoting.codes import RequestCode
from tests.documents.blocks import By
from tests.documents.pages import ROOT
from tests.documents.shell import shell
from tests.documents.test_commands import tree
from tests.support.half_batches import QueryRun, messages
from tests.support.ports import HOST
from tests.support.raw_client import RawClient
from tests.support.sample_store import sample_store
from tests.support.served import Served
from tests.support.served_users import ServedUsers

#: Nobody listens there.
_NOBODY: Final = "rocketmq://127.0.0.1:1"
_EVENT: Final = '{"e":"%s","t_us":%d,"by":"shop"%s}'
_SEEN: Final = ',"reader":"r","message":"M","topic":"orders","queue":0,"queue_offset":0'
_SENT: Final = ',"op":"1","message":"M","topic":"orders"'
_JOBS: Final = By("tests/spark/test_documents.py::test_the_jobs_run")
_OTHER_JOBS: Final = By("tests/spark/test_documents.py::test_the_jobs_end_with_their_exit_status")
#: A worker that is stopped as soon as it works.
_WORKS: Final = (
    "halfmq worker shop:app 2> worker.log & worker=$!\n"
    "until grep -q 'answers checks only' worker.log; do kill -0 $worker && sleep 0.05; done\n"
    "kill $worker; wait $worker"
)
_SENDS: Final = By("tests/unit/cli/test_messages.py::test_a_send_without_a_response_is_not_called_a_failure")
S = ExitStatus
#: Command -> how one learns what became of a change whose response was lost, with which status that ends, and what it says.
AGAIN: Final = {
    "halfmq config": ("halfmq config get queries_max --sources", S.SUCCESS, "Z by ada"),
    "halfmq tx": ("halfmq tx commit T-2 --operator ada", S.SUCCESS, "already COMMITTED"),
    "halfmq coordinator": (
        "halfmq coordinator forget done --group orders --operator ada --reason over --yes",
        S.NOT_FOUND,
        "knows no coordinator done",
    ),
    "halfmq user": ("halfmq user list", S.SUCCESS, "shop"),
    "halfmq client": ("halfmq client list", S.SUCCESS, "connections, of"),
    "halfmq dead": ("halfmq dead redrive --group consumers --reason lost --yes", S.SUCCESS, "nothing to send"),
    "halfmq topic": ("halfmq topic show new", S.SUCCESS, "topic new on broker"),
    "halfmq group": ("halfmq group delete idle --yes", S.NOT_FOUND, "no consumer group idle"),
    "halfmq query": ("halfmq query forget done --operator ada --reason over --yes", S.NOT_FOUND, "knows no query done"),
}
#: (command, status) -> what is run, in a directory with ``sample`` and ``damaged`` (stores), ``clean.jsonl`` and ``phantom.jsonl``. The
#: environment names a broker with the undecided transactions ``T-1`` to ``T-3``, whose producer answers UNKNOWN, and a finding of damage.
#: What needs Spark is run by another test.
RUNS: Final[dict[tuple[str, ExitStatus], str | By]] = {
    ("halfmq serve", S.SUCCESS): (
        "halfmq serve --data new --port 0 --name-port 0 --ports-file ports.json --segment-bytes 1048576 & broker=$!\n"
        "until test -s ports.json; do kill -0 $broker && sleep 0.05; done\nkill $broker; wait $broker"
    ),
    ("halfmq serve", S.FAILED): "halfmq serve --data clean.jsonl --port 0 --name-port 0",
    ("halfmq serve", S.USAGE): "halfmq serve",
    ("halfmq config", S.SUCCESS): "halfmq config show --data new --sources",
    ("halfmq config", S.FAILED): f"halfmq config get --url {_NOBODY}",
    ("halfmq config", S.NOT_FOUND): "halfmq config get never",
    ("halfmq config", S.USAGE): "HALFMQ_RETENTION=5 halfmq config show",
    ("halfmq config", S.REFUSED): "halfmq config get --url $HALFMQ_OF_SHOP",
    (
        "halfmq config",
        S.UNKNOWN_OUTCOME,
    ): "halfmq config set queries_max 50 --operator ada --yes --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq backup", S.SUCCESS): "halfmq backup backup",
    ("halfmq backup", S.FAILED): f"halfmq backup other-backup --url {_NOBODY}",
    ("halfmq backup", S.USAGE): "halfmq backup sample",
    ("halfmq restore", S.SUCCESS): "halfmq backup backup-1; halfmq restore backup-1 restored-1",
    ("halfmq restore", S.FAILED): "halfmq backup backup-2; rm backup-2/log/*; halfmq restore backup-2 restored-2",
    ("halfmq restore", S.USAGE): "halfmq restore sample restored-3",
    ("halfmq tx", S.SUCCESS): "halfmq tx list",
    ("halfmq tx", S.FAILED): f"halfmq tx list --url {_NOBODY}",
    ("halfmq tx", S.USAGE): "halfmq tx commit T-1 --operator ada",
    ("halfmq tx", S.NOT_FOUND): "halfmq tx show never",
    ("halfmq tx", S.REFUSED): "halfmq tx commit T-1 --operator ada --yes && halfmq tx rollback T-1 --operator ada",
    ("halfmq tx", S.UNKNOWN_OUTCOME): "halfmq tx commit T-2 --operator ada --yes --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq tx", S.STILL_UNDECIDED): "halfmq tx check T-3",
    ("halfmq tx", S.DAMAGE_FOUND): "halfmq tx damaged",
    ("halfmq relay", S.SUCCESS): "halfmq relay shop:app --once",
    ("halfmq relay", S.FAILED): "halfmq relay shop:without_tables",
    ("halfmq relay", S.USAGE): "halfmq relay shop:metadata",
    ("halfmq relay", S.REFUSED): "halfmq relay shop:rejected --once",
    ("halfmq worker", S.SUCCESS): _WORKS,
    ("halfmq worker", S.FAILED): "halfmq worker shop:nobody --no-wait",
    ("halfmq worker", S.USAGE): "halfmq worker shop:metadata",
    ("halfmq asyncapi", S.SUCCESS): "halfmq asyncapi shop:app",
    ("halfmq asyncapi", S.FAILED): "echo 'raise ValueError' > fails.py; halfmq asyncapi fails:app",
    ("halfmq asyncapi", S.USAGE): "halfmq asyncapi shop:metadata",
    ("halfmq outbox", S.SUCCESS): "halfmq outbox status shop:app",
    ("halfmq outbox", S.FAILED): "halfmq outbox status sqlite:///absent/shop.db",
    ("halfmq outbox", S.USAGE): "halfmq outbox retry shop:app",
    ("halfmq outbox", S.NOT_FOUND): "halfmq outbox retry shop:app never",
    ("halfmq outbox", S.REFUSED): "halfmq outbox retry shop:app $(cat held)",
    ("halfmq db", S.SUCCESS): "halfmq db init shop:app",
    ("halfmq db", S.FAILED): "halfmq db init shop:app --url sqlite:///absent/shop.db",
    ("halfmq db", S.USAGE): "halfmq db prune shop:app",
    ("halfmq group", S.SUCCESS): "halfmq group holds",
    ("halfmq group", S.FAILED): f"halfmq group holds --url {_NOBODY}",
    ("halfmq group", S.USAGE): "halfmq group hold 'a group' orders",
    ("halfmq group", S.NOT_FOUND): "halfmq group lag never",
    ("halfmq group", S.REFUSED): "halfmq group delete consumers --yes",
    (
        "halfmq group",
        S.UNKNOWN_OUTCOME,
    ): "halfmq group hold idle orders && halfmq group delete idle --yes --timeout 2 --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq send", S.SUCCESS): "halfmq send orders one",
    ("halfmq send", S.FAILED): f"halfmq send orders one --url {_NOBODY} --timeout 0.5",
    ("halfmq send", S.USAGE): "halfmq send orders one --rollback",
    ("halfmq send", S.REFUSED): "halfmq send RMQ_SYS_TRANS_HALF_TOPIC one",
    ("halfmq send", S.UNKNOWN_OUTCOME): _SENDS,
    ("halfmq consume", S.SUCCESS): "halfmq consume orders",
    ("halfmq consume", S.FAILED): f"halfmq consume orders --url {_NOBODY}",
    ("halfmq consume", S.USAGE): "halfmq consume orders --from soon",
    ("halfmq consume", S.NOT_FOUND): "halfmq consume never",
    (
        "halfmq consume",
        S.REFUSED,
    ): "halfmq send made one --url $HALFMQ_OF_SHOP --group x && halfmq consume made --url $HALFMQ_OF_SHOP",
    ("halfmq peek", S.SUCCESS): "halfmq send orders one --key a && halfmq peek orders --key a",
    ("halfmq peek", S.FAILED): f"halfmq peek orders --last 1 --url {_NOBODY}",
    ("halfmq peek", S.USAGE): "halfmq peek orders",
    ("halfmq peek", S.NOT_FOUND): "halfmq peek orders --key never",
    (
        "halfmq peek",
        S.REFUSED,
    ): "halfmq send made one --url $HALFMQ_OF_SHOP --group x && halfmq peek made --last 1 --url $HALFMQ_OF_SHOP",
    ("halfmq dead", S.SUCCESS): "halfmq dead list",
    ("halfmq dead", S.FAILED): f"halfmq dead list --url {_NOBODY}",
    ("halfmq dead", S.USAGE): "halfmq dead redrive",
    ("halfmq dead", S.NOT_FOUND): "halfmq dead show consumers never",
    ("halfmq dead", S.REFUSED): "halfmq dead list --url $HALFMQ_OF_SHOP",
    ("halfmq dead", S.UNKNOWN_OUTCOME): (
        "halfmq dead redrive --group consumers --reason lost --yes --timeout 2 --url $HALFMQ_TEST_LOSES_RESPONSES"
    ),
    ("halfmq client", S.SUCCESS): "halfmq client list",
    ("halfmq client", S.FAILED): f"halfmq client list --url {_NOBODY}",
    ("halfmq client", S.USAGE): "halfmq client kick 1 --operator ada --reason '' --yes",
    ("halfmq client", S.NOT_FOUND): "halfmq client kick nobody --operator ada --reason over --yes",
    ("halfmq client", S.REFUSED): "halfmq client list --url $HALFMQ_OF_SHOP",
    ("halfmq client", S.UNKNOWN_OUTCOME): (
        "halfmq client list --group consumers --json > clients.json\n"
        "number=$(python -c \"import json; print(json.load(open('clients.json'))['clients'][0]['connection'])\")\n"
        "halfmq client kick $number --operator ada --reason over --yes --url $HALFMQ_TEST_LOSES_RESPONSES"
    ),
    ("halfmq topic", S.SUCCESS): "halfmq topic list",
    ("halfmq topic", S.FAILED): f"halfmq topic list --url {_NOBODY}",
    ("halfmq topic", S.USAGE): "halfmq topic delete orders",
    ("halfmq topic", S.NOT_FOUND): "halfmq topic show never",
    ("halfmq topic", S.REFUSED): "halfmq topic create orders",
    ("halfmq topic", S.UNKNOWN_OUTCOME): "halfmq topic create new --timeout 2 --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq coordinator", S.SUCCESS): "halfmq coordinator list",
    ("halfmq coordinator", S.FAILED): f"halfmq coordinator list --url {_NOBODY}",
    ("halfmq coordinator", S.USAGE): "halfmq coordinator forget done --group orders --operator ada --reason over",
    (
        "halfmq coordinator",
        S.NOT_FOUND,
    ): "halfmq coordinator forget never --group orders --operator ada --reason over --yes",
    (
        "halfmq coordinator",
        S.REFUSED,
    ): "halfmq coordinator forget busy --group orders --operator ada --reason over --yes",
    (
        "halfmq coordinator",
        S.UNKNOWN_OUTCOME,
    ): "halfmq coordinator forget done --group orders --operator ada --reason over --yes --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq context", S.SUCCESS): "halfmq context add prod rocketmq://127.0.0.1:9876",
    ("halfmq context", S.FAILED): "XDG_CONFIG_HOME=clean.jsonl halfmq context list",
    ("halfmq context", S.USAGE): "halfmq context add prod ftp://127.0.0.1",
    ("halfmq context", S.NOT_FOUND): "halfmq context remove never",
    ("halfmq diagnose", S.SUCCESS): "halfmq diagnose --out first.zip --data sample",
    ("halfmq diagnose", S.FAILED): "halfmq diagnose --out clean.jsonl",
    ("halfmq diagnose", S.USAGE): "halfmq diagnose --log absent.txt",
    ("halfmq query", S.SUCCESS): "halfmq query list",
    ("halfmq query", S.FAILED): f"halfmq query list --url {_NOBODY}",
    ("halfmq query", S.USAGE): "halfmq query forget done --operator ada --reason over",
    ("halfmq query", S.NOT_FOUND): "halfmq query forget never --operator ada --reason over --yes",
    ("halfmq query", S.REFUSED): "halfmq query forget busy --operator ada --reason over --yes",
    (
        "halfmq query",
        S.UNKNOWN_OUTCOME,
    ): "halfmq query forget done --operator ada --reason over --yes --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq user", S.SUCCESS): "halfmq user list",
    ("halfmq user", S.FAILED): f"halfmq user list --url {_NOBODY}",
    ("halfmq user", S.USAGE): "halfmq user remove shop --reason over",
    ("halfmq user", S.NOT_FOUND): "halfmq user remove never --reason over --yes",
    ("halfmq user", S.REFUSED): "halfmq user remove alice --reason over --yes",
    ("halfmq user", S.UNKNOWN_OUTCOME): "halfmq user rotate shop --url $HALFMQ_TEST_LOSES_RESPONSES",
    ("halfmq store verify", S.SUCCESS): "halfmq store verify sample",
    ("halfmq store verify", S.FAILED): "halfmq store verify damaged",
    ("halfmq store verify", S.USAGE): "halfmq store verify .",
    ("halfmq store dump", S.SUCCESS): "halfmq store dump sample",
    ("halfmq store dump", S.FAILED): "halfmq store dump damaged",
    ("halfmq store dump", S.USAGE): "halfmq store dump sample --kind none",
    ("halfmq check-history", S.SUCCESS): "halfmq check-history clean.jsonl",
    ("halfmq check-history", S.FAILED): "halfmq check-history phantom.jsonl",
    ("halfmq check-history", S.USAGE): "halfmq check-history absent.jsonl",
    ("halfmq pipeline", S.SUCCESS): _JOBS,
    ("halfmq pipeline", S.FAILED): _OTHER_JOBS,
    ("halfmq pipeline", S.USAGE): "halfmq pipeline ingest",
    ("halfmq pipeline reconcile", S.SUCCESS): _OTHER_JOBS,
    ("halfmq pipeline reconcile", S.FAILED): _JOBS,
    ("halfmq pipeline reconcile", S.USAGE): "halfmq pipeline reconcile",
    ("halfmq bench", S.SUCCESS): "halfmq bench tx --seconds 0.1 --rounds 1 --threads 2 --durability memory",
    # No file may have more than 51,200 bytes, so the broker that is to be measured cannot make its log.
    ("halfmq bench", S.FAILED): "ulimit -f 100; halfmq bench tx --seconds 0.1 --rounds 1 --durability memory",
    ("halfmq bench", S.USAGE): "halfmq bench tx --connections 2 --threads 1",
}


#: ``held`` is the id of a message that no operator may retry; what is in ``mq_rejected`` no broker takes.
_SHOP: Final = """
import os, pathlib
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import sessionmaker
from halfmq import App
from halfmq.sql import Outbox

def made(metadata, table, **options):
    app = App(os.environ["HALFMQ_URL"], group="shop", sessions=sessions)
    app.relay(Outbox(metadata, table), **options)
    return app

metadata = MetaData()
sessions = sessionmaker(create_engine("sqlite:///shop.db"))
app, rejected = made(metadata, "mq_outbox"), made(metadata, "mq_rejected", attempts=1)
without_tables = made(MetaData(), "mq_absent")
nobody = App("rocketmq://127.0.0.1:1", group="shop", timeout=0.5)

def begin():
    metadata.create_all(sessions.kw["bind"])
    with sessions() as session:
        held = app.outboxes()[0].outbox.send(session, "orders", b"x", hold=True)
        rejected.outboxes()[0].outbox.send(session, "RMQ_SYS_TRANS_HALF_TOPIC", b"x")
        session.commit()
    pathlib.Path("held").write_text(held)
"""


@contextlib.contextmanager
def losing_responses(port: int, requests: int) -> Iterator[int]:
    """A port in front of a broker. Of two connections with this many requests each the first one works; on the second the last request
    arrives and its response is lost."""
    with socket.create_server((HOST, 0)) as server:

        def relay() -> None:
            for is_lost in (False, True):
                client, _ = server.accept()
                with client, socket.create_connection((HOST, port)) as broker:
                    for number in range(requests):
                        broker.sendall(client.recv(1 << 16))
                        response = broker.recv(1 << 16)
                        if not is_lost or number < requests - 1:
                            client.sendall(response)

        thread = threading.Thread(target=relay)
        thread.start()
        yield server.getsockname()[1]
        thread.join(60)
        assert not thread.is_alive()


#: Codes of the changes whose response is lost, of commands that ask the brokers that a name server names.
LOST: Final = {
    "halfmq topic": RequestCode.UPDATE_AND_CREATE_TOPIC,
    "halfmq group": RequestCode.DELETE_SUBSCRIPTIONGROUP,
    "halfmq dead": RequestCode.SEND_MESSAGE_V2,
}


@contextlib.contextmanager
def losing_responses_to(port: int, code: int) -> Iterator[int]:
    """A port in front of a broker, which is advertised in place of the broker's. Requests arrive; from the first one with this code on,
    no response does."""
    relays: list[threading.Thread] = []
    lost = threading.Event()
    with socket.create_server((HOST, 0)) as server:
        ours = server.getsockname()[1]
        assert len(str(ours)) == len(str(port)), "the frames keep their length"

        def answer(client: socket.socket, broker: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while (response := broker.recv(1 << 16)) and not lost.is_set():
                    client.sendall(response.replace(b"%b:%d" % (HOST.encode(), port), b"%b:%d" % (HOST.encode(), ours)))

        def relay(client: socket.socket) -> None:
            with client, socket.create_connection((HOST, port)) as broker:
                answering = threading.Thread(target=answer, args=(client, broker))
                answering.start()
                while request := client.recv(1 << 16):
                    if b'"code":%d,' % code in request:
                        lost.set()
                    broker.sendall(request)
                broker.shutdown(socket.SHUT_WR)
                answering.join(60)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    relays.append(threading.Thread(target=relay, args=(client,)))
                    relays[-1].start()

        thread = threading.Thread(target=accept)
        thread.start()
        yield ours
        server.shutdown(socket.SHUT_RDWR)
    for one in (thread, *relays):
        one.join(60)
        assert not one.is_alive()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exit")
    sample_store(directory / "sample")
    # What a broker has published as durable is damage if it cannot be read; without that it may be the torn end of a log.
    served = Served(directory / "damaged", directory / "damaged.log")
    served.start()
    with Client(served.url, group="orders") as client:
        for _ in range(10):
            client.send("orders", b"x" * 500)
    assert served.stop() == 0
    log = directory / "damaged" / "shard-0" / "log" / f"{0:020d}.seg"
    with log.open("r+b") as file:
        file.seek(3_000)
        file.write(b"damage")
    began = _EVENT % ("began", 0, "")
    (directory / "clean.jsonl").write_text(
        "\n".join((began, _EVENT % ("plain", 1, _SENT), _EVENT % ("seen", 2, _SEEN)))
    )
    (directory / "phantom.jsonl").write_text("\n".join((began, _EVENT % ("seen", 2, _SEEN))))
    (directory / "shop.py").write_text(_SHOP)
    shell("python -c 'import shop; shop.begin()'", directory, environment={"HALFMQ_URL": _NOBODY})
    return directory


async def write_queries(port: int) -> None:
    """``done`` has decided a batch, and ``busy`` has one undecided."""
    client = await RawClient.connect(port)
    for query in ("done", "busy"):
        run = await QueryRun.begin(client, query=query)
        assert (await run.prepare(0, "a", messages(query, 1), topic="orders")).code == 0
        if query == "done":
            assert (await run.decide(0, "a")).code == 0
    await client.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("exit")
    served = Served(work / "data", work / "broker.log", "--check-immunity-ms", "1")
    served.start()
    with Client(served.url, group="orders") as client:
        client.add_check("orders", lambda check: Outcome.UNKNOWN)
        for tx_id in ("T-1", "T-2", "T-3"):
            client.prepare([compose("orders", b"one")], tx_id=tx_id, name="orders")
        asyncio.run(write_queries(served.port))
        for name in ("done", "busy"):
            coordinator = client.coordinator(name)
            coordinator.recover()
        coordinator.prepare([compose("orders", b"one")], tx_id="T-c")
        client.commit(client.prepare([compose("orders", b"one")], tx_id="T-d", name="orders"))
        client.report_outcome("T-d", Outcome.ROLLBACK, source="bank A")
        with client.consumer("orders", group="consumers", start="latest", retries=0) as consumer:
            client.send("orders", b"dead")
            with consumer.get(30).processing():
                raise ValueError("lost")
            yield served
    served.stop()


class OfAlice(NamedTuple):
    """A broker with users, of which alice is the administrator, and shop another one."""

    broker: Served
    users: ServedUsers


@pytest.fixture(scope="module")
def of_alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfAlice]:
    work = tmp_path_factory.mktemp("users")
    served = Served(work / "data", work / "broker.log", "--secrets-key-file", str(work / "secrets.key"))
    served.start()
    users = ServedUsers(served, work)
    users.add("shop", "send:topic:*", "send:group:*")
    yield OfAlice(served, users)
    served.stop()


def test_every_status_of_every_command_has_a_run() -> None:
    assert RUNS.keys() == {(command, status) for command, meanings in MEANINGS.items() for status in meanings}
    assert {status for _, status in RUNS} == set(ExitStatus)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [pytest.param(*key, id=f"{key[0]} {key[1].name}") for key, run in RUNS.items() if isinstance(run, str)],
)
def test_a_real_run_ends_with_the_status(
    place: Path, broker: Served, command: str, status: ExitStatus, request: pytest.FixtureRequest
) -> None:
    run = RUNS[command, status]
    assert isinstance(run, str)
    assert command in run
    if command == "halfmq user":
        of_alice: OfAlice = request.getfixturevalue("of_alice")
        ends(place, run, command, status, of_alice.broker, partial(of_alice.users.url, "alice"), 3)
    else:
        if "$HALFMQ_OF_SHOP" in run:
            users: OfAlice = request.getfixturevalue("of_alice")
            run = run.replace("$HALFMQ_OF_SHOP", f"'{users.users.url('shop')}'")
        ends(place, run, command, status, broker, lambda port=broker.name_port: f"rocketmq://{HOST}:{port}", 1)


def ends(
    place: Path, run: str, command: str, status: ExitStatus, broker: Served, url: Callable[..., str], requests: int
) -> None:
    """``requests``: of a connection, with its login."""
    environment = {"HALFMQ_URL": url()}
    if "LOSES_RESPONSES" not in run:
        shell(run, place, status=status, environment=environment)
        return
    lost = LOST.get(command)
    losing = losing_responses(broker.port, requests) if lost is None else losing_responses_to(broker.port, lost)
    with losing as port:
        done = shell(
            run,
            place,
            status=status,
            environment={**environment, "HALFMQ_TEST_LOSES_RESPONSES": url(port=port)},
        )
    assert "no response" in done.stderr
    again, status, text = AGAIN[command]
    repeated = shell(again, place, status=status, environment=environment)
    assert text in repeated.stdout + repeated.stderr, (
        "as the page says, repeating it is harmless, and tells what became of it"
    )


def test_no_command_ends_with_a_number_that_is_not_in_the_enumeration() -> None:
    files = sorted((ROOT / "src/halfmq/cli").glob("*.py"))
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Exit", "SystemExit"):
                numbers = [
                    one
                    for given in node.args
                    for one in ast.walk(given)
                    if isinstance(one, ast.Constant) and type(one.value) is int
                ]
                assert numbers == [], f"{path.name}:{node.lineno}: {ast.unparse(node)}: use ExitStatus"


def command_of(name: str) -> str:
    """The row of a command: its own, or that of its group."""
    while name not in MEANINGS:
        name = name.rpartition(" ")[0]
        assert name != "halfmq"
    return name


def test_every_command_has_its_statuses_at_the_end_of_its_help() -> None:
    waiting = {
        f"halfmq {name}": command
        for name, command in tree(typer.main.get_command(main.app)).items()
        if name != "pipeline"
    }
    looked_at = 0
    while waiting:
        name, command = waiting.popitem()
        below = tree(command)
        waiting |= {f"{name} {part}": one for part, one in below.items()}
        if name in MEANINGS:
            looked_at += 1
            assert command.epilog == exit_text(name), name
        if not below:
            assert command_of(name)
    assert looked_at == len(MEANINGS) - 2, "all but those of Spark, whose modules are not imported here"
