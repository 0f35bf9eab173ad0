"""Commands of halfmq for operators about connections.

    HMQ_CLIENTS      29032  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``ClientInfo``, ...]
    HMQ_KICK_CLIENT  29033  ext ``clientId`` or ``connection``, ``operator``, ``reason``
        response  code 0, ext ``closed``: how many connections; 1: there is no such connection

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from typing import Final

from halfmq.model.pending import ClientInfo
from halfmq.model.text_fields import Count64, Fields
from halfmq.wire.remoting.fields import JsonBody

#: Response body of HMQ_CLIENTS.
CLIENTS: Final = JsonBody(list[ClientInfo], "a response to HMQ_CLIENTS is")


class KickClientFields(Fields, gc=False):
    """HMQ_KICK_CLIENT: all connections of a client id, or the one with this number; 0: none is named."""

    client_id: str = ""
    connection: Count64 = 0
    operator: str = ""
    reason: str = ""


class KickedReply(Fields, gc=False):
    """The response to HMQ_KICK_CLIENT."""

    closed: Count64
