"""`halfmq serve` as people meet it: up in a second, one clear line when it cannot start, exit codes, kill and go on."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.in_process import config
from tests.support.raw_client import RawClient
from tests.support.served import Served

from halfmq.broker import process as process
from halfmq.broker.broker import Ports
from halfmq.broker.process import _explained
from halfmq.errors import EnvironmentFailed, PortTaken, StoreFull

pytestmark = pytest.mark.slow
ID = "AC10000100002A9F0000000000000001"


def serve(*options: str, wait_s: float = 20, through: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run `halfmq serve` that is expected to end by itself, ``through`` another command if one is given."""
    command = [*through, sys.executable, "-m", "halfmq", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=wait_s, check=False)


def last_line(result: "subprocess.CompletedProcess[str]") -> str:
    assert result.returncode == 1, result
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("halfmq: ")
    assert "Traceback" not in result.stderr
    return line


@pytest.fixture
def served(tmp_path: Path) -> "Served":
    served = Served(tmp_path / "data", tmp_path / "log.txt", "--segment-bytes", str(1 << 20))
    yield served  # type: ignore[misc]
    if served.process is not None and served.process.poll() is None:
        served.process.kill()
        served.process.wait()


async def conversation(served: Served, number: int) -> None:
    """Route, half, commit, pull; every message so far is there."""
    client = await RawClient.connect(served.port)
    names = await RawClient.connect(served.name_port)
    route = json.loads((await names.ask(105, {"topic": "TBW102"})).body)
    assert route["brokerDatas"][0]["brokerAddrs"]["0"] == f"127.0.0.1:{served.port}"
    unique = f"{number:032d}"
    half = await client.half("T", b"body %d" % number, unique=unique)
    assert (await client.end(half, unique, 8)).ext["HMQ_VERDICT"] == "COMMITTED"
    pulled = await client.pull("T")
    assert pulled.ext["maxOffset"] == str(number)
    for earlier in range(1, number + 1):
        assert b"body %d" % earlier in pulled.body
    await client.close()
    await names.close()


def test_raw_frame_conversation_goes_on_after_kill_nine_and_after_a_drain(served: Served) -> None:
    served.start()
    asyncio.run(conversation(served, 1))
    served.kill()
    served.start()
    asyncio.run(conversation(served, 2))
    assert served.stop() == 0
    served.start()
    asyncio.run(conversation(served, 3))
    assert served.stop() == 0
    lines = served.log.read_text()
    assert "(durability fsync): " in lines
    assert f"broker listens on 127.0.0.1:{served.port}" in lines
    assert f"name service listens on 127.0.0.1:{served.name_port}" in lines
    assert "Traceback" not in lines


def test_port_that_is_taken_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        for option, other in (("--port", "--name-port"), ("--name-port", "--port")):
            line = last_line(serve("--data", str(tmp_path / "data"), option, str(port), other, "0"))
            assert f"127.0.0.1:{port}" in line
            assert "--port" in line


def test_directory_of_another_process_is_refused_and_left_alone(served: Served) -> None:
    served.start()
    line = last_line(serve("--data", str(served.data), "--port", "0", "--name-port", "0"))
    assert "in use by another process" in line
    asyncio.run(conversation(served, 1))


def test_two_brokers_never_have_one_store_though_the_lock_file_is_removed_and_the_directory_moved(
    served: Served,
) -> None:
    """Goal: who runs keeps the store; who has lost its name stops before anything is written into another's directory."""
    served.start()
    assert served.process is not None
    (served.data / "lock").unlink()
    line = last_line(serve("--data", str(served.data), "--port", "0", "--name-port", "0"))
    assert f"in use by another process (pid {served.process.pid})" in line
    asyncio.run(conversation(served, 1))
    moved = served.data.with_name("moved")
    served.process.send_signal(signal.SIGSTOP)  # else it notices, and is gone before the other one looks
    served.data.rename(moved)
    line = last_line(serve("--data", str(moved), "--port", "0", "--name-port", "0"))
    assert f"in use by another process (pid {served.process.pid})" in line
    served.process.send_signal(signal.SIGCONT)
    assert served.process.wait(20) == 1
    assert f"{served.data} is not the directory any more" in served.log.read_text().splitlines()[-1]
    assert not served.data.exists()
    moved.rename(served.data)
    served.start()
    asyncio.run(conversation(served, 2))


def test_damaged_store_is_refused_with_file_and_remedy(served: Served) -> None:
    served.start()
    asyncio.run(conversation(served, 1))
    assert served.stop() == 0
    segment = min((served.data / "shard-0" / "log").iterdir())
    with segment.open("r+b") as file:
        file.seek(150)
        file.write(b"\xff\xff\xff\xff")
    (served.data / "shard-0" / "checkpoint").unlink()  # so that the start reads this part of the log
    before = segment.read_bytes()
    line = last_line(serve("--data", str(served.data), "--port", "0", "--name-port", "0"))
    assert "damaged" in line
    assert segment.name in line
    assert segment.read_bytes() == before


def test_data_that_is_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no directory")
    line = last_line(serve("--data", str(path), "--port", "0", "--name-port", "0"))
    assert "not a directory" in line


#: Root may write everywhere, but for this right.
AS_ANYBODY: tuple[str, ...] = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@pytest.mark.skipif(
    bool(AS_ANYBODY) and shutil.which("setpriv") is None, reason="as root this needs setpriv (util-linux)"
)
def test_directory_that_is_not_writable_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    line = last_line(serve("--data", str(tmp_path / "data"), "--port", "0", "--name-port", "0", through=AS_ANYBODY))
    assert "not writable" in line


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


def test_start_on_what_is_no_store_any_more_says_which_file_is_wrong(served: Served) -> None:
    """A part that is a file, a part that is gone, a file that nobody may read: each its own line, and all is left alone."""
    served.start()
    asyncio.run(conversation(served, 1))
    assert served.stop() == 0
    shard = served.data / "shard-0"
    options = ("--data", str(served.data), "--port", "0", "--name-port", "0")
    queues = shard / "queues"
    queues.rename(shard / "kept")
    queues.write_text("")
    line = last_line(serve(*options))
    assert f"{queues}" in line
    assert "a file where a directory must be" in line
    queues.unlink()
    (shard / "kept").rename(queues)
    segment = min((shard / "log").glob("*.seg"))
    segment.chmod(0)
    line = last_line(serve(*options, through=AS_ANYBODY))
    assert f"{segment} cannot be read or written" in line
    segment.chmod(0o644)
    shard.rename(served.data.with_name("away"))
    line = last_line(serve(*options))
    assert f"{shard} is missing beside {served.data / 'store.json'}: there was a log" in line
    assert not shard.exists()
    served.data.with_name("away").rename(shard)
    served.start()
    asyncio.run(conversation(served, 2))


def test_ports_file_that_cannot_be_written_is_said_before_anything_is_touched(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"), "--port", "0", "--name-port", "0", "--segment-bytes", "1048576")
    result = serve(*data, "--ports-file", str(tmp_path / "none" / "p"))
    assert "--ports-file" in last_line(result)
    assert not (tmp_path / "data").exists()
    for directory in (str(tmp_path), ".", "/"):
        assert "is a directory" in last_line(serve(*data, "--ports-file", directory))
    for too_long in (tmp_path / ("p" * 300), tmp_path / ("p" * 300) / "ports"):
        assert "choose another --ports-file" in last_line(serve(*data, "--ports-file", str(too_long)))
    assert not (tmp_path / "data").exists()
    result = serve(*data, "--ports-file", str(tmp_path / ("p" * 255)))  # of which the temporary one is too long
    assert "--ports-file" in last_line(result)
    assert "CRITICAL" not in result.stderr, "no sync is reported to a broker that is closed"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--segment-bytes", "1000", "65536"),
        ("--host", "", "host '' not possible (an address or name"),
        ("--host", "a..b", "host 'a..b' not possible (an address or name"),
        ("--host", "224.0.0.1", "host '224.0.0.1' not possible (an address or name"),
        ("--host", "255.255.255.255", "host '255.255.255.255' not possible (an address or name"),
        ("--advertise-host", "", "advertised host '' not possible (an address or name"),
        ("--advertise-host", "a b", "advertised host 'a b' not possible (an address or name"),
        ("--disk-reserve-bytes", "-1", "disk reserve -1 bytes not possible (0 or more)"),
    ],
)
def test_wrong_settings_are_said_before_anything_is_touched(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    result = serve("--data", str(tmp_path / "data"), "--port", "0", "--name-port", "0", option, value)
    assert words in last_line(result)
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


FREE = ("--port", "0", "--name-port", "0", "--segment-bytes", str(1 << 20))


@pytest.mark.parametrize("foreign", ["pyproject.toml", "src/", "shard-1/", "store.json.bak"])
def test_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path, foreign: str) -> None:
    (tmp_path / ".git").mkdir()
    if foreign.endswith("/"):
        (tmp_path / foreign).mkdir()
    else:
        (tmp_path / foreign).write_text("not ours")
    before = sorted(tmp_path.iterdir())
    line = last_line(serve("--data", str(tmp_path), *FREE))
    assert f"{tmp_path} is not a store and not empty: it contains {foreign.rstrip('/')}" in line
    assert "choose an empty directory" in line
    assert sorted(tmp_path.iterdir()) == before


def test_directory_with_what_a_mount_or_an_earlier_start_left_is_taken(served: Served) -> None:
    for directory in ("lost+found", ".snapshots", "shard-0"):
        (served.data / directory).mkdir(parents=True)
    for file in ("lock", "store.json.new", ".keep"):
        (served.data / file).touch()
    served.start()
    (served.data / "notes.txt").write_text("beside a store anything may lie")
    assert served.stop() == 0
    served.start()
    assert served.stop() == 0


def test_store_that_lost_its_identity_is_still_called_one(tmp_path: Path) -> None:
    (tmp_path / "shard-0" / "log").mkdir(parents=True)
    (tmp_path / "shard-0" / "log" / f"{0:020d}.seg").touch()
    (tmp_path / "broker.log").write_text("beside a store anything may lie")
    assert "contains a log but no store.json" in last_line(serve("--data", str(tmp_path), *FREE))


def test_ports_file_names_the_http_port_only_where_there_is_one(tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    process._write_ports(ports, Ports(1, 2))
    assert json.loads(ports.read_text()) == {"broker": 1, "names": 2}
    process._write_ports(ports, Ports(1, 2, 3))
    assert json.loads(ports.read_text()) == {"broker": 1, "names": 2, "http": 3}


def test_ports_file_may_lie_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("of an earlier run")
    (tmp_path / "store.json").mkdir()  # so that it ends by itself, behind the look at the directory
    result = serve("--data", str(tmp_path), *FREE, "--ports-file", str(tmp_path / "ports.json"))
    assert "not empty" not in last_line(result)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_what_clients_are_told_is_logged_and_loopback_for_everywhere_is_warned_of(tmp_path: Path, host: str) -> None:
    loopback = "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    for options, told, warned in (
        ((), loopback, True),
        (("--advertise-host", "mq.example"), "mq.example", False),
        (("--host", "127.0.0.1"), "127.0.0.1", False),
    ):
        log = tmp_path / f"log-{len(options)}-{told}.txt"
        served = Served(tmp_path / "data", log, "--segment-bytes", str(1 << 20), "--host", host, *options)
        served.start()
        assert served.stop() == 0
        lines = log.read_text()
        assert f"advertising {told}:{served.port} to clients" in lines
        warnings = [line for line in lines.splitlines() if " WARNING " in line and "--advertise-host" in line]
        assert len(warnings) == warned, lines


def test_interrupt_drains_as_sigterm_does(served: Served) -> None:
    served.start()
    assert served.process is not None
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(20) == 0


def test_drain_finishes_what_was_accepted_and_sends_new_clients_away(tmp_path: Path) -> None:
    """Goal: nothing acknowledged is lost, nobody waits, a 5.4 client is told to go. Method: SIGTERM under a stream of sends."""

    async def stream() -> tuple[int, set[int]]:
        client = await RawClient.connect(served.port, version=493)
        parked = asyncio.create_task(client.pull("T", 1_000_000, wait_ms=20_000))
        acknowledged, codes = 0, set()
        began = time.monotonic()
        while not client.closed.is_set() and time.monotonic() - began < 20:
            try:
                answer = await client.send("T", b"x", unique=f"{acknowledged:032d}", group="P")
            except (TimeoutError, ConnectionError):
                break
            codes.add(answer.code)
            acknowledged += answer.code == 0
            if acknowledged == 50:
                served.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        assert (await asyncio.wait_for(parked, 5)).code in (17, 19, 21)
        await client.close()
        return acknowledged, codes

    served = Served(tmp_path / "data", tmp_path / "log.txt", "--segment-bytes", str(1 << 20))
    served.start()
    acknowledged, codes = asyncio.run(stream())
    assert served.process is not None
    assert served.process.wait(20) == 0
    assert codes == {0, 1500}
    served.start()

    async def count() -> int:
        client = await RawClient.connect(served.port)
        answer = await client.ask(30, {"topic": "T", "queueId": "0"})
        await client.close()
        return int(answer.ext["offset"])

    assert asyncio.run(count()) == acknowledged
    served.stop()


async def test_nobody_reads_the_output_and_the_broker_serves_and_stops(tmp_path: Path) -> None:
    """Goal: a full pipe holds nobody up, from the first line on to the end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4_096))
    os.set_blocking(writing, True)
    ports = tmp_path / "ports.json"
    command = [
        sys.executable,
        "-m",
        "halfmq",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--name-port",
        "0",
    ]
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts and goes on
        [*command, "--ports-file", str(ports), "--segment-bytes", str(1 << 20)], stdout=writing, stderr=writing
    )
    try:
        async with asyncio.timeout(20):
            while not ports.exists():
                await asyncio.sleep(0.02)
            client = await RawClient.connect(json.loads(ports.read_text())["broker"])
            for _ in range(20):
                assert (await client.ask(310, {"e": "no number"})).code == 1
            assert (await client.send("T", b"x", unique="1" * 32)).code == 0
            process.send_signal(signal.SIGTERM)
            await client.closed.wait()
            assert await asyncio.to_thread(process.wait) == 0
            await client.close()
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)
