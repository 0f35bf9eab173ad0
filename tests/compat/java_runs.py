"""Starts the Java programs and reads their results."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.compat.toolchain import client_classpath
from tests.support.jvm import QUICK

#: Header serialisations of the Java client (system property ``rocketmq.serialize.type``).
JSON = "JSON"
BINARY = "ROCKETMQ"
#: Everything but the transactions; they run side by side in one JVM.
FEATURES = (
    "Sends",
    "Pull",
    "Tags",
    "Delay",
    "Lookup",
    "Restart",
    "Retry",
    "Orderly",
    "Trace",
    "Request",
    "Assigned",
    "Admin",
)
SECONDS = 150
#: Rebalance and locks once a second instead of every 20 s. Not for a run that shall show that a push (40) arrives.
QUICK_REBALANCE = (
    "-Drocketmq.client.rebalance.waitInterval=2000",
    "-Drocketmq.client.rebalance.lockInterval=1000",
    "-Drocketmq.client.unlockDelayTimeMills=1000",
)
#: Sends and most questions go to the broker's port minus 2.
VIP_CHANNEL = ("-Dcom.rocketmq.sendMessageWithVIPChannel=true",)


class ProgramFailed(AssertionError):
    """A Java program threw, or did not come to its end."""


def run(
    version: str,
    names: str,
    home: Path,
    *programs: str,
    prefix: str = "c",
    header: str = JSON,
    options: tuple[str, ...] = (),
) -> dict[str, dict[str, Any]]:
    """The results by program; ``ProgramFailed`` with the Java stack trace when one of them has none."""
    home.mkdir(parents=True, exist_ok=True)
    command = [
        "java", "-Xms128m", "-Xmx384m", *QUICK, f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}/logs",
        f"-Drocketmq.serialize.type={header}", f"-Dseconds={SECONDS}", *options,
        "-cp", client_classpath(version), "halfmq.compat.Run", names, prefix, *programs,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS + 30, cwd=home)
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(
            f"{programs} did not end in {SECONDS + 30} s:\n{(error.stderr or b'')[-3000:]!r}"
        ) from error
    results: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        if not line.startswith(b'{"program"'):
            continue  # some versions greet on the standard output
        read = json.loads(line)
        if "error" in read:
            raise ProgramFailed(f"{read['program']} with client {version}, {header}:\n{read['error']}")
        results[read["program"]] = read["result"]
    missing = set(programs) - set(results)
    if missing:
        raise ProgramFailed(f"{sorted(missing)} gave no result:\n{done.stderr.decode(errors='replace')[-3000:]}")
    return results
