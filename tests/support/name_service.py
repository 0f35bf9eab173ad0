"""A name service of several halfmq brokers, each of which is a name service of itself: asks them, and names them apart.

A broker that does not respond is not registered, as in RocketMQ, whose name server removes a broker when its connection breaks.
"""

from typing import Any

import msgspec

from halfmq.client.blocking import Connections, NameServers, Unavailable
from halfmq.model.address import Address, ServerUrl
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.route import BrokerData, Route, encode_cluster_info, encode_route
from tests.support.scripted_server import ScriptedServer


class NameService:
    """``brokers``: port of the name service of each, by name. May be changed. The caller must call ``close``."""

    def __init__(self, brokers: dict[str, int]) -> None:
        self.brokers = brokers
        self._server = ScriptedServer(self._answer)
        self.url = self._server.url

    def close(self) -> None:
        self._server.close()

    def _answer(self, request: Request[Any]) -> bytes:
        connections = Connections(None)
        try:
            found: list[BrokerData] = []
            queues = []
            topics: set[str] = set()
            for name, port in sorted(self.brokers.items()):
                asked = NameServers(ServerUrl((Address("127.0.0.1", port),)), connections)
                try:
                    ((_, data),) = asked.registered().items()
                    route = (
                        asked.route(request.ext.topic) if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC else None
                    )
                    topics |= set(asked.topics())
                except Unavailable:
                    continue
                if route is not None or request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    found.append(data._replace(broker_name=name))
                    queues += [one._replace(broker_name=name) for one in (route.queues if route else ())]
        finally:
            connections.close()
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return encode_response(request, 0, body=encode_cluster_info(found, request.version))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return encode_response(request, 0, body=msgspec.json.encode({"topicList": sorted(topics)}))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if queues:
                return encode_response(
                    request, 0, body=encode_route(Route(tuple(found), tuple(queues)), request.version)
                )
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return encode_response(request, ResponseCode.TOPIC_NOT_EXIST, "no topic")
        return encode_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
