"""A child knows that it is one, and lets go of its parent's sockets without a word to anybody."""

import os
import socket

import pytest
from tests.support.children import fork

from halfmq.client import forks
from halfmq.errors import UsageError


class Kept:
    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def descriptor(self) -> int:
        return self._stream.fileno()


def test_each_child_has_another_number() -> None:
    here = forks.generation
    assert fork(lambda: [forks.generation, fork(lambda: forks.generation).result()]).result() == [here + 1, here + 2]
    assert forks.generation == here


def test_childs_share_of_a_socket_is_closed_and_the_parents_lives() -> None:
    ours, theirs = socket.socketpair()
    kept = Kept(ours)
    forks.detach_in_children(kept)
    go_on, told = os.pipe()

    def work() -> bool:
        os.close(told)
        theirs.close()
        os.read(go_on, 1)  # lives until the parent is done
        return os.path.samefile(f"/proc/self/fd/{ours.fileno()}", os.devnull)

    child = fork(work)
    os.close(go_on)
    ours.sendall(b"x")
    assert theirs.recv(9) == b"x"  # nothing was said in the parent's name
    ours.close()
    theirs.settimeout(10)
    assert theirs.recv(9) == b""  # the end, although the child lives
    os.close(told)
    assert child.result()
    theirs.close()


def test_closed_sockets_are_left_alone() -> None:
    """Their number may be that of something else by now."""
    ours, theirs = socket.socketpair()
    kept = Kept(ours)
    forks.detach_in_children(kept)
    number = ours.fileno()
    ours.close()
    other = os.open(__file__, os.O_RDONLY)
    assert other == number
    assert fork(lambda: os.path.samefile(f"/proc/self/fd/{other}", __file__)).result()
    os.close(other)
    theirs.close()


def test_what_a_parent_opened_is_refused_with_a_hint() -> None:
    forks.refuse_in_child(forks.generation, "this", "do that")
    with pytest.raises(UsageError, match=r"this belongs to the process .* \(do that\)"):
        forks.refuse_in_child(forks.generation - 1, "this", "do that")
