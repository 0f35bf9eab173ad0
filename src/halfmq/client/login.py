"""How a new connection says who it is, and what each response to that means. No I/O: ``connection`` and ``blocking`` send and receive.

To halfmq a client proves once per connection that it knows the secret, and the server proves it, too (HMQ_LOGIN, ``wire.remoting.users``);
after that nothing is signed. Apache RocketMQ does not know the command, and gets a signature in each request (``wire.remoting.acl``). Its
name servers before 5.0 do not respond at all to what they do not know. So if there is no response to the first request for
``PROBE_AFTER_S``, the client asks ``PROBE``, which every server answers: a response to that and none to the first request is RocketMQ's.

Without TLS somebody in between may claim to be RocketMQ, and gets signed requests, as RocketMQ would: never the secret.
"""

from collections.abc import Callable, Generator
from secrets import token_hex
from typing import Any, Final

from halfmq.client.refusals import is_temporary
from halfmq.errors import ConnectError, LoginFailed, ProtocolError
from halfmq.model.address import Address
from halfmq.model.text_fields import without_empty, write_fields
from halfmq.wire.remoting import users as wire
from halfmq.wire.remoting.codes import LANGUAGE_OURS, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request

Answer = Request[Any]
#: Fields of the next HMQ_LOGIN; then whether requests are signed from now on. What is sent to it is the response, or None: ``PROBE`` was
#: answered instead, which is asked for the first response only.
Steps = Generator[dict[str, str], Answer | None, bool]

#: Every RocketMQ name server answers it, and every broker, if only by refusing it.
PROBE: Final = RequestCode.GET_BROKER_CLUSTER_INFO
#: Seconds. A halfmq broker that takes longer still answers the login before the probe.
PROBE_AFTER_S: Final = 1.0


def own_nonce() -> str:
    """A new one."""
    return token_hex(wire.NONCE_BYTES)


def log_in(address: Address, user: str, secret: bytes, make_nonce: Callable[[], str] = own_nonce) -> Steps:
    """The requests of a login, and what their responses mean. After an error the caller closes the connection, as the server does; if
    there is another secret by then, it may connect and try that one.

    Raises:
        LoginFailed: the server does not accept the user, or does not know the secret itself. Waiting does not help.
        ConnectError: it accepts no logins at the moment.
        ProtocolError: it sent something else.
    """
    first = yield without_empty(write_fields(wire.LoginFields(user)))
    if first is None or first.language != LANGUAGE_OURS or first.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return True
    if first.code == ResponseCode.SYSTEM_BUSY and (first.remark or "").startswith(wire.NO_USERS):
        return False
    if first.code != ResponseCode.SUCCESS:
        raise _refused(address, user, first)
    server_nonce, nonce = first.read(wire.LoginReply).nonce, make_nonce()
    if not server_nonce:
        raise ProtocolError(f"{address} answered a login without a nonce")
    proof = wire.client_proof(user, secret, server_nonce, nonce)
    second = yield write_fields(wire.LoginFields(user, nonce, proof))
    if second is None:
        raise ProtocolError(f"{address} did not answer a login")
    if second.code != ResponseCode.SUCCESS:
        raise _refused(address, user, second)
    if not wire.is_proof(second.read(wire.LoginReply).proof, wire.server_proof(user, secret, server_nonce, nonce)):
        raise LoginFailed(
            f"{address} did not prove that it knows the secret of user {user!r}",
            hint="it is not the server that this secret is for: look who listens there, and use rocketmqs:// to be sure of it",
        )
    return False


def _refused(address: Address, user: str, answer: Answer) -> ConnectError:
    text = f"{answer.remark or 'no reason given'} (code {answer.code})"
    if answer.code != ResponseCode.NO_PERMISSION and is_temporary(answer.code, answer.ext):
        return ConnectError(f"{address} accepts no login at the moment: {text}", hint="try again later")
    return LoginFailed(
        f"{address} does not accept user {user!r}: {text}",
        hint="an administrator sees the users with `halfmq user list`, and gives one a new secret with `halfmq user rotate`",
    )
