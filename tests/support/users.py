"""A broker with users, and connections that prove who they are, for tests."""

import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from halfmq.broker.first_token import NAME
from halfmq.broker.services.users import FIRST
from halfmq.wire.remoting.acl import EXT_SIGNATURE, EXT_USER, signature
from halfmq.wire.remoting.codes import HMQ_LOGIN, HMQ_REMOVE_USER, HMQ_SET_USER, ResponseCode
from halfmq.wire.remoting.users import CHANGE, NEW_SECRET, NONCE_BYTES, UserChange, client_proof, is_proof, server_proof
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient

ADMINISTRATOR = "root"


async def log_in(client: RawClient, user: str, secret: str) -> Answer:
    """Both requests of a login; the response to the second one, whose proof is checked."""
    asked = await client.ask(HMQ_LOGIN, {"user": user})
    assert asked.code == ResponseCode.SUCCESS, asked
    nonce, mine = asked.ext["nonce"], secrets.token_hex(NONCE_BYTES)
    proof = client_proof(user, secret.encode(), nonce, mine)
    answer = await client.ask(HMQ_LOGIN, {"user": user, "nonce": mine, "proof": proof})
    if answer.code == ResponseCode.SUCCESS:
        assert is_proof(answer.ext["proof"], server_proof(user, secret.encode(), nonce, mine))
    return answer


def signed(ext: dict[str, str], body: bytes, user: str, secret: str) -> dict[str, str]:
    """The fields with user and signature, as RocketMQ's clients send them."""
    fields = {**ext, EXT_USER: user}
    return {**fields, EXT_SIGNATURE: signature(fields, body, secret.encode())}


class WithUsers:
    """A running broker whose users the test makes."""

    def __init__(self, running: Running, administrator: RawClient) -> None:
        self.running = running
        self.administrator = administrator
        #: By name.
        self.secrets: dict[str, str] = {}

    async def add(self, user: str, permissions: Iterable[str] = (), **changes: Any) -> str:
        """Make a user; its secret."""
        answer = await self.change(UserChange(user, True, permissions=list(permissions), **changes))
        assert answer.code == ResponseCode.SUCCESS, answer
        self.secrets[user] = NEW_SECRET.decode(answer.body).secret or changes.get("secret", "")
        return self.secrets[user]

    async def change(self, change: UserChange) -> Answer:
        return await self.administrator.ask(HMQ_SET_USER, {}, CHANGE.encode(change))

    async def remove(self, user: str) -> None:
        """Remove a user, which closes its connections."""
        answer = await self.administrator.ask(HMQ_REMOVE_USER, {"user": user, "reason": "the test is over"})
        assert answer.code == ResponseCode.SUCCESS, answer

    async def client(self, user: str = "") -> RawClient:
        """A connection of this user; "": one that says nothing."""
        client = await self.running.client()
        if user:
            answer = await log_in(client, user, self.secrets[user])
            assert answer.code == ResponseCode.SUCCESS, answer
        return client


@asynccontextmanager
async def serving_users(directory: Path, **changes: Any) -> AsyncIterator[WithUsers]:
    """A broker on ``directory / "store"`` with an administrator, who is logged in."""
    store = directory / "store"
    async with serving(store, secrets_key_file=directory / "secrets.key", **changes) as running:
        first = await running.client()
        token = (store / NAME).read_text().strip()
        assert (await log_in(first, FIRST, token)).code == ResponseCode.SUCCESS
        made = WithUsers(running, first)
        everything = [
            f"{right}:*"
            for right in ("administer", "describe", "send", "consume", "settle", "decide", "read-undecided")
        ]
        await made.add(ADMINISTRATOR, everything)
        made.administrator = await made.client(ADMINISTRATOR)
        yield made
