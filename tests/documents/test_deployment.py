"""The unit and the Containerfile of ``deploy``: what they run works, and what they promise holds."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from halfmq import limits
from halfmq.broker import descriptors
from tests.documents.blocks import blocks_of
from tests.documents.pages import ROOT
from tests.documents.shell import shell
from tests.documents.test_commands import unknown_in
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

_HERE: Final = "tests/documents/test_deployment.py"

_DEPLOY: Final = ROOT / "deploy"
_PROGRAM: Final = "/opt/halfmq/bin/halfmq"
#: Steps that make an account of the image; they need root.
_AS_ROOT: Final = ("useradd",)


def unit(name: str = "halfmq.service") -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(_DEPLOY / name)
    return parser


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("halfmq.service", "ProtectSystem=strict"),
        ("halfmq-backup.service", "ProtectSystem=strict"),
        ("halfmq-backup.timer", "OnCalendar=*:0/5"),
    ],
)
def test_systemd_accepts_every_line_of_the_units(tmp_path: Path, name: str, line: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here: apt-get install systemd")
    text = (_DEPLOY / name).read_text()
    installed = tmp_path / name
    for other in _DEPLOY.glob("*.service"):  # a timer names its service
        (tmp_path / other.name).write_text(other.read_text().replace(_PROGRAM, shutil.which("true") or ""))

    def verified(written: str) -> "subprocess.CompletedProcess[str]":
        # The command is not installed here, and systemd looks whether it is.
        installed.write_text(written.replace(_PROGRAM, shutil.which("true") or ""))
        return subprocess.run(
            ["systemd-analyze", "verify", installed], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    done = verified(text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = verified(text.replace(line, f"Wrong{line}"))
    assert f"Wrong{line.partition('=')[0]}" in wrong.stdout + wrong.stderr, "it would not notice a wrong line"


def test_unit_starts_a_broker_whose_settings_are_possible(tmp_path: Path) -> None:
    service = unit()["Service"]
    command, *words = shlex.split(service["ExecStart"])
    assert command == _PROGRAM
    assert unknown_in(list(words)) == ""
    assert words == ["serve", "--config", "/etc/halfmq/halfmq.toml"]
    shown = json.loads(shell(f"halfmq config show --json --config {_DEPLOY / 'halfmq.toml'}", tmp_path).stdout)
    settings = tomllib.loads((_DEPLOY / "halfmq.toml").read_text())
    assert {name: shown[name]["value"] for name in settings} == settings
    assert Path(settings["data"]).parent == Path("/var/lib") / service["StateDirectory"]
    assert (
        int(service["LimitNOFILE"]) >= limits.CONNECTIONS_MAX + descriptors.RESERVED + 2 * limits.HTTP_CONNECTIONS_MAX
    )
    assert service["KillSignal"] == "SIGTERM"
    assert service["RestartPreventExitStatus"] == "2"


def test_the_timer_and_the_line_of_cron_run_a_backup() -> None:
    install, cron = blocks_of(f"{_HERE}::test_the_timer_and_the_line_of_cron_run_a_backup")
    assert {one.name for one in _DEPLOY.glob("halfmq-backup.*")} <= set(re.split(r"[\s/]", install.text))
    service, timer = unit("halfmq-backup.service")["Service"], unit("halfmq-backup.timer")["Timer"]
    minute, hour, day, month, weekday, account, *line = cron.text.split()
    assert [hour, day, month, weekday, account] == [*"****", "halfmq"]
    assert (minute, timer["OnCalendar"]) == ("*/5", "*:0/5")
    assert line.pop() == ">/dev/null"
    for command, *words in (shlex.split(service["ExecStart"]), line):
        assert command == _PROGRAM
        assert words[0] == "backup"
        assert len(words) == 2
        assert unknown_in(list(words)) == ""
    directory = Path(shlex.split(service["ExecStart"])[-1])
    assert directory.parent == Path("/var/lib") / service["StateDirectory"]
    assert service["Type"] == "oneshot", "systemd starts no second one while it runs"


def steps() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (_DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def of(instruction: str) -> list[str]:
    return [text for name, text in steps() if name == instruction]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a container, on this machine: a new environment of Python first on the path, and the variables of ENV."""
    subprocess.run(
        [sys._base_executable, "-m", "venv", tmp_path / "venv"],  # type: ignore[attr-defined]
        check=True, timeout=PATIENCE_S * 5,
    )  # fmt: skip
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("HOME", "PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "no_proxy", "NO_PROXY"))
    }
    variables = dict(word.split("=", 1) for text in of("ENV") for word in shlex.split(text))
    return {**kept, "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin", **variables}


@pytest.fixture
def served(tmp_path: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment in which the steps of the Containerfile were run, and its command runs."""
    (tmp_path / "source").mkdir()
    for text in of("COPY"):
        *sources, target = text.split()
        if not sources[0].startswith("--from"):
            for name in sources:
                copied = tmp_path / "source" / target / (name if target == "./" else "")
                source = ROOT / name
                shutil.copytree(source, copied) if source.is_dir() else shutil.copy(source, copied)
    for text in of("RUN"):
        if text.startswith(_AS_ROOT):
            continue
        step = text.replace("/wheels", str(tmp_path / "wheels"))
        done = subprocess.run(
            ["sh", "-e", "-c", step], cwd=tmp_path / "source", env=environment, capture_output=True, text=True,
            timeout=1_200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (step, done.stdout, done.stderr)
    (entrypoint,), (command,) = of("ENTRYPOINT"), of("CMD")
    environment |= {"HALFMQ_DATA": str(tmp_path / "store"), "HALFMQ_HTTP_PORT": str(free_port())}
    environment |= {"HALFMQ_PORT": "0", "HALFMQ_NAME_PORT": "0", "HALFMQ_SEGMENT_BYTES": "1048576"}
    environment |= {"HALFMQ_PORTS_FILE": str(tmp_path / "ports.json")}
    program, *words = [*json.loads(entrypoint), *json.loads(command)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([tmp_path / "venv" / "bin" / program, *words], env=environment, stderr=log)
    try:
        wait_until((tmp_path / "ports.json").exists, "the broker serves", unless=process.poll)
        yield environment
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert probed(environment) != 0, "a probe that nothing answers"


def probed(environment: dict[str, str]) -> int:
    (check,) = of("HEALTHCHECK")
    words = json.loads(check[check.index("CMD ") + 4 :])
    python = Path(environment["PATH"].partition(":")[0]) / words[0]
    return subprocess.run(
        [python, *words[1:]], env=environment, capture_output=True, timeout=60, check=False
    ).returncode


@pytest.mark.timeout(1_800)
def test_the_steps_of_the_containerfile_make_a_broker_that_answers_its_health_check(served: dict[str, str]) -> None:
    assert probed(served) == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{served['HALFMQ_HTTP_PORT']}/health", timeout=PATIENCE_S) as answer:
        assert json.load(answer)["serving"]


def test_the_container_is_not_root_and_keeps_its_store_in_the_volume() -> None:
    (user,), (volume,), (variables,) = of("USER"), of("VOLUME"), of("ENV")
    uid = user.partition(":")[0]
    assert any(f"--uid {uid}" in text and f"-o halfmq -g halfmq -m 0750 {volume}" in text for text in of("RUN"))
    assert f"HALFMQ_DATA={volume}/" in variables
    names = [name for name, _ in steps()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    exposed = of("EXPOSE")[0].split()
    assert exposed == ["10911", "9876", dict(word.split("=") for word in shlex.split(variables))["HALFMQ_HTTP_PORT"]]
