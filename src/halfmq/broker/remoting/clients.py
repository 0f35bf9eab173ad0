"""Connections for operators (29032, 29033): list them, and close those of one client.

A client that is closed so connects again at once, as after any loss of its connection: it helps with one that hangs, or whose place
another member shall take. What keeps a client away is its user's permissions and limits.
"""

import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from halfmq.broker.peers.peer import Peer
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.actors import actor_with_reason
from halfmq.broker.services.pages import page_of
from halfmq.core.commands import NoteAction
from halfmq.core.decision import Done, Refused, Why
from halfmq.model.pending import ClientInfo
from halfmq.model.records import OperatorAction
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.clients import CLIENTS, KickClientFields, KickedReply
from halfmq.wire.remoting.header import Request

log: Final = logging.getLogger("halfmq.operators")

#: Names of groups in one row; a connection may be in 1,024.
_GROUPS_SHOWN_MAX: Final = 16


class ClientList(Handlers):
    """Lists connections, and closes them."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._members = parts.members
        self._peers = parts.gateway.peers

    def list(self, connection: Connection, request: Request[Any]) -> None:
        """29032: a page of connections, in the order in which they were made."""
        page = page_of(self._peers.connected.values(), request.ext.rows, request.ext.start, self._row)
        self._answer_page(connection, request, page, CLIENTS.encode(page.rows))

    def _row(self, peer: Peer) -> ClientInfo:
        session, number = self._view.session, peer.number
        version, language = self._members.software.get(number, (0, ""))
        consumes, produces = session.consumes.get(number, {}), session.produces.get(number, {})
        return ClientInfo(
            number,
            peer.address,
            peer.user,
            self._members.client_id(number),
            language,
            version,
            tuple(islice(consumes, _GROUPS_SHOWN_MAX)),
            tuple(islice(produces, _GROUPS_SHOWN_MAX)),
            len(consumes) + len(produces),
            peer.pending,
            peer.is_full,
        )

    def kick(self, connection: Connection, request: Request[Any]) -> None:
        """29033: close the connections of a client, after it is logged who wants that and why. Never the connection of the request.

        Refusals: INVALID_PARAMETER: not exactly one of client id and connection, or no name or reason. NOT_FOUND: there is none.
        """
        fields: KickClientFields = request.ext
        request = request.to_answer(None)
        if bool(fields.client_id) == bool(fields.connection):
            text = "name a client: one of clientId and connection"
            self._refuse(connection, request, Refused(Why.INVALID_PARAMETER, text))
            return
        by = actor_with_reason(connection, fields.operator, fields.reason, "disconnects it")
        if isinstance(by, Refused):
            self._refuse(connection, request, by)
            return
        name = f"client {fields.client_id}" if fields.client_id else f"connection {fields.connection}"
        if not self._named(connection, fields):
            self._refuse(connection, request, Refused(Why.NOT_FOUND, f"{name} is not connected"))
            return

        def is_logged(_: None, reply: Any) -> None:
            if not isinstance(reply, Done):
                self._refuse(connection, request, reply)
                return
            closed = self._named(connection, fields)
            for peer in closed:
                # Not after its responses: it may not read them.
                peer.transport.abort()
            connection.log_throttled(
                log, logging.WARNING, ("kicked", fields.client_id, fields.connection),
                "operator %s from %s closed %d connections of %s; reason: %s",
                by.name, connection.address, len(closed), name, by.reason,
            )  # fmt: skip
            self._answer(connection, request, write_fields(KickedReply(len(closed))))

        self._sequencer.submit(NoteAction(OperatorAction.KICK_CLIENT, name, by), is_logged)

    def _named(self, asker: Connection, fields: KickClientFields) -> Sequence[Peer]:
        if fields.connection:
            found = self._peers.connected.get(fields.connection)
            return [found] if found is not None and found is not asker else []
        return [
            peer
            for number, peer in self._peers.connected.items()
            if peer is not asker and self._members.client_id(number) == fields.client_id
        ]
