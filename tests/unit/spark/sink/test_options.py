"""Options of writing."""

import pytest

from halfmq.errors import InvalidName, UsageError
from halfmq.spark.sink.options import HALF_BATCH_BYTES, OPTIONS, parse_sink_options

URL = {"url": "rocketmq://h:1;[::1]:2"}


def test_defaults_and_every_option() -> None:
    made = parse_sink_options(URL)
    assert made.url.servers == (("h", 1), ("::1", 2))
    assert (made.topic, made.group, made.app_id, made.version) == ("", "halfmq-spark", "", -1)
    assert (made.broker_timeout_ms, made.request_bytes, made.checkpoint) == (120_000, HALF_BATCH_BYTES, "")
    assert not made.at_least_once
    given = {
        **URL, "TOPIC": "t", "group": "g", "txnappid": "a.b-c_1", "txnVersion": "7", "brokertimeout": "500ms",
        "maxhalfbatchbytes": "64K", "checkpointlocation": "/c", "queryname": "n", "guarantee": "atLeastOnce",
    }  # fmt: skip
    assert {name.lower() for name in given} == {name.lower() for name in OPTIONS}
    made = parse_sink_options(given)
    assert (made.topic, made.group, made.app_id, made.version) == ("t", "g", "a.b-c_1", 7)
    assert (made.broker_timeout_ms, made.request_bytes, made.checkpoint) == (500, 65_536, "/c")
    assert made.at_least_once
    assert parse_sink_options({**URL, "guarantee": "ATLEASTONCE"}).at_least_once
    assert not parse_sink_options({**URL, "guarantee": "exactlyOnce"}).at_least_once
    assert parse_sink_options({**URL, "maxHalfBatchBytes": "8m"}).request_bytes == 8 << 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "url is not set"),
        ({"path": "/data"}, "path is for reading"),
        ({**URL, "subscribe": "t"}, "unknown option subscribe"),
        ({**URL, "txnAppId": "a b"}, "txnAppId is 'a b'"),
        ({**URL, "txnAppId": "a" * 41}, "txnAppId is"),
        ({**URL, "txnVersion": "-1"}, "txnVersion is '-1'"),
        ({**URL, "txnVersion": str(2**31)}, "txnVersion is"),
        ({**URL, "maxHalfBatchBytes": "1k"}, "maxHalfBatchBytes is '1k'"),
        ({**URL, "maxHalfBatchBytes": "9m"}, "maxHalfBatchBytes is '9m'"),
        ({**URL, "maxHalfBatchBytes": "64q"}, "maxHalfBatchBytes is '64q'"),
        (
            {**URL, "maxHalfBatchBytes": "5m", "guarantee": "atLeastOnce"},
            r"maxHalfBatchBytes is '5m' \(bytes, or 512k; 4k to 4m",
        ),
        ({**URL, "guarantee": "atMostOnce"}, "guarantee is 'atMostOnce'"),
        ({**URL, "provider": "halfmq"}, "CREATE TABLE"),
    ],
)
def test_invalid_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_sink_options(options)


@pytest.mark.parametrize("name", ["topic", "group"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_sink_options({**URL, name: "a b"})


def test_batch_has_both_names_of_a_write_or_none() -> None:
    for options in ({}, {"txnAppId": "a", "txnVersion": "0"}):
        parse_sink_options({**URL, **options}).for_batch()
    for options, missing in (({"txnAppId": "a"}, "txnVersion"), ({"txnVersion": "0"}, "txnAppId")):
        with pytest.raises(UsageError, match=f"^{missing} is not set"):
            parse_sink_options({**URL, **options}).for_batch()


def test_stream_has_a_checkpoint_and_no_version() -> None:
    parse_sink_options({**URL, "checkpointLocation": "/c", "txnAppId": "a"}).for_stream()
    with pytest.raises(UsageError, match="checkpointLocation is not set on this query"):
        parse_sink_options(URL).for_stream()
    parse_sink_options({**URL, "guarantee": "atLeastOnce"}).for_stream()  # needs nothing of the checkpoint
    with pytest.raises(UsageError, match="txnVersion is for batch"):
        parse_sink_options({**URL, "checkpointLocation": "/c", "txnVersion": "1"}).for_stream()
