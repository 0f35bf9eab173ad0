"""The broker as a process: loop, signals, log lines, exit code. ``halfmq serve`` parses the flags and calls it.

Exit codes: 0 after a drain; 1 if it could not start or had to stop, 2 if an option has an impossible value, with one line that states the
reason and a remedy.
"""

import asyncio
import errno
import gc
import json
import logging
import os
import platform
import signal
import sys
from dataclasses import replace
from pathlib import Path

from halfmq import limits
from halfmq.broker.broker import Broker, Ports
from halfmq.broker.config import AUDIT_NAME, BrokerConfig, zone_of
from halfmq.broker.descriptors import connections_that_fit
from halfmq.broker.log_output import LogFormat, LogOutput
from halfmq.errors import EnvironmentFailed, HalfmqError, PortTaken, StoreFull, UsageError
from halfmq.model.address import Address
from halfmq.runtime.allocator import keep_freed_memory
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.disk import Permissions, RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.runtime.interpreter import build
from halfmq.store.identity import LOCK_NAME
from halfmq.store.identity import NAME as STORE_JSON
from halfmq.store.store import SHARD

log = logging.getLogger("halfmq.serve")

#: Number of allocations before a young collection. Nothing in the hot path creates cycles, so collections find nothing.
_GC_THRESHOLDS = (100_000, 50, 100)
#: The kernel's value for "no group" is above.
_GROUP_IDS_MAX = (1 << 32) - 1
#: Allowed in a directory without a store: content of a fresh file system, and remains of a start that failed.
_NOT_FOREIGN = frozenset({"lost+found", LOCK_NAME, f"{STORE_JSON}.new", AUDIT_NAME})


def run(
    config: BrokerConfig,
    *,
    ports_file: Path | None = None,
    verbose: bool = False,
    log_format: LogFormat = LogFormat.TEXT,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code."""
    fd = sys.__stderr__.fileno() if sys.__stderr__ is not None else os.open(os.devnull, os.O_WRONLY)
    output = LogOutput(fd, log_format=log_format)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[output])
    keep_freed_memory(limits.FREED_BYTES_KEPT)
    status = 2
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            config = config.checked()
            permissions = Permissions(None if config.store_group is None else _group_id(config.store_group))
            status = 1
            if ports_file is not None:
                _check_ports_file(ports_file)
            _check_directory(config.data, ports_file)
            beside = 2 * limits.HTTP_CONNECTIONS_MAX if config.http_port is not None else 0
            config = replace(config, connections_max=connections_that_fit(config.connections_max, beside=beside))
            return runner.run(_serve(config, permissions, ports_file))
    except (HalfmqError, OSError, MemoryError) as error:
        log.debug("stopped by", exc_info=error)
        output.say_last(f"halfmq: {_explained(error, config)}")
        return status
    finally:
        output.end()


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(config: BrokerConfig, permissions: Permissions, ports_file: Path | None) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config, RealDisk(permissions), SystemClock(), SystemEntropy(), loop)
    try:
        gc.disable()  # recovery creates objects that stay, and the collector would traverse them again and again
        ports = await broker.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()
        _log_advertised_address(config, ports.broker)
        _warn_if_insecure(config)
        _warn_if_not_optimised()
        if ports_file is not None:
            _write_ports(ports_file, ports)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
        if broker.failed.done():
            raise broker.failed.result()
        log.info("draining")
        await broker.drain()
    finally:
        broker.close()
    log.info("stopped")
    return 0


def _log_advertised_address(config: BrokerConfig, port: int) -> None:
    told = str(Address(config.advertised(), port))
    log.info("advertising %s to clients", told)
    zone = zone_of(config.advertised())
    if zone is not None:
        log.warning(
            "clients on other machines reach %s only if their interface to this one is called %s, too", told, zone
        )
    if config.advertises_loopback_for_everywhere():
        log.warning(
            "clients on other machines cannot reach %s; give --advertise-host, by which they reach this one", told
        )


def _warn_if_insecure(config: BrokerConfig) -> None:
    """What ``--insecure`` means, if it was necessary."""
    missing = config.unprotected()
    if missing:
        log.warning(
            "--insecure: other machines can connect without %s, so that strangers could read, send and settle everything; keep them out"
            " by a firewall or a private network",
            " and without ".join(missing),
        )


def _warn_if_not_optimised() -> None:
    lacks = build().lacks
    if lacks:
        log.warning(
            "this Python %s is not optimised (%s): transactions take about a fifth more CPU; see docs/deployment.md",
            platform.python_version(), lacks,
        )  # fmt: skip


def _group_id(group: str) -> int:
    """The number of the group with this name, or with this number.

    Raises:
        UsageError: there is no such group.
        EnvironmentFailed: the broker's account cannot give files to it.
    """
    import grp

    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        if not (group.isascii() and group.isdigit() and int(group) < _GROUP_IDS_MAX):
            raise UsageError(
                f"there is no group {group!r} on this machine",
                hint="--store-group takes the name or number of a group; create it with groupadd",
            ) from None
        number = int(group)
    if os.geteuid() != 0 and number not in (os.getegid(), *os.getgroups()):
        raise EnvironmentFailed(
            f"the broker's account, uid {os.geteuid()}, is not a member of group {group}, so that it cannot give files to it",
            hint="add it to the group (usermod -aG GROUP ACCOUNT), and start the broker in a new session",
        )
    return number


def _check_directory(data: Path, ports_file: Path | None) -> None:
    """Refuse to create a store among other files, from which its own would be hard to tell apart and to remove.

    The start itself handles a directory that lost its store.json.

    Raises:
        UsageError: there is no store, but a foreign file.
        OSError: the directory cannot be read.
    """
    if not data.exists() or (data / STORE_JSON).exists() or (data / SHARD).exists():
        return
    ports = ports_file.name if ports_file is not None and ports_file.parent.resolve() == data.resolve() else None
    for name in sorted(os.listdir(data)):
        if name not in _NOT_FOREIGN and name != ports and not name.startswith("."):
            raise UsageError(
                f"{data} is not a store and not empty: it contains {name}",
                hint="choose an empty directory, or one that does not exist",
            )


def _check_ports_file(path: Path) -> None:
    """Report an unusable path before anything is created."""
    try:
        if not path.parent.is_dir():
            raise _no_ports_file(path, f"{path.parent} is no directory")
        if path.is_dir():
            raise _no_ports_file(path, "it is a directory")
    except OSError as error:
        raise _no_ports_file(path, error.strerror or str(error)) from error


def _write_ports(path: Path, ports: Ports) -> None:
    """Write it atomically: a waiting process reads the file as soon as it exists."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        written = {name: port for name, port in ports._asdict().items() if port is not None}
        temporary.write_text(json.dumps(written))
        temporary.replace(path)
    except OSError as error:
        raise _no_ports_file(path, error.strerror or str(error)) from error


def _no_ports_file(path: Path, why: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"the ports cannot be written to {path}: {why}", hint="choose another --ports-file")


def _explained(error: HalfmqError | OSError | MemoryError, config: BrokerConfig) -> HalfmqError:
    """``error`` as a HalfmqError, with advice."""
    if isinstance(error, HalfmqError):
        return error
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return EnvironmentFailed(
            f"the machine has no memory left for the broker of {config.data}: {error or 'out of memory'}",
            hint="give it more memory: check its limits (ulimit -v, cgroups) and other processes; the store is not "
            "damaged",
        )
    inside = _inside(error.filename, config.data)
    if error.errno == errno.ENOSPC:
        return StoreFull(f"the disk of {config.data} is full", hint="free space, then start again; nothing is lost")
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            str(error), hint="stop the other process, or choose --port, --name-port and --http-port (0: any free one)"
        )
    if inside is not None and error.errno in (errno.EACCES, errno.EPERM):
        return EnvironmentFailed(
            f"{inside} cannot be read or written: {error.strerror}",
            hint=f"give it and all of {config.data} to the user of the broker, uid {os.geteuid()}",
        )
    if inside is not None and error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return EnvironmentFailed(
            f"{inside} is {'a directory where a file' if error.errno == errno.EISDIR else 'a file where a directory'} "
            f"must be, or lies below one",
            hint="find out who created it, and move it away; a start rebuilds everything but store.json and log/",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EnvironmentFailed(
            f"{config.data} is not writable: {error}", hint="choose another --data, or fix its owner"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return EnvironmentFailed(f"{config.data} is not a directory", hint="choose another --data")
    if error.errno == errno.ENOENT:
        return EnvironmentFailed(
            f"{config.data} cannot be created or opened: {error}",
            hint="choose another --data, where directories can be created",
        )
    if error.errno == errno.EIO:
        return EnvironmentFailed(
            f"the disk of {config.data} fails: {error}",
            hint="check the disk; anything but store.json and log/ may be moved away, a start rebuilds it",
        )
    return EnvironmentFailed(f"{config.data}: {error}", hint="check --data and the limits of this machine")


def _inside(filename: object, data: Path) -> Path | None:
    """The file that an error names, if it is in the store; else None."""
    if not isinstance(filename, str | os.PathLike):
        return None
    path = Path(filename)
    return path if data in path.parents and path.name != LOCK_NAME else None
