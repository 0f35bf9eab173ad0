"""Headers: what each known client writes, both serialisations, and whatever else may come."""

import json
import struct

import pytest
from tests.support.vectors import vectors

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.queue_reads import PullRequest
from halfmq.wire.remoting import header as headers
from halfmq.wire.remoting.binary_header import encode_binary_header
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.fields import (
    EndFields,
    RouteFields,
    SendFields,
    UpdateOffsetFields,
)
from halfmq.wire.remoting.frame import assemble
from halfmq.wire.remoting.header import (
    InvalidHeader,
    Request,
    decode,
    encode_empty_response,
    encode_oneway_request,
    encode_pull_response_head,
    encode_request,
    encode_response,
    encode_send_response,
)

GOLDEN = vectors("remoting")
HALF_EXT = json.loads(GOLDEN["json.half_send_ext"])
END_EXT = json.loads(GOLDEN["json.end_ext"])
PROPERTIES = HALF_EXT["i"]


def frame_of(keys: dict, body: bytes = b"") -> bytes:
    """A frame as the splitter hands it on, its header written as Java writes it: compact, keys sorted."""
    return assemble(json.dumps(keys, sort_keys=True, separators=(",", ":")).encode(), body)[4:]


def java(code: int, ext: dict | None, flag: int = 0, **more) -> dict:
    keys = {
        "code": code,
        "flag": flag,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 401,
    }
    return keys | ({} if ext is None else {"extFields": ext}) | more


def in_binary(code: int, ext: dict, flag: int = 0, body: bytes = b"") -> bytes:
    return assemble(encode_binary_header(code, 7, flag, None, ext.items()), body, binary=True)[4:]


EXPECTED_HALF = SendFields(
    group="TXG",
    topic="TopicTx",
    default_queues=4,
    queue_id=1,
    sys_flag=4,
    born_time_ms=1795246382304,
    flag=0,
    properties=PROPERTIES,
    reconsume_times=0,
    max_reconsume_times=-1,
)


def test_a_half_of_the_java_client_is_read_into_its_struct():
    request = decode(frame_of(java(310, HALF_EXT), b"order"))
    assert (request.code, request.opaque, request.flag, request.version) == (310, 7, 0, 401)
    assert (request.language, request.remark, request.body, request.binary) == ("JAVA", None, b"order", False)
    assert request.ext == EXPECTED_HALF
    assert "\x01" in request.ext.properties


def test_a_half_in_a_binary_header_gives_the_same_values():
    request = decode(in_binary(310, HALF_EXT, body=b"order"))
    assert request.ext == EXPECTED_HALF
    assert (request.binary, request.body, request.opaque) == (True, b"order", 7)


def test_the_general_way_gives_the_same_values_as_the_fast_one():
    unsorted = json.dumps({"opaque": 7, "extFields": HALF_EXT, "version": 401, "code": 310}).encode()
    assert decode(assemble(unsorted)[4:]).ext == EXPECTED_HALF


def test_version_1_sends_of_the_go_client_have_long_names():
    ext = {
        "producerGroup": "TXG",
        "topic": "TopicTx",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "4",
        "bornTimestamp": "1795246382304",
        "flag": "0",
        "properties": PROPERTIES,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "0",
        "batch": "false",
    }
    go = (
        b'{"code":10,"language":"GO","version":317,"opaque":3,"flag":0,"remark":"","extFields":%b}'
        % json.dumps(ext).encode()
    )
    request = decode(assemble(go, b"order")[4:])
    expected = SendFields(**{name: getattr(EXPECTED_HALF, name) for name in EXPECTED_HALF.__struct_fields__})
    expected.max_reconsume_times = 0
    assert request.ext == expected
    assert request.language == "GO"


def test_numbers_and_booleans_of_the_cpp_client_are_read():
    ext = HALF_EXT | {"d": 4, "e": 1, "f": 4, "g": 1795246382304, "h": 0, "j": 0, "k": False, "m": False}
    assert decode(frame_of(java(310, ext, language="CPP", version=333))).ext == EXPECTED_HALF


def test_an_end_transaction_is_read_into_its_struct():
    request = decode(frame_of(java(37, END_EXT, flag=2)))
    assert request.is_oneway
    assert not request.is_response
    assert request.ext == EndFields("TXG", 4, 3996, 8, END_EXT["msgId"], False, "", "")
    assert decode(in_binary(37, END_EXT, flag=2)).ext == request.ext


def test_our_own_fields_of_an_end_transaction_are_read():
    ext = END_EXT | {"HMQ_TX_ID": "tx-1", "transactionId": "u", "fromTransactionCheck": "true", "topic": "T"}
    read = decode(frame_of(java(37, ext))).ext
    assert (read.tx_id, read.transaction_id, read.from_transaction_check) == ("tx-1", "u", True)


def test_a_pull_and_an_offset_are_read_into_their_structs():
    pull = {
        "consumerGroup": "CG", "topic": "T", "queueId": "3", "queueOffset": "17", "maxMsgNums": "32", "sysFlag": "3",
        "commitOffset": "12", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "1795246382031",
        "expressionType": "TAG", "bname": "b",
    }  # fmt: skip
    expected = PullRequest("CG", "T", 3, 17, 32, 3, 12, 15000, "*", 1795246382031, "TAG", 0)
    assert decode(frame_of(java(11, pull))).ext == expected
    assert decode(in_binary(11, pull)).ext == expected
    offset = {"consumerGroup": "CG", "topic": "T", "queueId": "3", "commitOffset": "12"}
    assert decode(frame_of(java(15, offset, flag=2))).ext == UpdateOffsetFields("CG", "T", 3, 12)


def test_an_answer_with_the_number_of_a_command_is_not_read_as_one():
    answer = decode(frame_of(java(11, {"offset": "5"}, flag=1)))
    assert answer.is_response
    assert answer.ext == {"offset": "5"}
    assert (
        decode(
            frame_of(java(15, {"consumerGroup": "a", "topic": "b", "queueId": "1", "commitOffset": "2"}, flag=1))
        ).ext["topic"]
        == "b"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"code": 34, "opaque": 1}, (34, 1, 0, 0, "JAVA", None, {})),
        ({"code": "34", "opaque": "1", "flag": "2", "version": "5"}, (34, 1, 2, 5, "JAVA", None, {})),
        ({"code": 34, "opaque": 1, "language": 9}, (34, 1, 0, 0, "GO", None, {})),
        ({"code": 34, "opaque": 1, "language": 99}, (34, 1, 0, 0, "OTHER", None, {})),
        ({"code": 34, "opaque": 1, "language": None}, (34, 1, 0, 0, "OTHER", None, {})),
        ({"code": 34, "opaque": 1, "language": "KLINGON"}, (34, 1, 0, 0, "KLINGON", None, {})),
        ({"code": 34, "opaque": 1, "extFields": None, "remark": None}, (34, 1, 0, 0, "JAVA", None, {})),
        ({"code": 34, "opaque": 1, "extFields": {}}, (34, 1, 0, 0, "JAVA", None, {})),
        (
            {"code": 34, "opaque": 1, "extFields": {"a": 1, "b": True, "c": None, "d": "", "e": 1.5, "f": "x"}},
            (34, 1, 0, 0, "JAVA", None, {"a": "1", "b": "true", "e": "1.5", "f": "x"}),
        ),
        ({"code": 34, "opaque": 1, "remark": "why", "body": "no", "binary": True}, (34, 1, 0, 0, "JAVA", "why", {})),
        ({"extFields": {}}, (0, 0, 0, 0, "JAVA", None, {})),
    ],
)
def test_missing_keys_and_scalars_of_any_kind_are_tolerated(keys, expected):
    read = decode(frame_of(keys, b"body"))
    assert (read.code, read.opaque, read.flag, read.version, read.language, read.remark, read.ext) == expected
    assert (read.body, read.binary) == (b"body", False)


def test_keys_of_ours_in_a_fast_header_mean_nothing():
    written = frame_of(java(37, END_EXT))[4:]
    header = written.replace(b'"version"', b'"binary":true,"body":"AAAA","version"')
    assert header.startswith(b'{"code":37,')
    request = decode(assemble(header, b"true body")[4:])
    assert (request.body, request.binary) == (b"true body", False)


def test_a_null_field_counts_as_missing():
    ext = HALF_EXT | {"i": None, "l": None}
    assert decode(frame_of(java(310, ext))).ext.properties == ""


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (310, {name: value for name, value in HALF_EXT.items() if name != "b"}),
        (310, HALF_EXT | {"e": "one"}),
        (310, HALF_EXT | {"e": str(1 << 31)}),
        (310, HALF_EXT | {"g": str(1 << 63)}),
        (310, None),
        (37, END_EXT | {"commitLogOffset": ""}),
        (37, {}),
        (105, {}),
        (36, {"offset": "x", "group": "g", "delayLevel": "0"}),
    ],
)
def test_wrong_fields_are_named_and_the_command_can_still_be_answered(code, ext):
    for frame in (frame_of(java(code, ext), b"B"), in_binary(code, ext or {}, body=b"B")):
        with pytest.raises(InvalidHeader) as wrong:
            decode(frame)
        request = wrong.value.request
        assert (request.code, request.opaque, request.body) == (code, 7, b"B")
        assert str(code) in str(wrong.value)
        assert encode_response(request, 1, str(wrong.value))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b"\xff\xfe",
        b'{"code":310,"extFields":{"i":"\xff"}}',
        b'{"code":34,"extFields":{"i":"\\ud800"}}',
        b'{"code":34,"extFields":{"a":{}}}',
        b'{"code":34,"extFields":[1]}',
        b'{"code":99999999999,"opaque":1}',
        b'{"code":34,"opaque":99999999999}',
        b'{"code":34,"opaque":{}}',
        b'{"code":34,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"code":310,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"code":34} x',
    ],
)
def test_a_header_that_is_none_is_a_protocol_error(header):
    with pytest.raises(ProtocolError) as wrong:
        decode(assemble(header)[4:])
    assert not isinstance(wrong.value, InvalidHeader)


def test_a_header_longer_than_its_frame_and_an_unknown_serialisation_are_protocol_errors():
    with pytest.raises(ProtocolError):
        decode(struct.pack(">I", 12) + b"{}")
    for kind in (2, 9, 255):
        with pytest.raises(ProtocolError):
            decode(bytes((kind, 0, 0, 2)) + b"{}")


# --- answers -----------------------------------------------------------------------------------------------------


def read_as_client(frame: bytes) -> Request:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return decode(frame[4:])


@pytest.mark.parametrize("binary", [False, True])
def test_the_answer_to_a_send_holds_what_java_dereferences(binary):
    frame = encode_send_response(7, b"7F000001000051AF0000000000000F9C", 1, 4, b"FD00", binary=binary)
    answer = read_as_client(frame)
    assert (answer.code, answer.opaque, answer.flag, answer.binary) == (0, 7, 1, binary)
    assert answer.ext == json.loads(GOLDEN["json.half_sent_ext"]) | {"transactionId": "FD00"}
    if not binary:
        assert all(isinstance(value, str) for value in json.loads(frame[8:])["extFields"].values())


def test_the_binary_answer_to_a_pull_is_that_of_a_real_broker_apart_from_who_speaks():
    golden = GOLDEN["pull_response_binary"]
    request = decode(in_binary(35, {"clientID": "c"}))
    request.opaque = 5
    ours = encode_pull_response_head(request, 0, "", 1, 0, 1, 0)
    # Language (byte 10) and version (11, 12) say who we are.
    assert ours[:10] + b"\0\0\0" + ours[13:] == golden
    assert read_as_client(golden).ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"
    }  # fmt: skip


@pytest.mark.parametrize("binary", [False, True])
def test_the_answer_to_a_pull_has_its_body_sent_behind_it(binary):
    request = decode(in_binary(34, {}) if binary else frame_of(java(34, {})))
    frame = encode_pull_response_head(request, 19, "PULL_NOT_FOUND", 9, 2, 11, 3) + b"abc"
    answer = read_as_client(frame)
    assert (answer.code, answer.remark, answer.body) == (19, "PULL_NOT_FOUND", b"abc")
    assert answer.ext == {"suggestWhichBrokerId": "0", "nextBeginOffset": "9", "minOffset": "2", "maxOffset": "11"}


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_comes_in_the_serialisation_of_its_command(binary):
    request = decode(in_binary(34, {}) if binary else frame_of(java(34, {})))
    frame = encode_response(request, 17, 'no "topic" \x01 \u00e9', {"n": 5, "b": True, "s": "x", "none": None}, b"B")
    answer = read_as_client(frame)
    assert answer.binary is binary
    assert (answer.code, answer.opaque, answer.flag) == (17, 7, 1)
    assert answer.remark == 'no "topic" \x01 \u00e9'
    assert answer.ext == {"n": "5", "b": "true", "s": "x"}
    assert answer.body == b"B"
    assert read_as_client(encode_empty_response(7, binary=binary)).code == 0


def test_an_answer_always_has_its_ext_object():
    for frame in (encode_response(decode(frame_of(java(34, None))), 0), encode_empty_response(1)):
        assert json.loads(frame[8:])["extFields"] == {}


@pytest.mark.parametrize("binary", [False, True])
def test_text_that_is_no_unicode_does_not_keep_an_answer_from_leaving(binary):
    request = decode(in_binary(34, {}) if binary else frame_of(java(34, {})))
    assert read_as_client(encode_response(request, 1, "bad \ud800 name", {"k": "\udfff"})).remark == "bad ? name"


def test_a_push_is_oneway_and_in_json():
    push = encode_oneway_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 3, {"consumerGroup": "CG"})
    assert push[4] == 0
    read = read_as_client(push)
    assert read.is_oneway
    assert (read.code, read.ext.consumer_group) == (40, "CG")


@pytest.mark.parametrize("binary", [False, True])
def test_a_command_of_our_client_is_read_by_our_broker(binary):
    frame = encode_request(105, 9, {"topic": "T", "acceptStandardJsonOnly": None}, binary=binary)
    request = read_as_client(frame)
    assert (request.code, request.opaque, request.flag, request.language) == (105, 9, 0, "PYTHON")
    assert request.ext == RouteFields("T")


def test_a_code_that_does_not_fit_a_binary_header_is_refused():
    with pytest.raises(ProtocolError):
        encode_request(200050, 1, binary=True)


def test_the_fast_readers_are_used_for_the_hot_commands(monkeypatch):
    monkeypatch.setattr(headers, "_decode_json", lambda header: pytest.fail(f"the general way was taken: {header!r}"))
    decode(frame_of(java(310, HALF_EXT)))
    decode(frame_of(java(37, END_EXT, flag=2)))


def test_deep_nesting_closes_the_connection_wherever_it_stands():
    deep = b"[" * 900 + b"]" * 900
    for header in (b'{"code":34,"remark":' + deep + b"}", b'{"code":34,"extFields":{"a":' + deep + b"}}", deep):
        with pytest.raises(ProtocolError):
            decode(len(header).to_bytes(4, "big") + header)


def test_empty_text_is_read_the_same_by_the_fast_and_the_general_reader():
    fields = b'"a":"","b":"T","c":"","d":"4","e":"0","f":"0","g":"1","h":"0","i":"","j":"0"'
    for header in (b'{"code":310,"extFields":{%b},"opaque":5}', b'{ "code":310,"extFields":{%b},"opaque":5}'):
        header %= fields
        request = decode(len(header).to_bytes(4, "big") + header)
        assert (request.ext.group, request.ext.topic, request.ext.properties) == ("", "T", "")


def test_empty_text_in_place_of_a_number_is_as_if_it_were_missing():
    header = (
        b'{"code":11,"extFields":{"consumerGroup":"C","topic":"T","queueId":"0","queueOffset":"0","maxMsgNums":"1",'
    )
    header += b'"subVersion":""}}'
    assert decode(len(header).to_bytes(4, "big") + header).ext.subscription_version == 0


def test_what_an_answer_needs_is_little_whatever_the_peer_sent() -> None:
    request: Request[dict[str, str]] = Request(
        code=307,
        ext={"a": "x"},
        flag=2,
        language="x" * 5_000,
        opaque=7,
        remark="x",
        version=409,
        body=b"x",
        binary=True,
    )
    kept = request.to_answer(None)
    assert kept == Request(code=307, ext=None, flag=2, language="OTHER", opaque=7, version=409, binary=True)
    assert encode_response(kept, 1, "no") == encode_response(request, 1, "no")
    request.language = "CPP"
    assert request.to_answer(None).language == "CPP"


def fields(count: int, value: str = '"') -> dict[str, str]:
    """As a client may send them: quotation marks and backslashes in values are escaped."""
    return {f"f{number}": value for number in range(count)}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("value", ["v", '"' * 400, "\\" * 401, '\\"' * 300])
def test_as_many_fields_as_a_header_may_have_are_read(binary: bool, value: str) -> None:
    ext = fields(limits.HEADER_FIELDS_MAX, value)
    assert decode(encode_request(206, 7, ext, binary=binary)[4:]).ext == ext


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("count", "value"), [(limits.HEADER_FIELDS_MAX + 1, "v"), (20_000, ""), (20_000, "\\")])
@pytest.mark.parametrize("code", [206, 105, 29_001])
def test_a_header_with_more_fields_is_answered_with_its_number(code: int, count: int, value: str, binary: bool) -> None:
    with pytest.raises(InvalidHeader, match="more than 128 fields") as raised:
        decode(encode_request(code, 7, fields(count, value), b"body", binary=binary)[4:])
    assert (raised.value.request.code, raised.value.request.opaque, raised.value.request.binary) == (code, 7, binary)


@pytest.mark.parametrize("binary", [False, True])
def test_a_remark_has_a_maximum_length(binary: bool) -> None:
    request = decode(encode_request(206, 7, binary=binary)[4:])
    remarks = [decode(encode_response(request, 1, "x" * size)[4:]).remark for size in (2_000, 2_001)]
    assert remarks == ["x" * 2_000, "x" * 1_997 + "..."]
