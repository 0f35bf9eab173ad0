"""Who is connected: heartbeats and leaving (34, 35), members of a group (38, 40), queue locks (41, 42), 46.

All of it is session state: nothing is logged, a restart forgets it, and clients say it again within 30 s. Only the
consumer groups that a heartbeat names for the first time are made durably, and then the answer waits for them, since the
client asks for the route of its ``%RETRY%`` topic next.
"""

from collections.abc import Iterable
from typing import Any, Final

from halfmq.broker.connection import Connection
from halfmq.broker.groups import GroupsOnUse
from halfmq.broker.pump import Pump
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.timers import BrokerTime
from halfmq.core.session import (
    ConnectionClosed,
    ConsumerData,
    Heartbeat,
    MembersChanged,
    Unregistered,
    apply_session,
)
from halfmq.core.state import State, Subscription
from halfmq.wire.remoting.codes import EXT_VERSION, RequestCode, ResponseCode
from halfmq.wire.remoting.group_bodies import (
    MessageQueue,
    decode_config_check,
    decode_lock_request,
    encode_lock_response,
    encode_member_list,
)
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.heartbeat import ConsumerGroup, HeartbeatBody, decode_heartbeat

#: Tells our client that END_TRANSACTION is acknowledged with a receipt and that halves may share an HMQ_TX_ID.
CAPABILITY: Final = {EXT_VERSION: "1"}


class Clients:
    def __init__(
        self, gateway: Gateway, pump: Pump, groups: GroupsOnUse, time: BrokerTime, arm: "Arm", *, broker_name: str
    ) -> None:
        self._gateway = gateway
        self._state: State = pump.state
        self._groups = groups
        self._time = time
        self._arm = arm
        self._broker_name = broker_name
        gateway.handlers |= {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }
