"""A JDK and Maven: are they there, and the published RocketMQ jars with our programs compiled against them.

Everything lands in ``build/compat`` of the checkout, once for each version, and again when a source has changed.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.maven import CACHE, MavenFailed, compiled, copy_jars

VERSIONS = ("4.9.7", "5.5.0")
SOURCES = Path(__file__).parent / "java"

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
    try:
        return compiled(sources, CACHE / f"{version}{suffix}", f"-Drocketmq.version={version}")
    except MavenFailed as error:
        _unavailable(f"Maven could not fetch RocketMQ {version}:\n{error}")


def stock_classpath(version: str) -> str:
    """The published name server and broker of this version; skips when they cannot be had."""
    return _published(version, "stock-broker", "stock")


def tools_classpath(version: str) -> str:
    """The published ``mqadmin`` of this version; skips when it cannot be had."""
    return _published(version, "tools", "tools")


def _published(version: str, profile: str, suffix: str) -> str:
    require_java()
    try:
        jars = copy_jars(
            SOURCES / "pom.xml", CACHE / f"{version}-{suffix}", f"-Drocketmq.version={version}", f"-P{profile}"
        )
    except MavenFailed as error:
        _unavailable(f"Maven could not fetch RocketMQ {version}:\n{error}")
    return f"{jars}/*"
