"""What fastjson writes and standard readers refuse."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def test_random_damage_never_raises_anything_but_a_protocol_error():
    dice = random.Random(7)
    refused = 0
    for _ in range(5_000):
        damaged = bytearray(GOLDEN["json.topic_stats"])
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(len(damaged))] = dice.choice(b'{}[]:,"\\0a\xff ')
        try:
            java_json.loads(bytes(damaged))
        except ProtocolError:
            refused += 1
    assert 1_000 < refused < 5_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_the_tolerant_reader_reads_standard_json_like_a_standard_reader(value):
    # An integer key in front sends the whole text through the tolerant reader.
    body = b"{0:" + json.dumps(value).encode() + b"}"
    assert java_json.loads(body) == {"0": value}
    assert java_json.loads(java_json.dumps(value)) == value
