"""`halfmq serve` as people meet it: up in a second, one clear line when it cannot start, exit codes, kill and go on.

What is refused is refused in this process: ``refused`` calls what the command calls, and reads what it writes to stderr.
"""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import config, serving
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, soon, until

from halfmq.broker import process as process
from halfmq.broker.broker import Ports
from halfmq.broker.process import _explained
from halfmq.errors import EnvironmentFailed, PortTaken, StoreFull
from halfmq.store.store import Durability

#: The last line of a start that is refused. Takes the directory, settings of ``BrokerConfig``, and ``ports_file``.
Refused = Callable[..., str]
SMALL = ("--segment-bytes", str(1 << 20))


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    monkeypatch.setattr(process, "keep_freed_memory", lambda count: None)
    monkeypatch.setattr(process, "connections_that_fit", lambda count, *, beside: count)
    monkeypatch.setattr(process, "_loop_factory", lambda: None)

    def run(data: Path, *, status: int = 1, ports_file: Path | None = None, **settings: object) -> str:
        assert process.run(config(data, **settings), ports_file=ports_file) == status
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("halfmq: ")
        return line

    yield run
    gc.enable()  # a start leaves it off until it has recovered


def serve_command(data: Path) -> list[str]:
    """On free ports."""
    return [sys.executable, "-m", "halfmq", "serve", "--data", str(data), "--port", "0", "--name-port", "0"]


def serve(data: Path, *options: str, status: int = 1, through: tuple[str, ...] = ()) -> str:
    """The last line of a `halfmq serve` that ends by itself with ``status``; ``through`` another command if one is given."""
    command = [*through, *serve_command(data)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == status, result
    assert "Traceback" not in result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("halfmq: ")
    return line


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "log.txt", *SMALL)
    yield served
    if served.process is not None and served.process.poll() is None:
        served.process.kill()
        served.process.wait()


async def conversation(port: int, name_port: int, number: int) -> None:
    """Route, half, commit, pull; every message so far is there."""
    client = await RawClient.connect(port)
    names = await RawClient.connect(name_port)
    route = json.loads((await names.ask(105, {"topic": "TBW102"})).body)
    assert route["brokerDatas"][0]["brokerAddrs"]["0"] == f"127.0.0.1:{port}"
    unique = f"{number:032d}"
    half = await client.half("T", b"body %d" % number, unique=unique)
    assert (await client.end(half, unique, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
    pulled = await client.pull("T")
    assert pulled.ext["maxOffset"] == str(number)
    for earlier in range(1, number + 1):
        assert b"body %d" % earlier in pulled.body
    await client.close()
    await names.close()


def converse(served: Served, number: int) -> None:
    asyncio.run(conversation(served.port, served.name_port, number))


def test_unknown_store_group_is_refused_and_nothing_is_created(refused: Refused, tmp_path: Path) -> None:
    line = refused(tmp_path / "data", status=2, store_group="no-such-group")
    assert line.startswith("halfmq: there is no group 'no-such-group' on this machine (--store-group takes")
    assert not (tmp_path / "data").exists()


def one_run(data: Path, number: int = 1) -> None:
    """A broker in this process that is started on ``data``, has its conversation, and is drained."""

    async def run() -> None:
        async with serving(data, durability=Durability.FSYNC) as running:
            await conversation(running.ports.broker, running.ports.names, number)
            await running.broker.drain()

    asyncio.run(run())


@pytest.mark.slow
def test_raw_frame_conversation_goes_on_after_kill_nine_and_after_a_drain(served: Served) -> None:
    served.start()
    converse(served, 1)
    served.kill()
    served.start()
    converse(served, 2)
    assert served.stop() == 0
    served.start()
    converse(served, 3)
    assert served.process is not None
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(PATIENCE_S) == 0, "an interrupt drains as SIGTERM does"
    lines = served.log.read_text()
    assert "(durability fsync): " in lines
    assert f"broker listens on 127.0.0.1:{served.port}" in lines
    assert f"name service listens on 127.0.0.1:{served.name_port}" in lines
    assert f"advertising 127.0.0.1:{served.port} to clients" in lines
    assert "Traceback" not in lines


@pytest.mark.parametrize(
    ("settings", "told", "warned"),
    [
        ({"hosts": ("0.0.0.0",)}, "127.0.0.1", True),
        ({"hosts": ("::",)}, "127.0.0.1", True),
        ({"hosts": ("::0",)}, "127.0.0.1", True),
        ({"hosts": ("0.0.0.0",), "advertise_host": "mq.example"}, "mq.example", False),
        # Somebody said so: a tunnel, or a port of a container.
        ({"hosts": ("0.0.0.0",), "advertise_host": "127.0.0.1"}, "127.0.0.1", False),
        ({"hosts": ("127.0.0.1",)}, "127.0.0.1", False),
        ({"hosts": ("10.1.2.3",)}, "10.1.2.3", False),
        ({"hosts": ("mq.example",)}, "mq.example", False),
        ({"hosts": ("localhost",)}, "127.0.0.1", False),
    ],
)
def test_what_clients_are_told_is_logged_and_loopback_for_everywhere_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], told: str, warned: bool
) -> None:
    caplog.set_level(logging.INFO)
    process._log_advertised_address(config(tmp_path, **settings), 77)
    assert caplog.messages[0] == f"advertising {told}:77 to clients"
    assert [f"cannot reach {told}:77; give --advertise-host" in line for line in caplog.messages[1:]] == [True] * warned


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"insecure": True}, []),
        ({"hosts": ("::",), "insecure": True}, ["can connect without users (--secrets-key-file) and without TLS (--tls-cert, --tls-key), so"]),
    ],
)  # fmt: skip
def test_what_insecure_means_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: list[str]
) -> None:
    process._warn_if_insecure(config(tmp_path, **settings))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(said)
    assert [text in message for text, message in zip(said, caplog.messages, strict=True)] == [True] * len(said)


@pytest.mark.slow
def test_a_broker_for_everybody_starts_only_if_somebody_said_so(tmp_path: Path) -> None:
    assert "or --insecure, if a firewall" in serve(tmp_path / "data", "--host", "0.0.0.0", status=2)
    assert not (tmp_path / "data").exists()
    served = Served(tmp_path / "data", tmp_path / "log", "--host", "0.0.0.0", "--insecure")
    served.start()
    assert served.stop() == 0
    assert served.log.read_text().count("--insecure: other machines can connect without users") == 1


@pytest.mark.parametrize(("option", "other"), [("port", "name_port"), ("name_port", "port")])
def test_port_that_is_taken_is_said_with_what_to_do(tmp_path: Path, refused: Refused, option: str, other: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        line = refused(tmp_path / "data", **{option: port, other: 0})
        assert f"127.0.0.1:{port}" in line
        assert "--port" in line
        assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_two_brokers_never_have_one_store_though_the_lock_file_is_removed_and_the_directory_moved(
    served: Served, refused: Refused
) -> None:
    """Goal: who runs keeps the store; who has lost its name stops before anything is written into another's directory."""
    served.start()
    assert served.process is not None
    in_use = f"in use by another process (pid {served.process.pid})"
    assert in_use in refused(served.data)
    (served.data / "lock").unlink()
    assert in_use in refused(served.data)
    converse(served, 1)
    moved = served.data.with_name("moved")
    served.process.send_signal(signal.SIGSTOP)  # else it notices, and is gone before the other one looks
    served.data.rename(moved)
    assert in_use in refused(moved)
    served.process.send_signal(signal.SIGCONT)
    assert served.process.wait(PATIENCE_S) == 1
    assert f"{served.data} is not the directory any more" in served.log.read_text().splitlines()[-1]
    assert not served.data.exists()
    moved.rename(served.data)
    one_run(served.data, 2)


def test_damaged_store_is_refused_with_file_and_remedy(tmp_path: Path, refused: Refused) -> None:
    one_run(tmp_path)
    segment = min((tmp_path / "shard-0" / "log").iterdir())
    with segment.open("r+b") as file:
        file.seek(150)
        file.write(b"\xff\xff\xff\xff")
    (tmp_path / "shard-0" / "checkpoint").unlink()  # so that the start reads this part of the log
    before = segment.read_bytes()
    line = refused(tmp_path)
    assert "damaged" in line
    assert segment.name in line
    assert segment.read_bytes() == before


def test_data_that_is_a_file_is_said(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "file"
    path.write_text("no directory")
    assert "not a directory" in refused(path)


#: Root may write everywhere, but for this right.
AS_ANYBODY: tuple[str, ...] = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@pytest.mark.slow
@pytest.mark.skipif(
    bool(AS_ANYBODY) and shutil.which("setpriv") is None, reason="as root this needs setpriv (util-linux)"
)
def test_directory_or_file_that_may_not_be_used_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "not writable" in serve(tmp_path / "data", through=AS_ANYBODY)
    tmp_path.chmod(0o700)
    one_run(tmp_path / "data")
    segment = min((tmp_path / "data" / "shard-0" / "log").glob("*.seg"))
    segment.chmod(0)
    assert f"{segment} cannot be read or written" in serve(tmp_path / "data", through=AS_ANYBODY)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, StoreFull, "free space"),
        (errno.EACCES, EnvironmentFailed, "not writable"),
        (errno.EROFS, EnvironmentFailed, "not writable"),
        (errno.EADDRINUSE, PortTaken, "--port"),
        (errno.ENOENT, EnvironmentFailed, "choose another --data"),
        (errno.EIO, EnvironmentFailed, "check the disk"),
        (errno.EMFILE, EnvironmentFailed, "check --data"),
        (errno.ENOMEM, EnvironmentFailed, "no memory left"),
    ],
)
def test_errors_of_the_machine_say_what_to_do(tmp_path: Path, number: int, kind: type, words: str) -> None:
    explained = _explained(OSError(number, os.strerror(number)), config(tmp_path))
    assert isinstance(explained, kind)
    assert words in str(explained)


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [
        (errno.EACCES, "log/00000000000000000000.seg", "give it and all of"),
        (errno.ENOTDIR, "queues/1", "a file where a directory must be"),
        (errno.EEXIST, "queues", "a file where a directory must be"),
        (errno.EISDIR, "published", "a directory where a file must be"),
    ],
)
def test_errors_about_one_file_of_the_store_name_it_and_not_the_directory(
    tmp_path: Path, number: int, name: str, words: str
) -> None:
    path = tmp_path / "shard-0" / name
    text = str(_explained(OSError(number, os.strerror(number), str(path)), config(tmp_path)))
    assert text.startswith(str(path))
    assert words in text
    assert "--data" not in text


def test_running_out_of_memory_at_a_start_is_one_line() -> None:
    assert "no memory left" in str(_explained(MemoryError(), config(Path("/store"))))


def test_start_on_what_is_no_store_any_more_says_which_file_is_wrong(tmp_path: Path, refused: Refused) -> None:
    """A part that is a file, a part that is gone: each its own line, and all is left alone."""
    data = tmp_path / "data"
    one_run(data)
    shard = data / "shard-0"
    queues = shard / "queues"
    queues.rename(shard / "kept")
    queues.write_text("")
    line = refused(data)
    assert f"{queues}" in line
    assert "a file where a directory must be" in line
    queues.unlink()
    (shard / "kept").rename(queues)
    shard.rename(tmp_path / "away")
    assert f"{shard} is missing beside {data / 'store.json'}: there was a log" in refused(data)
    assert not shard.exists()
    (tmp_path / "away").rename(shard)
    one_run(data, 2)


def test_ports_file_that_cannot_be_written_is_said_before_anything_is_touched(
    tmp_path: Path, refused: Refused, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    assert "--ports-file" in refused(data, ports_file=tmp_path / "none" / "p")
    for directory in (tmp_path, Path(), Path("/")):
        assert "is a directory" in refused(data, ports_file=directory)
    for too_long in (tmp_path / ("p" * 300), tmp_path / ("p" * 300) / "ports"):
        assert "choose another --ports-file" in refused(data, ports_file=too_long)
    assert not data.exists()
    assert "--ports-file" in refused(data, ports_file=tmp_path / ("p" * 255))  # of which the temporary one is too long
    assert not [line for line in caplog.records if line.levelno == logging.CRITICAL], (
        "a broker that is closed says nothing"
    )


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"hosts": ("a..b",)}, 2, "host 'a..b' not possible (an address or name"),
        ({"hosts": ("0.0.0.0",)}, 2, "--host 0.0.0.0 lets other machines connect, without users"),
        ({"advertise_host": ""}, 2, "advertised host '' not possible (an address or name"),
        ({"hosts": ("203.0.113.7",), "insecure": True}, 1, "--host is not an address of this machine"),
        ({"hold_bytes": -5}, 2, "--hold-bytes must not be negative (0: until the disk is nearly full)"),
        ({"disk_reserve_bytes": -1}, 2, "disk reserve -1 bytes not possible (0 or more)"),
    ],
)
def test_wrong_settings_are_said_before_anything_is_touched(
    tmp_path: Path, refused: Refused, settings: dict[str, object], status: int, words: str
) -> None:
    assert words in refused(tmp_path / "data", status=status, **settings)
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_a_wrong_option_ends_the_command_with_one_line(tmp_path: Path) -> None:
    assert "65536" in serve(tmp_path / "data", "--segment-bytes", "1000", status=2)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("foreign", ["pyproject.toml", "src/", "shard-1/", "store.json.bak"])
def test_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path, refused: Refused, foreign: str) -> None:
    (tmp_path / ".git").mkdir()
    if foreign.endswith("/"):
        (tmp_path / foreign).mkdir()
    else:
        (tmp_path / foreign).write_text("not ours")
    before = sorted(tmp_path.iterdir())
    line = refused(tmp_path)
    assert f"{tmp_path} is not a store and not empty: it contains {foreign.rstrip('/')}" in line
    assert "choose an empty directory" in line
    assert sorted(tmp_path.iterdir()) == before


def test_directory_with_what_a_mount_or_an_earlier_start_left_is_taken(tmp_path: Path) -> None:
    for directory in ("lost+found", ".snapshots"):
        (tmp_path / directory).mkdir()
    for file in ("lock", "store.json.new", ".keep", "ports.json"):
        (tmp_path / file).touch()
    process._check_directory(tmp_path, tmp_path / "ports.json")
    (tmp_path / "shard-0").mkdir()
    process._check_directory(tmp_path, None)
    one_run(tmp_path)
    (tmp_path / "notes.txt").write_text("beside a store anything may lie")
    process._check_directory(tmp_path, None)
    one_run(tmp_path, 2)


def test_store_that_lost_its_identity_is_still_called_one(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "shard-0" / "log").mkdir(parents=True)
    (tmp_path / "shard-0" / "log" / f"{0:020d}.seg").touch()
    (tmp_path / "broker.log").write_text("beside a store anything may lie")
    assert "contains a log but no store.json" in refused(tmp_path)


def test_ports_file_names_the_http_port_only_where_there_is_one(tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    process._write_ports(ports, Ports(1, 2))
    assert json.loads(ports.read_text()) == {"broker": 1, "names": 2}
    process._write_ports(ports, Ports(1, 2, 3))
    assert json.loads(ports.read_text()) == {"broker": 1, "names": 2, "http": 3}


@pytest.mark.slow
def test_drain_finishes_what_was_accepted_and_sends_new_clients_away(served: Served) -> None:
    """Goal: nothing acknowledged is lost, nobody waits, a 5.4 client is told to go. Method: SIGTERM under a stream of sends."""

    async def stream() -> tuple[int, set[int]]:
        client = await RawClient.connect(served.port, version=513)
        parked = asyncio.create_task(client.pull("T", 1_000_000, wait_ms=3_600_000))
        acknowledged, codes = 0, set()
        with contextlib.suppress(ConnectionError):
            while True:
                answer = await client.send("T", b"x", unique=f"{acknowledged:032d}", group="P")
                codes.add(answer.code)
                acknowledged += answer.code == 0
                if acknowledged == 50:
                    served.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        assert (await soon(parked)).code in (17, 19, 21)
        await client.close()
        return acknowledged, codes

    async def count() -> int:
        async with serving(served.data) as running:
            return int((await (await running.client()).ask(30, {"topic": "T", "queueId": "0"})).ext["offset"])

    served.start()
    acknowledged, codes = asyncio.run(stream())
    assert served.process is not None
    assert served.process.wait(PATIENCE_S) == 0
    assert codes == {0, 1500}
    assert asyncio.run(count()) == acknowledged


@pytest.mark.slow
async def test_nobody_reads_the_output_and_the_broker_serves_and_stops(tmp_path: Path) -> None:
    """Goal: a full pipe holds nobody up, from the first line on to the end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4_096))
    os.set_blocking(writing, True)
    ports = tmp_path / "ports.json"
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts and goes on
        [*serve_command(tmp_path / "data"), "--ports-file", str(ports), *SMALL], stdout=writing, stderr=writing
    )
    try:
        await until(ports.exists)
        client = await RawClient.connect(json.loads(ports.read_text())["broker"])
        for _ in range(20):
            assert (await client.ask(310, {"e": "no number"})).code == 1
        assert (await client.send("T", b"x", unique="1" * 32)).code == 0
        process.send_signal(signal.SIGTERM)
        await soon(client.closed.wait())
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
        await client.close()
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)
