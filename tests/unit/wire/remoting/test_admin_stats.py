"""Bodies for administrators: byte for byte as RocketMQ writes them where a parser scans them by hand."""

import json

from halfmq.model.settings import GroupSettings
from halfmq.wire.remoting.admin_stats import (
    ConsumerPeers,
    Peer,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_consumers,
    encode_counted,
    encode_group_config,
    encode_group_configs,
    encode_groups,
    encode_producers,
    encode_table,
    encode_topic_config,
    encode_topic_stats,
)
from halfmq.wire.remoting.heartbeat import Subscription

KEY = b'{"brokerName":"b","queueId":3,"topic":"T"}'
PEER = Peer("me", "10.0.0.1:5", "JAVA", 409)


def test_progress_has_queues_as_unquoted_keys():
    body = encode_consume_stats("b", [("T", 0.25, [(3, 9, 4, 6, 77)]), ("U", 0.25, [])])
    assert body == (
        b'{"consumeTps":0.5,"offsetTable":{' + KEY + b":"
        b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":77,"pullOffset":6}}}'
    )
    assert encode_consume_stats("b", [("T", 0.0, [])]) == b'{"consumeTps":0.0,"offsetTable":{}}'


def test_progress_of_all_groups_says_how_much_is_behind():
    one = ("T", 0.0, [(3, 9, 4, 6, 77)])
    body = encode_broker_consume_stats("h:1", "b", {"G": [one, one], "H": [one]})
    stats = encode_consume_stats("b", [one])
    assert body == (
        b'{"brokerAddr":"h:1","consumeStatsList":[{"G":[%b,%b]},{"H":[%b]}],"totalDiff":15,"totalInflightDiff":6}'
        % (stats, stats, stats)
    )


def test_ends_of_the_queues_of_a_topic():
    assert encode_topic_stats("b", "T", 2.0, [(3, 1, 9, 77)]) == (
        b'{"offsetTable":{' + KEY + b':{"lastUpdateTimestamp":77,"maxOffset":9,"minOffset":1}},"topicPutTps":2.0}'
    )


def test_who_is_connected():
    shown = {"clientAddr": "10.0.0.1:5", "clientId": "me", "language": "JAVA", "version": 409}
    assert json.loads(encode_producers([PEER])) == {"connectionSet": [shown]}
    subscription = Subscription("T", "a || b", ("a", "b"), 7)
    consumers = ConsumerPeers("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (PEER,), (subscription,))
    told = json.loads(encode_consumers(consumers))
    assert told["connectionSet"] == [shown]
    assert told["subscriptionTable"]["T"]["tagsSet"] == ["a", "b"]
    assert (told["consumeType"], told["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")


def test_settings_figures_and_names():
    config = GroupSettings("G", 5, 1, False, broadcast_enabled=True, from_min_enabled=False, notifies_members=True)
    table = json.loads(encode_group_configs([config], 77))["subscriptionGroupTable"]
    assert (table["G"]["groupName"], table["G"]["retryMaxTimes"], table["G"]["consumeEnable"]) == ("G", 5, False)
    enabled = ("consumeBroadcastEnable", "consumeFromMinEnable", "notifyConsumerIdsChangedEnable")
    assert [table["G"][name] for name in enabled] == [True, False, True]
    assert json.loads(encode_group_config(config)) == table["G"]
    topic = json.loads(encode_topic_config("T", 4, 3, 6, ordered=True, attributes={"message.type": "FIFO"}))
    assert (topic["topicName"], topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) == ("T", 4, 3, 6)
    assert (topic["order"], topic["attributes"]) == (True, {"message.type": "FIFO"})
    assert encode_table({"a": "1"}) == b'{"table":{"a":"1"}}'
    assert encode_groups(["G"]) == b'{"groupList":["G"]}'
    assert json.loads(encode_counted(6, 7, 8)) == {
        "statsMinute": {"sum": 6, "tps": 0.1},
        "statsHour": {"sum": 7, "tps": 7 / 3_600},
        "statsDay": {"sum": 8, "tps": 8 / 86_400},
    }
