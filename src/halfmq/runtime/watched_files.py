"""What is made of files, and made again when one of them changes: certificates and secrets are replaced without a restart."""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from halfmq.errors import EnvironmentFailed

log = logging.getLogger("halfmq.files")

T = TypeVar("T")
#: Minimum interval between two looks at the files, seconds.
LOOK_S: Final = 1.0


class Watched(Generic[T]):
    """May be used by any thread."""

    def __init__(self, files: Iterable[str], make: Callable[[], T], clock: Callable[[], float]) -> None:
        """``make``: reads the files; raises EnvironmentFailed: with the file and the reason. ``clock``: monotonic seconds.

        Raises:
            EnvironmentFailed: as ``make``.
        """
        self._files = tuple(filter(None, files))
        self._make = make
        self._clock = clock
        self._stamp = self._stamp_now()
        self._looked_s = clock()
        self._made = make()

    def current(self) -> T:
        """What the files say now. Files that cannot be used are logged once, and what was made of those before them stays in use."""
        # Without a lock, which a forked child could inherit locked: who is first looks, the others use what there is.
        return self.look() if self._clock() - self._looked_s >= LOOK_S else self._made

    def look(self) -> T:
        """``current``, also if it looked just now: for who was told that what it has is out of date."""
        self._looked_s = self._clock()
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            self._make_again()
        return self._made

    def _make_again(self) -> None:
        try:
            self._made = self._make()
        except EnvironmentFailed as error:
            log.error("changed files are not used, the ones before stay in use: %s", error)
        else:
            log.info("files were replaced: %s", ", ".join(self._files))

    def _stamp_now(self) -> tuple[object, ...]:
        """Changes when a file does, also when a link to it is set anew, as Kubernetes does with its secrets."""
        stamp: list[object] = []
        for file in self._files:
            try:
                found = os.stat(file)
            except OSError as error:
                stamp.append(error.errno)
            else:
                stamp.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return tuple(stamp)
