"""``halfmq user``: who may use this broker, and for what. Needs a running broker with users (``serve --secrets-key-file``).

A secret is printed once, on standard output, or written to a file of the caller's. It is in no argument, log line or error.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec
import typer

from halfmq import limits
from halfmq.cli import output
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, URL, Commands, Json, Reason, Timeout, Url, Yes
from halfmq.model.text_fields import PageFields, write_fields
from halfmq.model.users import ALL_PERMISSIONS, UserLimits, is_user_name, parse_permissions
from halfmq.wire.remoting import users as wire
from halfmq.wire.remoting.codes import HMQ_REMOVE_USER, HMQ_SET_USER, HMQ_USERS
from halfmq.wire.remoting.users import UserChange, UserInfo

_COMMANDS: Final = Commands("halfmq user")
app = _COMMANDS.group("Make users, give them permissions and secrets, list and remove them. Needs an administrator.")
_ask, _fail = _COMMANDS.ask, _COMMANDS.fail
#: The longest time for which the secret before a new one stays valid: a year, ms.
_KEEP_OLD_MS_MAX: Final = 31_622_400_000

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PERMISSION",
        help="What the user may do: RIGHT:topic:PATTERN, RIGHT:group:PATTERN, RIGHT:broker or RIGHT:*. May be repeated.",
    ),
]
Administrator = Annotated[bool, typer.Option("--administrator", help="Everything, also making users.")]
#: None: not given.
Limit = int | None
ConnectionsMax = Annotated[
    Limit, typer.Option("--connections", metavar="N", min=0, help="Connections at a time; 0: no limit of the user's.")
]
Rate = Annotated[Limit, typer.Option("--rate", metavar="N", min=0, help="Requests per second; 0: no limit.")]
Undecided = Annotated[
    Limit, typer.Option("--undecided", metavar="N", min=0, help="Undecided transactions at a time; 0: no limit.")
]
Names = Annotated[
    Limit,
    typer.Option(
        "--names",
        metavar="N",
        min=0,
        help="Topics and groups that the user's requests create by naming them, since the broker's start; 0: no limit.",
    ),
]
SecretFile = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="Write the new secret to this file, which must not exist, instead of standard output."
    ),
]
SecretFrom = Annotated[
    str,
    typer.Option(metavar="FILE", help="Take the secret from this file, instead of having the broker make one."),
]
PasswordFile = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="A file with a password for the HTTP port. Without one it does not take the user."
    ),
]
WhySet = Annotated[str, typer.Option("--reason", help="The reason; recorded in the audit log.")]


@app.command()
def add(
    name: Name,
    allow: Allow = None,
    administrator: Administrator = False,
    connections: ConnectionsMax = None,
    rate: Rate = None,
    undecided: Undecided = None,
    names: Names = None,
    secret_file: SecretFile = "",
    secret_from: SecretFrom = "",
    password_file: PasswordFile = "",
    reason: WhySet = "",
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Make a user. Prints its secret, which nobody is told again.

    A user without permissions may do nothing. The first user must be an administrator.
    """
    change = UserChange(
        _name(name),
        is_new=True,
        reason=reason,
        permissions=_permissions(allow or [], administrator),
        limits=_limits(UserLimits(), connections, rate, undecided, names),
        secret=_read(secret_from, "--secret-from") if secret_from else "",
        password=_read(password_file, "--password-file") if password_file else None,
    )
    _give_secret(url, change, secret_file, secret_from, timeout, f"user {name} is made")


@app.command("set")
def set_(
    name: Name,
    allow: Allow = None,
    administrator: Administrator = False,
    connections: ConnectionsMax = None,
    rate: Rate = None,
    undecided: Undecided = None,
    names: Names = None,
    password_file: PasswordFile = "",
    no_password: Annotated[bool, typer.Option("--no-password", help="Take the password away.")] = False,
    reason: WhySet = "",
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Change a user. Permissions that are given replace all that it has; limits that are not given stay, and so does the password."""
    permissions = _permissions(allow or [], administrator) if allow or administrator else None
    has_limits = any(limit is not None for limit in (connections, rate, undecided, names))
    if password_file and no_password:
        _fail("--password-file and --no-password: only one of them", ExitStatus.USAGE)
    password = _read(password_file, "--password-file") if password_file else "" if no_password else None
    if permissions is None and not has_limits and password is None:
        _fail(f"nothing to change of user {name}: --allow, a limit or --password-file", ExitStatus.USAGE)
    known = _known(url, _name(name), timeout)
    new_limits = _limits(known.limits, connections, rate, undecided, names) if has_limits else None
    _send(url, UserChange(name, False, reason, permissions, new_limits, password=password), timeout)
    output.say(f"user {name} is changed")


@app.command()
def rotate(
    name: Name,
    keep_old: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="How long the secret before it stays valid, such as 1h, for clients that do not have the new one yet.",
        ),
    ] = "0s",
    secret_file: SecretFile = "",
    secret_from: SecretFrom = "",
    reason: WhySet = "",
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Give a user a new secret. Prints it; nobody is told it again."""
    keep_ms = _COMMANDS.span_ms(keep_old)
    if keep_ms > _KEEP_OLD_MS_MAX:
        _fail(f"--keep-old {keep_old}: at most 366d", ExitStatus.USAGE)
    secret = _read(secret_from, "--secret-from") if secret_from else ""
    change = UserChange(_name(name), False, reason, secret=secret, old_secret_s=keep_ms // 1_000)
    _known(url, name, timeout)
    _give_secret(url, change, secret_file, secret_from, timeout, f"user {name} has a new secret")


@app.command("list")
def list_(url: Url = URL, timeout: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """List users: permissions, limits, connections at the moment. No secret is shown."""
    rows = sorted(_all(url, timeout), key=lambda row: row.user)
    if as_json:
        users = [{**msgspec.structs.asdict(row), "limits": msgspec.structs.asdict(row.limits)} for row in rows]
        output.document(msgspec.json.encode({"total": len(rows), "users": users}))
        return
    if rows:
        head = ("USER", "CONNECTIONS", "RATE", "UNDECIDED", "NAMES", "SECRETS", "PASSWORD")
        output.table(head, map(_row, rows), (_shown(row.permissions) for row in rows))
    output.note(f"{len(rows)} users")


@app.command()
def remove(
    name: Name,
    reason: Reason,
    yes: Yes = False,
    url: Url = URL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Remove a user. Refused if nobody else is an administrator."""
    known = _known(url, _name(name), timeout)
    if not yes:
        output.note(f"user {name} has {known.connections} connections, and may: {_shown(known.permissions)}")
        _COMMANDS.require_typed(name, "Type the name of the user to remove it")
    _ask(url, HMQ_REMOVE_USER, write_fields(wire.RemoveUserFields(name, reason)), timeout, changes=True)
    output.say(f"user {name} is removed")


# --- options ----------------------------------------------------------------------------------------------------------


def _name(name: str) -> str:
    if not is_user_name(name):
        _fail(
            f"{name[:100]!r} is no name of a user: 1 to {limits.USER_NAME_CHARS_MAX} letters, digits and ._-",
            ExitStatus.USAGE,
        )
    return name


def _permissions(allow: Sequence[str], administrator: bool) -> list[str]:
    with _COMMANDS.reported():
        given = [str(one) for text in allow for one in parse_permissions(text)]
    found = list(dict.fromkeys([*(ALL_PERMISSIONS if administrator else ()), *given]))
    if len(found) > limits.PERMISSIONS_MAX:
        _fail(f"{len(found)} permissions: at most {limits.PERMISSIONS_MAX}", ExitStatus.USAGE)
    return found


def _limits(known: UserLimits, connections: Limit, rate: Limit, undecided: Limit, names: Limit) -> UserLimits:
    """``known``, with those that are given."""
    given = zip(UserLimits.__struct_fields__, (connections, rate, undecided, names), strict=True)
    return msgspec.structs.replace(known, **{field: limit for field, limit in given if limit is not None})


def _read(file: str, option: str) -> str:
    """The secret or password in a file. The text of an error has nothing of it."""
    try:
        with open(file, "rb") as opened:
            text = opened.read(4 * limits.SECRET_CHARS_MAX + 1).decode().strip()
    except OSError as error:
        _fail(f"{option} {file} cannot be read: {error.strerror or error}", ExitStatus.FAILED)
    except UnicodeDecodeError:
        _fail(f"{option} {file} is not UTF-8", ExitStatus.USAGE)
    if not limits.SECRET_CHARS_MIN <= len(text) <= limits.SECRET_CHARS_MAX:
        _fail(
            f"{option} {file} must contain {limits.SECRET_CHARS_MIN} to {limits.SECRET_CHARS_MAX} characters and nothing else",
            ExitStatus.USAGE,
        )
    return text


# --- requests ---------------------------------------------------------------------------------------------------------


def _give_secret(url: str, change: UserChange, secret_file: str, secret_from: str, timeout: float, done: str) -> None:
    """Send a change with a new secret, and hand over the secret if the broker made it."""
    if secret_file and secret_from:
        _fail("--secret-file is for a secret that the broker makes, --secret-from for one of yours", ExitStatus.USAGE)
    if not secret_file:
        secret = _send(url, change, timeout)
        if secret:
            output.say(secret)
        output.note(done)
        return
    with _new_file(secret_file) as write:
        secret = _send(url, change, timeout)
        write(secret)
    output.note(f"{done}; it is in {secret_file}")


@contextmanager
def _new_file(path: str) -> Iterator[Callable[[str], None]]:
    """Make a file for a secret that does not exist yet, and can be read by nobody else; the block gets a function that writes the secret.

    It is made before there is a secret, and as large, so that none is lost for want of a directory, a right or space. If the block fails,
    the file is removed.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        _fail(f"--secret-file {path} cannot be made: {error.strerror or error}; nothing was changed", ExitStatus.FAILED)

    def write(secret: str) -> None:
        try:
            text = f"{secret}\n".encode()
            os.pwrite(number, text, 0)
            os.ftruncate(number, len(text))
            os.fsync(number)
        except OSError as error:
            # Standard output is better than a user whom nobody can log in as.
            output.note(f"--secret-file {path} cannot be written: {error.strerror or error}; the secret is printed")
            output.say(secret)
            raise typer.Exit(ExitStatus.FAILED) from error

    try:
        try:
            os.pwrite(number, b"\n" * (4 * limits.SECRET_CHARS_MAX), 0)
            os.fsync(number)
        except OSError as error:
            _fail(
                f"--secret-file {path} cannot be written: {error.strerror or error}; nothing was changed",
                ExitStatus.FAILED,
            )
        yield write
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(number)


def _send(url: str, change: UserChange, timeout: float) -> str:
    """Make or change a user. The secret that the broker made, or an empty text."""
    answer = _ask(url, HMQ_SET_USER, {}, timeout, wire.CHANGE.encode(change), changes=True)
    with _COMMANDS.reported():
        return wire.NEW_SECRET.decode(answer.body).secret


def _all(url: str, timeout: float) -> list[UserInfo]:
    pages = _COMMANDS.pages(url, HMQ_USERS, lambda start: write_fields(PageFields(start=start)), timeout)
    return list({row.user: row for page in pages for row in wire.USERS.decode(page.body)}.values())


def _known(url: str, name: str, timeout: float) -> UserInfo:
    found = [row for row in _all(url, timeout) if row.user == name]
    if not found:
        _fail(f"the broker knows no user {name}", ExitStatus.NOT_FOUND)
    return found[0]


# --- texts ------------------------------------------------------------------------------------------------------------


def _row(row: UserInfo) -> tuple[str, ...]:
    most = row.limits
    connections = f"{row.connections} of {most.connections}" if most.connections else str(row.connections)
    others = [str(limit) if limit else "-" for limit in (most.requests_per_s, most.undecided, most.names)]
    return row.user, connections, *others, str(row.secrets), "yes" if row.has_password else "-"


def _shown(permissions: Sequence[str]) -> str:
    """As short as ``--allow`` takes them."""
    left = set(permissions)
    if left.issuperset(ALL_PERMISSIONS):
        return "everything (administrator)"
    found = []
    for text in permissions:
        right = text.partition(":")[0]
        whole = {one for one in ALL_PERMISSIONS if one.startswith(f"{right}:")}
        found.append(f"{right}:*" if text in whole and left.issuperset(whole) else text)
    return ", ".join(dict.fromkeys(found)) or "nothing"
