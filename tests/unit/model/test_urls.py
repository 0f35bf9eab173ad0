"""No password is shown, whatever characters it has."""

import pytest

from halfmq.model.urls import has_credentials, shown_url


@pytest.mark.parametrize(
    "password", ["secret", "se:cret", "se/cret", "se?cret", "se#cret", "se;cret", "se@cret", "se,cr et"]
)
@pytest.mark.parametrize("url", ["rocketmq://user:{}@host:9876", "user:{}@host", "rocketmq://host:9876?password={}"])
def test_nothing_of_a_password_is_shown(url: str, password: str) -> None:
    text = url.format(password)
    assert not any(part in shown_url(text) for part in ("se", "cret", "user"))


@pytest.mark.parametrize("url", ["rocketmq://a:1;b:2", "a:1", "", "rocketmq://[::1]:9876/", "kafka://a"])
def test_what_has_no_secret_is_shown_as_it_is(url: str) -> None:
    assert shown_url(url) == url
    assert not has_credentials(url)


def test_scheme_and_that_something_is_hidden_are_shown() -> None:
    assert shown_url("rocketmq://user:secret@host:9876") == "rocketmq://***"
    assert shown_url("rocketmq://host:9876?token=secret") == "rocketmq://host:9876?***"
    assert has_credentials("rocketmq://user@host")
