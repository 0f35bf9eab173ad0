"""Logins (29027), and users for administrators (29028 to 29030), translated to and from ``services.users``."""

from functools import partial
from typing import Any

from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.users import Change, Changed, Users
from halfmq.core.decision import Failed, Refused, UserRemoved, Why
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import code_name
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.users import (
    CHANGE,
    NEW_SECRET,
    NO_USERS,
    NONCE_BYTES,
    USERS,
    LoginFields,
    LoginReply,
    NewSecret,
    UserInfo,
    client_proof,
    is_proof,
    server_proof,
)

_NO_USERS = Refused(Why.NOT_NOW, f"{NO_USERS}: everybody may do everything (halfmq serve --secrets-key-file)")


class UserCommands(Handlers):
    """Who a connection is, and who may do what."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._users = parts.gateway.users

    def login(self, connection: Connection, request: Request[Any]) -> None:
        """29027: a nonce, then the proof. A wrong one ends the connection."""
        fields: LoginFields = request.ext
        users = self._users
        if users is None:
            self._refuse(connection, request, _NO_USERS)
        elif not fields.proof:
            connection.nonce = users.nonce(NONCE_BYTES)
            self._answer(connection, request, write_fields(LoginReply(nonce=connection.nonce)))
        else:
            nonce, connection.nonce = connection.nonce, ""
            self._prove(users, connection, request, nonce)

    def _prove(self, users: Users, connection: Connection, request: Request[Any], nonce: str) -> None:
        fields: LoginFields = request.ext
        for secret in users.secrets_of(fields.user) if nonce and len(fields.nonce) == 2 * NONCE_BYTES else ():
            if is_proof(fields.proof, client_proof(fields.user, secret, nonce, fields.nonce)):
                refused = users.identify(connection, fields.user)
                if refused is not None:
                    self._reject(connection, request, refused)
                    return
                connection.logged_in()
                if self._gateway.audit is not None:
                    self._gateway.audit.login(connection)
                proof = server_proof(fields.user, secret, nonce, fields.nonce)
                self._answer(connection, request, write_fields(LoginReply(proof=proof)))
                return
        self._reject(connection, request, Refused(Why.NO_PERMISSION, f"the login of user {fields.user[:80]!r} failed"))

    def _reject(self, connection: Connection, request: Request[Any], refused: Refused) -> None:
        self._gateway.reject_stranger(connection, request, refused)
        connection.close()

    # --- for administrators

    def set(self, connection: Connection, request: Request[Any]) -> None:
        """29028: make a user, or change one."""
        if self._users is None:
            self._refuse(connection, request, _NO_USERS)
            return
        change = CHANGE.decode(request.body)
        permissions = None if change.permissions is None else tuple(change.permissions)
        asked = Change(
            change.user, change.is_new, change.reason, permissions, change.limits, change.secret, change.old_secret_s,
            change.password,
        )  # fmt: skip
        self._about(connection, request, change.user, change.reason)
        self._users.change(connection, asked, partial(self._changed, connection, request.to_answer(None)))

    def _about(self, connection: Connection, request: Request[Any], user: str, reason: str) -> None:
        if self._gateway.audit is not None:
            what = code_name(request.code)
            self._gateway.audit.about(connection, request.opaque, what, f"user {user[:80]!r}", reason)

    def _changed(self, connection: Connection, request: Request[None], reply: Changed | Refused | Failed) -> None:
        if isinstance(reply, Changed):
            self._answer(connection, request, body=NEW_SECRET.encode(NewSecret(reply.secret)))
        else:
            self._refuse(connection, request, reply)
        self._gateway.peers.flush()

    def list(self, connection: Connection, request: Request[Any]) -> None:
        """29029: a page of users."""
        if self._users is None:
            self._refuse(connection, request, _NO_USERS)
            return
        page = self._users.listed(request.ext.rows, request.ext.start)
        rows = [
            UserInfo(
                one.name,
                list(one.user.permissions),
                one.user.limits,
                one.secrets,
                bool(one.user.password),
                one.connections,
            )
            for one in page.rows
        ]
        self._answer_page(connection, request, page, USERS.encode(rows))

    def remove(self, connection: Connection, request: Request[Any]) -> None:
        """29030: remove a user."""
        if self._users is None:
            self._refuse(connection, request, _NO_USERS)
            return
        fields = request.ext
        self._about(connection, request, fields.user, fields.reason)
        answer = self._answering(connection, request, UserRemoved, lambda _: None)
        self._users.remove(connection, fields.user, fields.reason, answer)
