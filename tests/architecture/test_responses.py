"""Responses of the remoting port leave through ``Connection.respond``: whatever must see each of them, as metrics do, is one line there."""

import ast
from pathlib import Path

import halfmq.broker.remoting

REMOTING = Path(halfmq.broker.remoting.__path__[0])
#: Where commands are dispatched: it has ``respond``, and sends requests of the broker (pushes, calls).
GATEWAY = "gateway.py"


def sends(source: str) -> list[int]:
    """Line numbers of calls that send to a peer past ``respond``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "send"
        and ast.unparse(node.func.value).rpartition(".")[2]
        in ("connection", "peer", "one", "to", "requester", "replier")
    ]


def test_a_send_past_respond_is_found() -> None:
    assert sends("def f(connection, request):\n    connection.send(b'')\n    self._sends.send(connection)\n") == [2]
    assert sends("one.peer.send(frame)") == [1]


def test_every_response_leaves_through_respond() -> None:
    found = {
        path.name: lines
        for path in sorted(REMOTING.glob("*.py"))
        if path.name != GATEWAY and (lines := sends(path.read_text()))
    }
    assert not found, f"answer these with ``Gateway.answer`` or ``Connection.respond``: {found}"
    assert len(sends((REMOTING / GATEWAY).read_text())) == 2, "of a push and of a call"
