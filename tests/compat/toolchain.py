"""A JDK and Maven: are they there, and the published RocketMQ jars with our programs compiled against them.

Everything lands in ``build/compat`` of the checkout, once for each version, and again when a source has changed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

VERSIONS = ("4.9.7", "5.4.0")
CHECKOUT = Path(__file__).parent.parent.parent
SOURCES = Path(__file__).parent / "java"
CACHE = CHECKOUT / "build" / "compat"
#: The first download of the 5.x jars is about 60 MB.
MAVEN_SECONDS = 600

HOW_TO_GET = (
    "the Java clients need a JDK (>= 8) and Maven (>= 3.6) on the PATH: "
    "`apt install default-jdk-headless maven`, `dnf install java-latest-openjdk-devel maven` or `brew install openjdk maven`"
)


def _unavailable(why: str) -> NoReturn:
    """Skip on a user's machine, fail where these tests are required."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{why} (required when CI=true)", pytrace=False)
    pytest.skip(why)


def require_java() -> None:
    missing = [program for program in ("java", "javac", "mvn") if shutil.which(program) is None]
    if missing:
        _unavailable(f"{', '.join(missing)} not found: {HOW_TO_GET}")


def client_classpath(version: str, sources: Path = SOURCES, suffix: str = "") -> str:
    """Our programs and the published client of this version; skips when they cannot be had.

    ``sources``: where they and their ``pom.xml`` are; ``suffix`` tells the output of one such place from another's.
    """
    require_java()
    output = CACHE / f"{version}{suffix}"
    with _once(output, _digest(sources.rglob("*.java"), sources / "pom.xml")) as needed:
        if needed:
            _fetch_jars(version, output, sources)
            _maven(version, output, sources, "compiler:compile")
    return f"{output / 'classes'}{os.pathsep}{output / 'jars'}/*"


def stock_classpath(version: str) -> str:
    """The published name server and broker of this version; skips when they cannot be had."""
    require_java()
    output = CACHE / f"{version}-stock"
    with _once(output, _digest([], SOURCES / "pom.xml")) as needed:
        if needed:
            _fetch_jars(version, output, SOURCES, "-Pstock-broker")
    return f"{output / 'jars'}/*"


def _fetch_jars(version: str, output: Path, sources: Path, *options: str) -> None:
    try:
        _maven(version, output, sources, "dependency:copy-dependencies", *options)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stdout or b""
        _unavailable(f"Maven could not fetch RocketMQ {version}:\n{said.decode(errors='replace')[-1500:]}")


def _maven(version: str, output: Path, sources: Path, goal: str, *options: str) -> None:
    command = ["mvn", "-B", "-q", "-f", str(sources / "pom.xml"), f"-Drocketmq.version={version}", f"-Doutput={output}"]
    subprocess.run(
        [*command, *options, goal], check=True, timeout=MAVEN_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _digest(sources: object, *more: Path) -> str:
    total = hashlib.sha256()
    for path in sorted([*sources, *more]):  # type: ignore[misc]
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@contextmanager
def _once(output: Path, digest: str) -> Iterator[bool]:
    """Whether ``output`` must be made; only one process at a time makes it, and a half-made one does not count."""
    output.mkdir(parents=True, exist_ok=True)
    stamp = output / "made-from"
    with (output / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        needed = not stamp.exists() or stamp.read_text() != digest
        if needed:
            stamp.unlink(missing_ok=True)
            for part in ("classes", "jars", "target"):
                shutil.rmtree(output / part, ignore_errors=True)
        yield needed
        if needed:
            stamp.write_text(digest)
