"""The grammar of URLs and addresses of servers."""

import pytest

from halfmq.errors import UsageError
from halfmq.model.address import Address, Security, ServerUrl, TlsFiles, parse_address, parse_url


def test_a_user_and_the_files_are_parts_of_a_url_and_a_secret_is_not() -> None:
    servers = (Address("a", 1), Address("::1", 2))
    assert parse_url("rocketmq://relay.1@a:1;[::1]:2") == ServerUrl(servers, Security(None, "relay.1"))
    assert parse_url("rocketmqs://u@a:1,[::1]:2/?secretfile=/s&cafile=c") == ServerUrl(
        servers, Security(TlsFiles("c"), "u", "/s")
    )
    assert parse_url("u@a:1;[::1]:2?secretfile=/s%20t") == ServerUrl(servers, Security(None, "u", "/s t"))


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("[fe80::1%25eth0]", "fe80::1%eth0"),
        ("[fe80::1%eth0]", "fe80::1%eth0"),
        ("[fe80::1%25]", "fe80::1%25"),  # the interface with number 25
        ("[fe80::1%2525]", "fe80::1%25"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("mq", "mq"),
        ("10.0.0.7", "10.0.0.7"),
        ("bücher_1", "bücher_1"),
    ],
)
def test_host_of_an_address_and_its_default_port(text: str, host: str) -> None:
    assert parse_address(text) == (host, 9876)
    assert parse_address(f" {text}:10911 ", None) == (host, 10911)
    if ":" not in text or "[" in text:
        assert parse_address(f"{text}:1") == (host, 1)


@pytest.mark.parametrize("text", ["mq", "", "[::1]", "[::1", ":1", "a:", "a:b:1", "a:²", "a:+1", "a:00000001", "a:1 2"])
def test_what_is_no_address_of_a_broker(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text, None)


def test_an_ipv6_address_that_may_end_with_its_port_needs_brackets() -> None:
    """The last group of one reading is the port of the other; of a broker it is always the port."""
    with pytest.raises(UsageError, match=r"\[v6\]:port"):
        parse_address("2001:db8::1:9876")
    assert parse_address("2001:db8::1:9876", None) == ("2001:db8::1", 9876)


@pytest.mark.parametrize("address", [Address("a", 1), Address("::1", 2), Address("fe80::1%eth0", 3)])
def test_an_address_is_read_as_it_is_written(address: Address) -> None:
    assert parse_address(str(address)) == parse_address(str(address), None) == address


@pytest.mark.parametrize(
    "parameters",
    [
        "password=hunter2", "cafile=", "cafile", "hunter2", "cafile=a&cafile=hunter2", "certfile=hunter2", "keyfile=hunter2",
        "CAFILE=hunter2", "cafile=a&", "cafile=%ff", "secretfile=hunter2", "secret=hunter2",
    ],
)  # fmt: skip
def test_parameters_are_files_of_tls_each_once_and_nothing_else_is_shown(parameters: str) -> None:
    with pytest.raises(UsageError, match=r"file=FILE") as caught:
        parse_url(f"rocketmqs://h:1?{parameters}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "rocketmq://h:1?cafile=hunter2",
        "h:1?cafile=hunter2",
        "rocketmqs://h:1#hunter2",
        "rocketmqs://u:hunter2@h:1",
        "rocketmq://h:1?hunter2",
        "rocketmq://u@h:1?secretfile=a&secretfile=hunter2",
        "rocketmq://u:hunter2@h:1?secretfile=a",
        "rocketmq://u:a?hunter2@h:1",
    ],
)
def test_without_tls_there_are_no_parameters(url: str) -> None:
    with pytest.raises(UsageError, match="password, or parameters") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)
