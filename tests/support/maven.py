"""Jars from Maven Central, by the poms of this checkout. They land in ``build/compat``, once for each version and source."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).parent.parent.parent / "build" / "compat"
#: A first download is up to 60 MB.
MAVEN_SECONDS = 600


class MavenFailed(Exception):
    """With the end of what Maven printed."""


def run_maven(pom: Path, output: Path, goal: str, *options: str) -> None:
    """Run a goal, with ``output`` as the property of this name. Raises MavenFailed."""
    command = ["mvn", "-B", "-q", "-f", str(pom), f"-Doutput={output}", *options, goal]
    try:
        subprocess.run(command, check=True, timeout=MAVEN_SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise MavenFailed((error.stdout or b"").decode(errors="replace")[-1500:]) from error


def copy_jars(pom: Path, output: Path, *options: str) -> Path:
    """The directory of the runtime jars of the pom; fetched unless they are there. Raises MavenFailed."""
    with once(output, digest([pom])) as needed:
        if needed:
            run_maven(pom, output, "dependency:copy-dependencies", *options)
    return output / "jars"


def compiled(sources: Path, output: Path, *options: str) -> str:
    """The class path of the Java programs in a folder, compiled against the runtime jars of its pom, unless that was done.

    Raises MavenFailed: the jars cannot be had. AssertionError: the programs do not compile.
    """
    pom = sources / "pom.xml"
    with once(output, digest([*sources.rglob("*.java"), pom])) as needed:
        if needed:
            run_maven(pom, output, "dependency:copy-dependencies", *options)
            try:
                run_maven(pom, output, "compiler:compile", *options)
            except MavenFailed as error:
                raise AssertionError(str(error)) from error
    return f"{output / 'classes'}{os.pathsep}{output / 'jars'}/*"


def digest(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@contextmanager
def once(output: Path, made_from: str) -> Iterator[bool]:
    """Whether ``output`` must be made; only one process at a time makes it, and a half-made one does not count."""
    output.mkdir(parents=True, exist_ok=True)
    stamp = output / "made-from"
    with (output / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        needed = not stamp.exists() or stamp.read_text() != made_from
        if needed:
            stamp.unlink(missing_ok=True)
            for part in ("classes", "jars", "target"):
                shutil.rmtree(output / part, ignore_errors=True)
        yield needed
        if needed:
            stamp.write_text(made_from)
