"""Which resource a request names, and what is said of those that name none."""

from typing import Any

import pytest
from tests.support.services import HandLoop

from halfmq.broker.http.connection import HttpConnection, HttpRequest
from halfmq.broker.http.door import HttpFrontDoor, Route
from halfmq.broker.peers.peers import Peers
from halfmq.broker.services.access import Access
from halfmq.model.text_fields import Fields, write_fields


class Two(Fields):
    x: str | None = None
    y: str | None = None


def told(method: str, target: str, host: str | None = None) -> tuple[int, Any]:
    door, answers = HttpFrontDoor(Peers(HandLoop(), clock=lambda: 0.0), {"h"}), []  # type: tuple[HttpFrontDoor, list[tuple[int, Any]]]
    door.resources["/a"] = Route(Access(), Two, lambda given, answer: answer(200, write_fields(given)))
    path, _, query = target.partition("?")
    headers = {} if host is None else {"host": host}
    request = HttpRequest(
        HttpConnection(door._peers, door._serve, door.connections.discard), method, path, query, headers
    )
    door._serve(request, lambda status, body: answers.append((status, body)))
    (only,) = answers
    return only


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("/a", {}),
        ("/a?", {}),
        ("/a?x=1", {"x": "1"}),
        ("/a?x=&y=%C3%A9+z", {"x": "", "y": "é z"}),
        ("/a?x=1%262", {"x": "1&2"}),
    ],
)
def test_a_resource_is_given_its_parameters(target: str, given: dict[str, str]) -> None:
    assert told("GET", target) == (200, given)


@pytest.mark.parametrize("target", ["/a?z=1", "/a?x=1&x=1", "/a?x=1&z", "/a?" + "x=1&" * 9, "/a?=1"])
def test_parameters_that_it_does_not_have_or_has_twice_are_refused(target: str) -> None:
    assert told("GET", target) == (400, {"error": "parameters, each once at most: x, y"})


@pytest.mark.parametrize("target", ["", "/", "/a/", "//a", "/A", "*", "http://h/a", "http://[", "/%61"])
def test_other_paths_are_not_there(target: str) -> None:
    assert told("GET", target) == (404, {"error": "no such resource", "resources": ["/a"]})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"])
def test_what_is_there_can_only_be_read(method: str) -> None:
    assert told(method, "/a")[0] == 405
    assert told(method, "/b")[0] == 404


@pytest.mark.parametrize(
    "host",
    [
        None, "", "h", "H", "h:8080", "h.", "localhost", "localhost:1", "LocalHost.", "127.0.0.1", "10.1.2.3:8080", "[::1]", "[::1]:8080", "[fd00::2]",
        "[fe80::1%25eth0]:8080",
    ],
)  # fmt: skip
def test_addresses_and_the_names_of_this_port_are_served(host: str | None) -> None:
    assert told("GET", "/a", host) == (200, {})


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "h.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "h@evil", "::1", "[evil]", "[", ":80",
     "0x7f.1", "127.1", " h"],
)  # fmt: skip
@pytest.mark.parametrize("target", ["/a", "/none"])
def test_other_names_are_refused_with_what_to_do(host: str, target: str) -> None:
    """A name of another site can lead here (DNS rebinding): its page would read what the browser can reach."""
    status, body = told("GET", target, host)
    assert status == 421
    assert repr(host) in body["error"]
    assert "--http-host-name NAME" in body["error"]
