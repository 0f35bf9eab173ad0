"""Names that peers choose cannot move the cursor, forge a line or hide a part of one: in the output of every command, in log lines, and in
HTML.

Every command of the command line has a row in ``CASES``; one that is added without a row fails here.
"""

import asyncio
import importlib
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from tests.support.histories import Options, made
from tests.support.in_process import Running, serving
from tests.support.raw_client import command
from tests.support.sample_store import properties
from tests.support.scripted_server import ScriptedServer
from tests.support.shop_module import shop_module
from tests.support.store_writer import StoreWriter
from tests.support.waiting import PATIENCE_S, until
from tests.unit.broker.remoting.test_checks import answered, next_check

from halfmq.broker.log_output import LogOutput
from halfmq.cli import entry
from halfmq.cli.main import app
from halfmq.cli.pipeline import JOBS
from halfmq.errors import HalfmqError
from halfmq.model.pending import (
    ClientInfo,
    CoordinatorInfo,
    DamagedTransaction,
    GroupStats,
    PendingTransaction,
    QueryInfo,
)
from halfmq.model.settings import BrokerSettings
from halfmq.model.shown_settings import ShownSetting
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.spark.jobs import reconcile, reconciliation, report, report_figures
from halfmq.spark.jobs.settings import fields_of
from halfmq.wire.remoting import admin_stats, codes, header, route
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.producer_groups import ProducerLimits

FORGED = "It was COMMITTED by operator ada"
#: Colours and cursor by ESC and by the single character CSI, line ends, reversed writing, no width, markup of rich and HTML, NUL, DEL.
HOSTILE = f"x\x1b[2K\r\n{FORGED}\n\x9b31m\u202e\u2066\u200b\u2028[red]<script>alert(1)</script>\x00\x7f"
#: What is left of it on every way.
ESCAPED = re.compile(r"x(\\x1b|\\u001b)\[2K")


def assert_harmless(text: str, *, shows: bool = True) -> None:
    raw = sorted({one for one in text if not one.isprintable() and one != "\n"})
    assert not raw, f"raw {raw} in {text!r}"
    assert not [line for line in text.split("\n") if line.lstrip().startswith(FORGED)], text
    assert not shows or ESCAPED.search(text), f"does not show it: {text!r}"


# --- the command line


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Names of all commands, without importing the jobs."""
    for name in group.list_commands(None):
        found = group.get_command(None, name)
        if getattr(found, "_extra", "") == "server":
            found = found._make()
        if hasattr(found, "list_commands"):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join((*path, name))


Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs ``halfmq`` as it is installed, and returns the exit status and all of its output."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["halfmq", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            entry.run()
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out + err

    return run


PENDING = PendingTransaction(HOSTILE, HOSTILE, 1, 1, 1, 1, (HOSTILE,), 1, 1, 1, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
DAMAGE = DamagedTransaction(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, 1)
STATS = GroupStats(HOSTILE, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, HOSTILE, 1, HOSTILE)
LIMITS = ProducerLimits(HOSTILE, 1, "wait", 1, 1, 1, HOSTILE, 1, 1)
BODIES: dict[int, Any] = {
    codes.HMQ_TRANSACTIONS: [PENDING],
    codes.HMQ_STORY: [HOSTILE, HOSTILE],
    codes.HMQ_ASK_PARKED: [HOSTILE],
    codes.HMQ_UNDECIDED: [HOSTILE],
    codes.HMQ_DAMAGED: [DAMAGE],
    codes.HMQ_STATS: [STATS],
    codes.HMQ_PRODUCER: LIMITS,
    codes.HMQ_QUERIES: [QueryInfo(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, 1, 0, False)],
    codes.HMQ_SETTINGS: {
        HOSTILE: ShownSetting(HOSTILE, HOSTILE, HOSTILE),
        "host": ShownSetting([HOSTILE], "option"),
        "queries_max": ShownSetting(HOSTILE, "recorded", None, 1_000, HOSTILE, HOSTILE),
    },
    codes.HMQ_CLIENTS: [ClientInfo(6, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, (HOSTILE,), (HOSTILE,), 2, 0, True)],
    codes.HMQ_COORDINATORS: [CoordinatorInfo(HOSTILE, HOSTILE, 1, HOSTILE, 1, 0)],
    codes.RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
        "subscriptionGroupTable": {HOSTILE: {"attributes": {"hold.topics": HOSTILE, "hold.ms": "0"}}}
    },
}
FIELDS = dict.fromkeys(
    ("group", "state", "checkOpen", "clientId", "checks", "verdict", "HMQ_VERDICT", "HMQ_POSITION"), HOSTILE
)


#: Address of the server that plays the broker.
SERVED_AT: list[str] = []
_ROW = (0, 0, 5, 1_000)


def rocketmq_body(code: int) -> bytes | None:
    """Of a response to one of RocketMQ's own requests; None: it is in ``BODIES``."""
    name = f"%DLQ%{HOSTILE}"
    broker = route.BrokerData(HOSTILE, HOSTILE, {0: SERVED_AT[-1]})
    match code:
        case codes.RequestCode.GET_BROKER_CLUSTER_INFO:
            return route.encode_cluster_info([broker], 513)
        case codes.RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route.encode_route(route.Route((broker,), (route.QueueData(HOSTILE, 1, 1, 6),)), 513)
        case codes.RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return json.dumps({"topicList": [HOSTILE, name]}).encode()
        case codes.RequestCode.GET_TOPIC_STATS_INFO:
            return admin_stats.encode_topic_stats(HOSTILE, HOSTILE, 0, [_ROW])
        case codes.RequestCode.GET_CONSUME_STATS:
            return admin_stats.encode_consume_stats(HOSTILE, [(HOSTILE, 0, [(0, 5, 4, 5, 1_000)])])
        case codes.RequestCode.GET_TOPIC_CONFIG:
            return admin_stats.encode_topic_config(
                HOSTILE, 1, 1, 6, ordered=False, attributes={"message.type": HOSTILE}
            )
        case codes.RequestCode.GET_CONSUMER_CONNECTION_LIST:
            return b'{"connectionSet":[]}'
        case codes.RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
            return admin_stats.encode_groups([HOSTILE])
        case codes.RequestCode.PULL_MESSAGE | codes.RequestCode.QUERY_MESSAGE | codes.RequestCode.VIEW_MESSAGE_BY_ID:
            body = HOSTILE.encode()
            texts = {
                "KEYS": HOSTILE,
                "TAGS": HOSTILE,
                "UNIQ_KEY": HOSTILE,
                "HMQ_DEAD_REASON": HOSTILE,
                "DLQ_ORIGIN_TOPIC": HOSTILE,
            }
            pairs = "".join(f"{key}\x01{value}\x02" for key, value in texts.items()).encode()
            host = b"\x7f\0\0\1\0\0\x2a\x9f"
            made = StoredMessage(name, 0, 4, 0, 0, 1, host, 1_000, host, 0, 0, body, body_crc_of(body), pairs)
            return b"".join(encode(made, 400))
    return None


def answers(request: Request[Any]) -> bytes:
    """Success, with hostile values in all fields that are text."""
    state = {"state": "UNDECIDED"} if "--yes" in sys.argv or "check" in sys.argv else {}
    numbers = {"total": "1", "left": "0", "totalGroupNum": "1"}
    queue = {"nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5", "offset": "4", "timestamp": "1000"}
    body = rocketmq_body(request.code) or msgspec.json.encode(BODIES.get(request.code, {}))
    return header.encode_response(request, 0, ext={**FIELDS, **state, **numbers, **queue}, body=body)


def refuses(request: Request[Any]) -> bytes:
    return header.encode_response(request, 1, HOSTILE)


def breaks(request: Request[Any]) -> bytes:
    """A body that is not what was asked for."""
    return header.encode_response(request, 0, ext=FIELDS, body=json.dumps({HOSTILE: HOSTILE}).encode())


def refuses_verdicts(request: Request[Any]) -> bytes:
    return refuses(request) if request.code == codes.HMQ_RESOLVE else answers(request)


DECIDE = ("--operator", "eve", "--yes")
#: Command -> the arguments of each run, for those that ask a broker.
ASKING: dict[str, tuple[tuple[str, ...], ...]] = {
    "tx list": ((), ("--json",), ("--group", HOSTILE), ("--max", "1")),
    "tx show": ((HOSTILE,), (HOSTILE, "--json")),
    "tx check": ((HOSTILE, "--wait", "0"), ("--group", HOSTILE, "--parked", "--wait", "0")),
    "tx stats": ((), ("--json",)),
    "tx limits": ((HOSTILE,), (HOSTILE, "--json"), (HOSTILE, "--check-limit", "1", "--past-limit", "rollback", *DECIDE)),
    "tx commit": ((HOSTILE, *DECIDE), ("--group", HOSTILE, "--all", *DECIDE), ("--group", HOSTILE, "--all", "--preview", *DECIDE)),
    "tx rollback": ((HOSTILE, *DECIDE), ("--group", HOSTILE, "--all", *DECIDE)),
    "group hold": (("archive", "orders"),),
    "group release": (("archive",),),
    "group holds": ((),),
    "coordinator list": ((), ("--json",)),
    "coordinator forget": ((HOSTILE, "--group", HOSTILE, "--operator", "eve", "--reason", HOSTILE, "--yes"),),
    "query list": ((), ("--json",)),
    "tx damaged": ((), ("--json",)),
    "tx forget": ((HOSTILE, "--operator", "eve", "--reason", HOSTILE, "--yes"),),
    "query forget": ((HOSTILE, "--operator", "eve", "--reason", HOSTILE, "--yes"),),
    "config get": ((), ("--sources",), ("--json",)),
    "config set": ((HOSTILE, HOSTILE, "--operator", "eve", "--reason", HOSTILE, "--yes"), ("queries_max", "5", "--yes", "--json")),
    "config unset": ((HOSTILE, "--yes"), ("queries_max", "--preview")),
    "topic list": ((), ("--json",)),
    "topic show": (("orders",), ("orders", "--json")),
    "topic create": (("orders",),),
    "topic set": (("orders", "--queues", "2"),),
    "topic delete": (("orders", "--yes"), ("orders", "--preview")),
    "group list": ((), ("--json",)),
    "group lag": (("billing",), ("billing", "--queues"), ("billing", "--json")),
    "group reset": (("billing", "--to", "latest", "--preview"), ("billing", "--to", "earliest", "--yes")),
    "group delete": (("billing", "--yes"),),
    "client list": ((), ("--json",)),
    "client kick": (("6", "--operator", "eve", "--reason", HOSTILE, "--yes"),),
    "send": (("orders", HOSTILE),),
    "consume": (("orders",), ("orders", "--json")),
    "peek": (
        ("orders", "--last", "2"), ("orders", "--key", "k"), ("orders", "--time", "1h", "--json"), ("orders", "--id", HOSTILE),
    ),
    "dead list": ((), ("--json",), ("--group", HOSTILE)),
    "dead show": ((HOSTILE, HOSTILE), (HOSTILE, HOSTILE, "--json")),
    "dead redrive": (("--group", HOSTILE, "--preview"),),
}  # fmt: skip
#: They show what they were given, and nothing of a success.
SILENT = {"group hold", "group release", "group delete", "topic create", "send"}


@pytest.mark.parametrize("answer", [answers, refuses, breaks, refuses_verdicts])
@pytest.mark.parametrize("name", ASKING)
def test_commands_that_ask_a_broker_show_its_text_escaped(
    invoke: Invoke, name: str, answer: Callable[[Request[Any]], bytes]
) -> None:
    server = ScriptedServer(answer)
    shown = 0
    try:
        for arguments in ASKING[name]:
            SERVED_AT.append(f"127.0.0.1:{server.port}")
            _, text = invoke(*name.split(), *arguments, "--url", server.url)
            assert_harmless(text, shows=False)
            shown += bool(ESCAPED.search(text))
        assert server.requests
    finally:
        server.close()
    if answer is refuses:
        assert shown == len(ASKING[name]), "some run does not show the remark"
    elif answer is answers and name not in SILENT:
        assert shown


def hostile_store(directory: Path) -> StoreWriter:
    text = HOSTILE.encode("ascii", "ignore").decode()
    writer = StoreWriter(directory)
    writer.topic(text)
    writer.send(text, 0, HOSTILE.encode(), properties(1, keys=HOSTILE))
    halves = writer.prepare(text, [(text, 0, b"h", properties(2, tx_id=HOSTILE))])
    writer.commit(text, halves)
    writer.publish()
    return writer


def context_list(invoke: Invoke, home: Path) -> None:
    (home / "halfmq").mkdir()
    (home / "halfmq" / "contexts.json").write_text(json.dumps({"urls": {HOSTILE: HOSTILE}, "current": HOSTILE}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        for arguments in ((), ("--json",)):
            status, text = invoke("context", "list", *arguments)
            assert status == 0
            assert_harmless(text)


def store_verify(invoke: Invoke, home: Path) -> None:
    writer = hostile_store(home / "store")
    assert_harmless(invoke("store", "verify", str(home / "store"))[1], shows=False)
    for path in (writer.shard / "queues").rglob("*.q"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    (writer.shard / "topics.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    status, text = invoke("store", "verify", str(home / "store"))
    assert status == 1
    assert_harmless(text, shows=False)
    assert_harmless(invoke("store", "verify", str(home / "x\x1b[2K"))[1])


def backup_of_hostile_broker(invoke: Invoke, home: Path) -> None:
    hostile = {"store": HOSTILE, "format": "3", "segmentBytes": "0", "logStart": "0", "position": "9"}
    for answer in (
        refuses,
        lambda request: header.encode_response(request, 0, ext=hostile),
        lambda request: header.encode_response(request, 0, ext={**hostile, "position": HOSTILE}),
    ):
        server = ScriptedServer(answer)
        try:
            status, text = invoke("backup", str(home / "backup"), "--url", server.url)
        finally:
            server.close()
        assert status == 1
        assert_harmless(text, shows=answer is refuses)
    (home / "x\x1b[2K" / "other").mkdir(parents=True)
    assert_harmless(invoke("backup", str(home / "x\x1b[2K"), "--url", "127.0.0.1:1")[1])


def restore_of_hostile_path(invoke: Invoke, home: Path) -> None:
    assert_harmless(invoke("restore", str(home / "x\x1b[2K"), str(home / "new"))[1])
    assert_harmless(invoke("restore", str(home), str(home / "new"), "--time", HOSTILE)[1])


def store_dump(invoke: Invoke, home: Path) -> None:
    hostile_store(home)
    for more in ((), ("--bodies",)):
        status, text = invoke("store", "dump", str(home), *more)
        assert status == 0
        assert_harmless(text)
        assert any(
            HOSTILE in str(json.loads(line)) or repr(HOSTILE)[1:-1] in str(json.loads(line))
            for line in text.splitlines()
        )


def check_history(invoke: Invoke, home: Path) -> None:
    history = made(3, Options(transactions=20))
    history.write(home / "history")
    renamed = 0
    for path in (home / "history").rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for field in ("group", "tx", "message", "topic", "system"):
                if isinstance(line.get(field), str):
                    line[field] = HOSTILE + line[field]
                    renamed += 1
            line.pop("position", None) if line.get("e") == "ended" else None
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if line.get("e") != "half"))
    assert renamed
    for more in ((), ("--json",)):
        _, text = invoke("check-history", str(home / "history"), *more)
        assert_harmless(text)


def job(name: str) -> Callable[[Invoke, Path, pytest.MonkeyPatch], None]:
    def run(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        module = importlib.import_module(f"halfmq.spark.jobs.{name}")
        required = [
            text
            for field in fields_of(module.Settings)
            if field.required
            for text in (f"--{field.name.replace('_', '-')}", "x")
        ]
        for error in (HalfmqError(HOSTILE), ValueError(HOSTILE)):

            def work(settings: Any, spark: Any, say: Callable[[str], None], error: Exception = error) -> int:
                """As the job."""
                say(HOSTILE)
                raise error

            monkeypatch.setattr(module, "run", work)
            status, text = invoke("pipeline", name, *required)
            assert status == JOBS[name].failed, text
            assert_harmless(text)
            assert len(ESCAPED.findall(text)) >= 2, "what it says, and its error"

    return run


RESULT = reconciliation.Result(
    table=HOSTILE, messages=HOSTILE, read_at=HOSTILE, rows=1, messages_read=1, equal=0, counts={reconciliation.Kind.MISSING: 1},
    extra_messages=0, compared=[HOSTILE], totals=[reconciliation.Total(HOSTILE, Decimal(1), Decimal(2), Decimal(1), True)],
    examples={reconciliation.Kind.MISSING: [
        reconciliation.Example(key={HOSTILE: HOSTILE}, rows=1, messages=1, reason=HOSTILE),
        reconciliation.Example(key={HOSTILE: HOSTILE}, rows=1, messages=1, values=[reconciliation.Values(HOSTILE, HOSTILE, None)], first_message=HOSTILE),
    ]},
)  # fmt: skip


def reconcile_job(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job("reconcile")(invoke, home, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(reconcile, "reconcile", lambda settings, spark, say: RESULT)
    required = [text for field in fields_of(reconcile.Settings) if field.required for text in (f"--{field.name}", "x")]
    for more in ((), ("--json", "-")):
        status, text = invoke("pipeline", "reconcile", *required, *more)
        assert status == 1, text
        assert_harmless(text)
        assert "[red]" in text, "markup is shown, not obeyed"


def report_job(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "result.json").write_bytes(reconciliation.to_json(RESULT))
    page = home / "report.html"
    status, text = invoke(
        "pipeline", "report", "--reconciliation", str(home / "result.json"), "--output", str(page), "--title", HOSTILE
    )
    assert status == 0, text
    assert_harmless(page.read_text())
    job("report")(invoke, home, monkeypatch)


def hostile_shop(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application with an outbox, in which names, keys and reasons are hostile. Returns the id of a message that is set aside."""
    shop = shop_module(monkeypatch, home)
    with shop.sessions() as session, session.begin():
        message_id: str = shop.outbox.send(session, "orders", HOSTILE, sharding_key=HOSTILE.replace("\0", ""))
        shop.outbox.send(session, "orders", HOSTILE)
        shop.outbox.fill(session.connection())
    table, lanes = shop.outbox.tables
    with shop.sessions() as session, session.begin():
        connection = session.connection()
        aside = table.update().where(table.c.message_id == message_id)
        connection.execute(aside.values(delivery="A", reason=HOSTILE, topic=HOSTILE, tx_id=HOSTILE))
        other = table.update().where(table.c.message_id != message_id)
        connection.execute(other.values(message_id=HOSTILE))
        held = lanes.update().where(lanes.c.lane == 3)
        connection.execute(held.values(holder=HOSTILE, batch_id="b", batch_seqs="2"))
    return message_id


def outbox_status(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_shop(home, monkeypatch)
    for more in ((), ("--json",)):
        status, text = invoke("outbox", "status", "shop:app", *more)
        assert status == 0
        assert_harmless(text)
    assert_harmless(invoke("outbox", "status", f"{HOSTILE}:app")[1])
    assert_harmless(invoke("outbox", "status", f"sqlite:///absent/{NAME}")[1])


def outbox_list(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_shop(home, monkeypatch)
    for more in ((), ("--json",), ("--state", "waiting"), ("--state", HOSTILE)):
        assert_harmless(invoke("outbox", "list", "shop:app", *more)[1])


def outbox_retry(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_shop(home, monkeypatch)
    assert_harmless(invoke("outbox", "retry", "shop:app", HOSTILE)[1])
    assert_harmless(invoke("outbox", "retry", "shop:app", f"{HOSTILE}2")[1])


def outbox_skip(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile_shop(home, monkeypatch)
    assert_harmless(invoke("outbox", "skip", "shop:app", "--sharding-key", f"{HOSTILE}2", *DECIDE)[1])
    assert_harmless(invoke("outbox", "skip", "shop:app", HOSTILE, *DECIDE)[1], shows=False)
    assert_harmless(invoke("outbox", "skip", "shop:app", "--all", *DECIDE)[1], shows=False)


def relay(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log: what a target says of a message that it refuses."""
    hostile_shop(home, monkeypatch)
    (home / "target.py").write_text(
        "import shop\nfrom halfmq.relay.publisher import Published\n"
        "class Target:\n    name, messages_max = 'there', 1\n    async def open(self): pass\n    async def close(self): pass\n"
        f"    async def publish(self, batch): return Published(frozenset(), {{m.seq: {HOSTILE!r} for m in batch.messages}})\n"
        "    async def recover(self, batch): return Published(frozenset())\n"
        "app = shop.without\napp.relay(shop.outbox, to=Target(), attempts=1)\n"
    )
    # A process of its own: it configures logging.
    done = subprocess.run(
        [sys.executable, "-m", "halfmq", "relay", "target:app", "--once"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert_harmless(done.stderr)
    assert_harmless(invoke("relay", f"{HOSTILE}:app")[1])
    (home / "breaks.py").write_text(f"raise ValueError({HOSTILE!r})")
    assert_harmless(invoke("relay", "breaks:app")[1])


def worker(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log: what a server says that refuses it."""
    monkeypatch.chdir(home)
    server = ScriptedServer(refuses)
    try:
        (home / "service.py").write_text(
            f"from halfmq import App\napp = App({server.url!r}, group='g')\n"
            "@app.consumer('orders', group='g')\ndef handle(message): pass\n"
        )
        # A process of its own: it configures logging.
        done = subprocess.run(
            [sys.executable, "-m", "halfmq", "worker", "service:app", "--no-wait"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    finally:
        server.close()
    assert done.returncode == 1, done.stderr
    assert_harmless(done.stderr)
    assert_harmless(invoke("worker", f"{HOSTILE}:app")[1])
    (home / "breaks.py").write_text(f"raise ValueError({HOSTILE!r})")
    assert_harmless(invoke("worker", "breaks:app")[1])


def asyncapi(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docstrings and titles."""
    monkeypatch.chdir(home)
    (home / "described.py").write_text(
        "from halfmq import App\napp = App('127.0.0.1:1', group='g')\n"
        f"def handle(message): pass\nhandle.__doc__ = {HOSTILE!r}\napp.consumer('orders', group='g')(handle)\n"
    )
    for more in ((), ("--yaml",), ("--title", HOSTILE.replace("\x00", ""))):
        status, text = invoke("asyncapi", "described:app", *more)
        assert status == 0, text
        assert_harmless(text)
    assert_harmless(invoke("asyncapi", f"{HOSTILE}:app")[1])


def db_command(*arguments: str) -> Callable[[Invoke, Path, pytest.MonkeyPatch], None]:
    def run(invoke: Invoke, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shop_module(monkeypatch, home, tables=False)
        (home / "odd.py").write_text(
            f"from sqlalchemy import MetaData\nfrom halfmq.sql import Outbox\nmetadata = MetaData()\nOutbox(metadata, {NAME!r})\n"
        )
        status, text = invoke("db", *arguments)
        assert status == 0, text
        assert_harmless(text)
        assert_harmless(invoke("db", arguments[0], f"odd:{HOSTILE}", *arguments[2:])[1])

    return run


#: As much of it as a database takes; of the statements that are printed every line is one.
NAME = HOSTILE.replace("\x00", "").replace("\n", "")
ODD = ("odd:metadata", "--url", "sqlite:///odd.db")
#: These get the application in a directory of its own.
OF_APPLICATIONS: dict[str, Callable[[Invoke, Path, pytest.MonkeyPatch], None]] = {
    "outbox status": outbox_status,
    "outbox list": outbox_list,
    "outbox retry": outbox_retry,
    "outbox skip": outbox_skip,
    "relay": relay,
    "worker": worker,
    "asyncapi": asyncapi,
    "db sql": db_command("sql", "odd:metadata", "--dialect", "sqlite"),
    "db init": db_command("init", *ODD),
}

CASES: dict[str, Callable[..., None] | None] = {
    **dict.fromkeys(ASKING),
    "backup": backup_of_hostile_broker,
    "restore": restore_of_hostile_path,
    "store verify": store_verify,
    "store dump": store_dump,
    "check-history": check_history,
    **{f"pipeline {name}": job(name) for name in JOBS},
    "pipeline reconcile": reconcile_job,
    "pipeline report": report_job,
    **OF_APPLICATIONS,
    # They show what `db init` shows.
    "db upgrade": None,
    "db prune": None,
    # The path of a file of ours.
    "pipeline script": None,
    # Its output is the log: test_log_lines_of_a_broker_under_hostile_names_are_escaped.
    "serve": None,
    # Names and permissions of users are of a few characters, whoever gives them (``model.users``).
    "user add": None,
    "user set": None,
    "user rotate": None,
    "user list": None,
    "user remove": None,
    "context list": context_list,
    # What the account that starts it, or the broker, was given by its own operator; refusals: "config get" below.
    "config show": None,
    # Its archive has what other commands print.
    "diagnose": None,
    # They show what they were given: test_context.py.
    "context add": None,
    "context use": None,
    "context remove": None,
    # They start their broker and its clients themselves.
    "bench tx": None,
    "bench restart": None,
}


def test_every_command_has_a_case() -> None:
    assert set(leaves(typer.main.get_command(app))) == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case is not None])
def test_commands_that_read_files_show_their_text_escaped(
    name: str, invoke: Invoke, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    assert case is not None
    if name.startswith("pipeline") or name in OF_APPLICATIONS:
        case(invoke, tmp_path, request.getfixturevalue("monkeypatch"))
    else:
        case(invoke, tmp_path)


# --- a real broker


ID = "AC10000100002A9F0000000000000001"
QUICK = BrokerSettings(check_immunity_ms=20, check_interval_ms=20, check_answer_ms=60_000)


async def hostile_peers(running: Running) -> None:
    """An undecided transaction whose producer has a hostile name and answered a check with a hostile remark; the next check waits for it.

    And requests that make the broker log what peers sent.
    """
    client = await running.client()
    await client.heartbeat(HOSTILE, producers=["P"], consumers={"C": ["T"]})
    other = await running.client()
    await other.heartbeat(HOSTILE + "2", consumers={"C": ["another"]})
    half = await client.half("T", b"one", unique=ID, KEYS=HOSTILE, TAGS=HOSTILE)
    assert half.code == 0, half
    unknown = answered(await next_check(client), 0)
    client.write(command(37, client.next_opaque(), unknown, oneway=True, remark=HOSTILE))
    await next_check(client)
    fields = {"a": HOSTILE, "topic": HOSTILE, "group": HOSTILE, "name": HOSTILE}
    for code in (9_999, 29_012, 29_013, 200, 17, 25):
        client.write(command(code, client.next_opaque(), fields, HOSTILE.encode(), remark=HOSTILE))
    names = {"group": "P", "txId": ID, "operator": HOSTILE, "reason": HOSTILE, "verdict": "COMMIT"}
    assert (await client.ask(29_004, names)).code != 0, "an operator's name is printable"


async def test_client_id_cannot_forge_the_story_of_a_transaction(tmp_path: Path, invoke: Invoke) -> None:
    async with serving(tmp_path, settings=QUICK) as running:
        await hostile_peers(running)
        url = ("--url", f"127.0.0.1:{running.ports.names}")
        for arguments in (("show", ID), ("show", ID, "--json"), ("commit", ID, "--operator", "bob", "--yes")):
            status, text = await asyncio.to_thread(invoke, "tx", *arguments, *url)
            assert status == 0, text
            assert_harmless(text)
            assert len(ESCAPED.findall(text)) == 2, "the client that is asked, and the remark of the last one"


async def test_log_lines_of_a_broker_under_hostile_names_are_escaped(tmp_path: Path) -> None:
    written = bytearray()

    def write(fd: int, data: bytes) -> int:
        written.extend(data)
        return len(data)

    output = LogOutput(1, write=write)
    root = logging.getLogger()
    level = root.level
    root.addHandler(output)
    root.setLevel(logging.DEBUG)
    try:
        async with serving(tmp_path, settings=QUICK) as running:
            await hostile_peers(running)
            await until(lambda: b"9999" in written, "the line about an unknown request")
        output.say_last(f"halfmq: {HOSTILE}")
    finally:
        root.removeHandler(output)
        root.setLevel(level)
        assert output.end()
    lines = written.decode()
    assert_harmless(lines)
    assert re.search(r"halfmq: x\\x1b\[2K\\r\\nIt was", lines), "the last line, too"


# --- HTML


def test_page_of_the_report_shows_names_escaped() -> None:
    interval = report_figures.Interval(0, 1, 2)
    topics = [report_figures.Topic(HOSTILE, 1, 1, 0, 1, 1)]
    messages = report_figures.Messages(interval, topics, {HOSTILE: [1, 0]}, 0)
    groups = [report_figures.Group(HOSTILE, 1, 1, 1, 1)]
    waiting = [report_figures.Waiting(HOSTILE, HOSTILE, 1, 1, [HOSTILE])]
    found = report_figures.Transactions(groups, 0, [(HOSTILE, 1)], None, interval, [1, 1], [1, 0, 0, 0, 0, 0], waiting)
    settings = report.Settings(title=HOSTILE, transactions=HOSTILE, url="rocketmq://h:1", topics=(HOSTILE,))
    page = report.render(settings, {"messages": messages, "transactions": found, "reconciliation": RESULT})
    assert_harmless(page)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
