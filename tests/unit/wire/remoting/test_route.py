"""Routes, as clients of each age read them."""

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.wire.remoting.route import (
    BrokerData,
    QueueData,
    Route,
    decode_cluster_info,
    decode_route,
    decode_topic_list,
    encode_cluster_info,
    encode_route,
)

GOLDEN = vectors("remoting")
ROUTE = Route((BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.1:10911"}),), (QueueData("broker-a", 4, 4, 6),))


@pytest.mark.parametrize(
    ("version", "name"), [(317, "old"), (333, "old"), (393, "old"), (401, "4_9_8"), (479, "4_9_8")]
)
def test_ids_are_quoted_from_4_9_4_on(version, name):
    assert encode_route(ROUTE, version) == GOLDEN[f"json.route_{name}"]


def test_who_asks_for_standard_json_gets_it():
    assert encode_route(ROUTE, 0, standard_json=True) == GOLDEN["json.route_4_9_8"]


@pytest.mark.parametrize("name", ["old", "4_9_8"])
def test_routes_of_either_form_are_read(name):
    assert decode_route(GOLDEN[f"json.route_{name}"]) == ROUTE


def as_go_reads(body: str) -> dict[int, str]:
    """rocketmq-client-go ``internal/route.go``: text splitting, a number that cannot be parsed is 0."""
    start = body.index("{", body.index("brokerAddrs") + 1)
    addresses = {}
    for piece in body[start + 1 : body.index("}", start)].split(","):
        number, _, address = piece.partition(":")
        addresses[int(number) if number.isdigit() else 0] = address.replace('"', "")
    return addresses


def test_the_go_client_reads_every_address_by_splitting_text():
    route = Route((BrokerData("C", "b", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),), ())
    body = encode_route(route, 317).decode()
    assert " " not in body
    assert as_go_reads(body) == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_an_ordered_topic_names_its_order():
    route = ROUTE._replace(order_conf="broker-a:4")
    assert decode_route(encode_route(route, 401)) == route


def test_the_misspelt_flag_of_old_brokers_is_read():
    body = GOLDEN["json.route_old"].replace(b'"topicSysFlag":0', b'"topicSynFlag":3')
    assert decode_route(body).queues[0].topic_sys_flag == 3


def test_the_cluster_lists_its_brokers_by_name():
    body = encode_cluster_info(ROUTE.brokers, 317)
    assert body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"5", b"[]", b"null", b'{"brokerDatas":5}', b'{"brokerDatas":[{}]}', b'{"queueDatas":[{"brokerName":"b"}]}',
     b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"y"}}]}', b'{"queueDatas":[5]}',
     b'{"queueDatas":[{"brokerName":"b","perm":1e400,"readQueueNums":1,"writeQueueNums":1}]}'],
)  # fmt: skip
def test_what_is_no_route_is_a_protocol_error(body):
    with pytest.raises(ProtocolError):
        decode_route(body)


@pytest.mark.parametrize("version", [317, 401])
def test_the_brokers_of_a_cluster_come_back(version):
    assert decode_cluster_info(encode_cluster_info(ROUTE.brokers, version)) == tuple(ROUTE.brokers)
    assert decode_cluster_info(b"{}") == ()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerAddrTable":{"a":{}}}', b'{"brokerAddrTable":{"a":7}}'])
def test_a_list_of_brokers_that_makes_no_sense_is_refused(body):
    with pytest.raises(ProtocolError):
        decode_cluster_info(body)


def test_the_names_of_all_topics():
    assert decode_topic_list(b'{"topicList":["a","%RETRY%g"],"brokerAddr":null}') == ("a", "%RETRY%g")
    assert decode_topic_list(b'{"topicList":null}') == ()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topicList":7}'])
def test_a_list_of_topics_that_makes_no_sense_is_refused(body):
    with pytest.raises(ProtocolError):
        decode_topic_list(body)
