"""``halfmq diagnose``: one archive for a bug report. It has what other commands show, and neither bodies nor secrets."""

import os
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from halfmq import __version__
from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus, exit_text
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Timeout, Url
from halfmq.client.credentials import VARIABLE as SECRET_VARIABLE
from halfmq.errors import UsageError
from halfmq.model.address import parse_url

_COMMANDS: Final = Commands("halfmq diagnose")
app = typer.Typer(add_completion=False, rich_markup_mode=None)
#: What a broker is asked, each by the command that shows it.
ASKED: Final = (
    "tx stats --json", "tx list --json --max 1000", "tx damaged --json", "query list --json", "coordinator list --json",
    "group holds", "topic list --json", "group list --json", "client list --json", "user list --json", "config get --json",
)  # fmt: skip
#: Kept of a log file, from its end, bytes.
LOG_BYTES: Final = 4 << 20
#: Of one command, s; a store takes longer.
_COMMAND_S: Final = 60.0
_VERIFY_S: Final = 3_600.0


@app.command(epilog=exit_text("halfmq diagnose"))
def diagnose(
    archive: Annotated[
        str, typer.Option("--out", metavar="FILE", help="The archive to write. Default: halfmq-diagnosis-TIME.zip.")
    ] = "",
    data: Annotated[
        str,
        typer.Option(metavar="DIR", help="The store, as in `halfmq serve --data`: its files are listed and verified."),
    ] = "",
    log: Annotated[
        str, typer.Option("--log", metavar="FILE", help="Where the broker's log is kept: its end is included.")
    ] = "",
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Write an archive for a bug report: versions, what the broker says of transactions, groups and queries, its log, its files.

    Bodies and secrets are not in it; names of topics, groups, users and hosts are. What cannot be found out is said in the archive.
    """
    with _COMMANDS.reported():
        parse_url(url)
    for name, path in (("--data", data), ("--log", log)):
        if path and not Path(path).exists():
            _COMMANDS.fail(f"{name} {path} does not exist", ExitStatus.USAGE)
    target = Path(archive or f"halfmq-diagnosis-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.zip")
    try:
        number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as opened, zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as made:
            for name, content in _parts(data, log, url, timeout):
                output.note(name)
                made.writestr(name, content)
    except OSError as error:
        _COMMANDS.fail(f"{target}: {error.strerror or error}", ExitStatus.FAILED)
    output.say(str(target))


def _parts(data: str, log: str, url: str, timeout: float) -> Iterator[tuple[str, str | bytes]]:
    """Name and content of each file of the archive."""
    yield "versions.json", _json(_versions())
    yield "environment.json", _json(_environment())
    for command in ASKED:
        words = command.split()
        yield (
            f"{'-'.join(word for word in words if word.isalpha())}.txt",
            _run([*words, "--url", url, "--timeout", str(timeout)], _COMMAND_S),
        )
    if log:
        yield "log.txt", _end_of(Path(log))
    if data:
        yield "files.txt", "\n".join(_files(Path(data)))
        yield "store-verify.txt", _run(["store", "verify", data], _VERIFY_S)


def _versions() -> dict[str, object]:
    packages = {one.metadata["Name"]: one.version for one in distributions()}
    return {
        "halfmq": __version__, "python": sys.version, "platform": platform.platform(), "cores": os.cpu_count(),
        "packages": dict(sorted(packages.items(), key=lambda one: one[0].lower())),
    }  # fmt: skip


def _environment() -> dict[str, str]:
    """The variables of halfmq, the secret's hidden."""
    ours = {name: value for name, value in sorted(os.environ.items()) if name.startswith("HALFMQ_")}
    hidden = {name: "***" for name in ours if name == SECRET_VARIABLE or _has_secret(ours[name])}
    return ours | hidden


def _has_secret(value: str) -> bool:
    """Whether it is a URL that is refused, as one with a password is; that of a database may have one."""
    if "://" not in value:
        return False
    try:
        parse_url(value)
    except UsageError:
        return True
    return False


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value))


def _run(arguments: list[str], most_s: float) -> str:
    """What the command prints, and how it ends."""
    command = [sys.executable, "-m", "halfmq", *arguments]
    try:
        # Our own command, without a shell.
        done = subprocess.run(  # noqa: S603  # nosec B603
            command, capture_output=True, text=True, errors="replace", timeout=most_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"halfmq {' '.join(arguments)}\nno end within {most_s:.0f} s\n"
    return f"halfmq {' '.join(arguments)}\nexit status {done.returncode}\n\n{done.stdout}\n{done.stderr}"


def _end_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - LOG_BYTES))
        return opened.read()


def _files(directory: Path) -> Iterator[str]:
    """Each file with its size, bytes, and the time of its last change."""
    for path in sorted(directory.rglob("*")):
        try:
            found = path.stat()
        except OSError as error:
            yield f"{path.relative_to(directory)}: {error.strerror}"
            continue
        changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
        if path.is_file():
            yield f"{found.st_size:>14}  {changed}  {path.relative_to(directory)}"
