"""What fastjson writes and standard readers refuse."""

import pytest
from tests.support.vectors import vectors

from halfmq.errors import ProtocolError
from halfmq.wire.remoting import java_json

GOLDEN = vectors("remoting")


def test_integer_keys_without_quotes_are_read_as_text():
    assert java_json.loads(b'{"offsetTable":{"T@G":{0:123,1:5,-3:7}}}') == {
        "offsetTable": {"T@G": {"0": 123, "1": 5, "-3": 7}}
    }


def test_object_keys_are_read_as_their_json():
    table = java_json.loads(GOLDEN["json.topic_stats"])["offsetTable"]
    ((key, value),) = table.items()
    assert java_json.loads(key.encode()) == {"brokerName": "broker-a", "queueId": 0, "topic": "TopicTx"}
    assert value == {"lastUpdateTimestamp": 1795246382367, "maxOffset": 2, "minOffset": 0}


def test_object_keys_in_a_string_are_read_the_same_way():
    (key,) = java_json.loads(rb'{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}')
    assert java_json.loads(key.encode()) == {"brokerName": "b", "queueId": 0, "topic": "T"}


def test_a_map_with_object_keys_is_written_as_fastjson_writes_it():
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "TopicTx"}
    value = {"lastUpdateTimestamp": 1795246382367, "maxOffset": 2, "minOffset": 0}
    table = java_json.dumps_object_keys([(queue, value)])
    assert b'{"offsetTable":' + table + b"}" == GOLDEN["json.topic_stats"]
    assert java_json.dumps_object_keys([]) == b"{}"


def test_integer_keys_are_written_in_order_with_and_without_quotes():
    assert java_json.dumps_integer_keys({10: "b", 2: "a"}, quoted=False) == b'{2:"a",10:"b"}'
    assert java_json.dumps_integer_keys({10: "b", 2: "a"}, quoted=True) == b'{"2":"a","10":"b"}'


def test_pretty_printed_files_with_deviations_are_read():
    text = b'{\n\t"delayLevel" : {\r\n\t\t3 : 42 ,\n\t\t4:[1, 2.5e1, true, null, "x\\"}\\u0041"]}\n}\n'
    assert java_json.loads(text) == {"delayLevel": {"3": 42, "4": [1, 25.0, True, None, 'x"}A']}}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"}", b"{0}", b"{0:}", b"{0:1", b"{0:1]", b"{0:1}x", b"{0:1,,}", b"{0 1}", b"[0:1]", b"{[1]:2}", b"{true:1}",
        b"{null:1}", b"{1.5:1}", b'{"a', b"{0:nope}", b'{0:"\\q"}', b'{0:"\\ud800"}', b"\xff", b"{0:\xff}",
        b"{0:" * 200 + b"1" + b"}" * 200, b"{" * 200, b"[" * 100_000, b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_json_by_anybodys_habits_is_a_protocol_error(body):
    with pytest.raises(ProtocolError):
        java_json.loads(body)


def test_a_body_cut_at_any_byte_is_a_protocol_error():
    for name in ("json.topic_stats", "json.route_old"):
        for cut in range(len(GOLDEN[name])):
            with pytest.raises(ProtocolError):
                java_json.loads(GOLDEN[name][:cut])


def test_a_key_in_a_key_is_refused_since_each_level_would_double_the_escapes():
    assert java_json.loads(b'{{"a":1}:1}') == {'{"a":1}': 1}
    for body in (b'{{{"a":1}:1}:1}', b'{{"x":{{"a":1}:1}}:1}', b"{" * 40 + b'"a":1' + b"}:1" * 39 + b"}"):
        with pytest.raises(ProtocolError, match="inside an object key"):
            java_json.loads(body)


def test_standard_json_may_not_be_nested_deeper_either():
    deep = java_json.DEPTH_MAX
    assert java_json.loads(b"[" * deep + b"1" + b"]" * deep)
    for body in (b"[" * (deep + 2) + b"]" * (deep + 2), b'{"a":' * 500 + b"1" + b"}" * 500):
        with pytest.raises(ProtocolError, match="nested deeper"):
            java_json.loads(body)


def test_bodies_have_a_longest_length_by_either_reader():
    assert len(java_json.loads(b"[" + b"1," * 200_000 + b"1]")) == 200_001
    with pytest.raises(ProtocolError, match="a JSON body of"):
        java_json.loads(b"[" + b"1," * (java_json.BYTES_MAX // 2) + b"1]")
    with pytest.raises(ProtocolError, match="is not standard JSON; the maximum"):
        java_json.loads(b"{0:[" + b"1," * (java_json.TOLERANT_BYTES_MAX // 2) + b"1]}")
