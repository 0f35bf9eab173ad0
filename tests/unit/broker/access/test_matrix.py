"""Who may send what: every command of the table, against everybody who might send it. A new command is in it by its row."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.raw_client import RawClient
from tests.support.users import ADMINISTRATOR, WithUsers, log_in, serving_users, signed
from tests.support.waiting import soon
from tests.support.worst_requests import REQUESTS, json_frame

from halfmq.broker.remoting.commands import COMMANDS
from halfmq.broker.services.access import Asked, Guard, WhenRead, owned
from halfmq.model.users import Permission, Scope
from halfmq.wire.remoting.codes import HMQ_LOGIN, HMQ_REMOVE_USER, HMQ_SET_USER, ResponseCode, code_name
from halfmq.wire.remoting.header import decode
from halfmq.wire.remoting.users import CHANGE, UserChange

NO = ResponseCode.NO_PERMISSION
#: Everybody who logs in may send them.
OF_EVERYBODY = {code for code, command in COMMANDS.items() if not command.access.needs}
#: Answered by a change of the users, or of the connection: they have tests of their own.
LOGIN = {HMQ_LOGIN}
CODES = sorted(set(COMMANDS) - LOGIN)
BODIES = {HMQ_SET_USER: CHANGE.encode(UserChange("nobody", False))}
FIELDS = {HMQ_REMOVE_USER: {"user": "nobody", "reason": "x"}}


def request(code: int) -> tuple[dict[str, str], bytes]:
    ext, body = REQUESTS[code]
    return FIELDS.get(code, ext), BODIES.get(code, body)


def needed(users: WithUsers, code: int) -> list[Asked]:
    """The rights that the request of this code needs, as its row says."""
    ext, body = request(code)
    gateway = users.running.broker._gateway
    command = gateway._commands[code]
    typed = decode(json_frame(code, ext, body)[4:], gateway._fields_of)
    fields = typed.ext
    if command.rules is not None and isinstance(fields, dict):
        from halfmq.broker.remoting.administration import accepted

        fields = accepted(command.rules, command.fields, typed)
    guard = Guard(code_name(code), command.access, users.running.state)
    asked = [owned(one.right, one.name) if one.scope is Scope.TOPIC else one for one in guard.asked(fields, body)]
    return [*asked, *(Asked(n.right, Scope.TOPIC, "T") for n in command.access.needs if isinstance(n, WhenRead))]


def permissions(asked: list[Asked]) -> list[str]:
    return [str(Permission(*one)) for one in dict.fromkeys(asked)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def users(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WithUsers]:
    directory = tmp_path_factory.mktemp("matrix")
    async with serving_users(directory) as users:
        await users.add("none")
        yield users


shares_a_broker = pytest.mark.asyncio(loop_scope="module")


async def ask(client: RawClient, code: int, ext: dict[str, str], body: bytes) -> int:
    """The code of the response."""
    return (await client.ask(code, ext, body)).code


@shares_a_broker
@pytest.mark.parametrize("code", CODES, ids=code_name)
async def test_nobody_is_served_without_proof(users: WithUsers, code: int) -> None:
    ext, body = request(code)
    forged = (("none", "wrong-secret"), ("unknown", "wrong-secret"), (ADMINISTRATOR, users.secrets["none"]))
    for fields in (ext, *(signed(ext, body, name, secret) for name, secret in forged)):
        client = await users.client()  # a stranger who was refused must wait
        assert await ask(client, code, fields, body) == NO
        await client.close()


@shares_a_broker
@pytest.mark.parametrize("code", [code for code in CODES if code not in OF_EVERYBODY], ids=code_name)
async def test_each_right_that_a_row_names_is_needed(users: WithUsers, code: int) -> None:
    """With all of them it is served, whatever the answer then is; without any one of them it is not."""
    ext, body = request(code)
    asked = needed(users, code)
    assert asked, "a row that needs something asks for nothing"
    when_read = [one for one in COMMANDS[code].access.needs if isinstance(one, WhenRead)]
    name = f"user-{code}"
    await users.add(name, permissions(asked))
    client = await users.client(name)
    assert await ask(client, code, ext, body) != NO
    assert await ask(client, code, signed(ext, body, name, users.secrets[name]), body) != NO
    names = list(dict.fromkeys(asked))
    for missing in names[: len(names) - len(when_read)]:
        # The right to see something is in every other right on it.
        granted = permissions([one for one in names if one != missing and one[1:] != missing[1:]])
        less = f"less-{code}-{names.index(missing)}"
        await users.add(less, granted)
        client = await users.client(less)
        assert await ask(client, code, ext, body) == NO, missing
        await users.remove(less)
    await users.remove(name)


@shares_a_broker
@pytest.mark.parametrize("code", CODES, ids=code_name)
async def test_a_user_without_rights_gets_only_what_is_for_everybody(users: WithUsers, code: int) -> None:
    ext, body = request(code)
    client = await users.client("none")
    is_refused = await ask(client, code, ext, body) == NO
    assert is_refused == (code not in OF_EVERYBODY and not _is_only_when_read(code))
    signing = await users.client()
    assert (await ask(signing, code, signed(ext, body, "none", users.secrets["none"]), body) == NO) == is_refused
    await client.close()
    await signing.close()


def _is_only_when_read(code: int) -> bool:
    return all(isinstance(need, WhenRead) for need in COMMANDS[code].access.needs)


def test_what_everybody_may_do_is_this() -> None:
    assert {code_name(code) for code in OF_EVERYBODY} == {"HMQ_LOGIN", "GET_BROKER_CLUSTER_INFO"}


@shares_a_broker
async def test_a_proof_is_good_once_and_on_its_own_connection(users: WithUsers) -> None:
    secret = users.secrets["none"]
    seen: list[dict[str, str]] = []
    client = await users.client()
    asked = client.ask

    async def watched(code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> Any:
        seen.append(dict(ext or {}))
        return await asked(code, ext, body, **more)

    client.ask = watched  # type: ignore[method-assign]
    assert (await log_in(client, "none", secret)).code == ResponseCode.SUCCESS
    replayed = seen[-1]
    assert (await client.ask(HMQ_LOGIN, replayed)).code == NO
    await soon(client.closed.wait())
    client = await users.client()
    for target in (client, await users.client()):
        await target.ask(HMQ_LOGIN, {"user": "none"})
        answer = await target.ask(HMQ_LOGIN, replayed)
        assert answer.code == NO
        await soon(target.closed.wait())
    other = await users.client()
    await other.ask(HMQ_LOGIN, {"user": ADMINISTRATOR})
    assert (await other.ask(HMQ_LOGIN, {**replayed, "user": ADMINISTRATOR})).code == NO


@shares_a_broker
async def test_a_signature_proves_nothing_of_another_request(users: WithUsers) -> None:
    """RocketMQ's signature is of fields and body, without the code: moved to other fields or another body it is refused."""
    client = await users.client()
    ext, body = request(310)
    good = signed(ext, body, ADMINISTRATOR, users.secrets[ADMINISTRATOR])
    assert await ask(client, 310, {**good, "b": "other"}, body) == NO
    assert await ask(client, 310, good, b"another body") == NO
    assert await ask(client, 310, good, body) == ResponseCode.SUCCESS
    # Within the same connection it is one user's.
    none = signed(ext, body, "none", users.secrets["none"])
    assert await ask(client, 310, none, body) == NO
