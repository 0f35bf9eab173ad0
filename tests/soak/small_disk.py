"""A separate file system for the broker's store, small enough to be filled: a loop device, or memory if that fails.

Mounting needs root. Where it is not permitted, the soak says so and runs with ``--no-disk-full``; it never fills the
machine's own disk.
"""

import os
import shutil
import subprocess
from pathlib import Path

DISK_BYTES = 64 << 20


class CannotMount(Exception):
    """The text says what to do."""


class SmallDisk:
    """``mount()``, then ``fill`` and ``free``; ``unmount()`` at the end. ``kind``: ext4, tmpfs."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "disk"
        self.kind = ""
        self._image = directory / "disk.img"
        self._ballast = self.path / "ballast"

    def mount(self) -> None:
        """
        Raises:
            CannotMount: not root, or a container without the right to mount.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.unmount()  # an earlier run may have been killed
        tried = []
        for kind, attempt in (("ext4", self._mount_loop), ("tmpfs", self._mount_memory)):
            try:
                attempt()
            except (OSError, subprocess.SubprocessError) as error:
                tried.append(f"{kind}: {getattr(error, 'stderr', b'') or error}")
            else:
                self.kind = kind
                return
        raise CannotMount(
            "a small file system cannot be mounted here, so a full disk cannot be tried: run as root, or with "
            f"--no-disk-full ({'; '.join(tried)})"
        )

    def _mount_loop(self) -> None:
        if shutil.which("mkfs.ext4") is None:
            raise OSError("no mkfs.ext4")
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        # No reserve for root, so that full means full.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def _mount_memory(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "halfmq-soak", str(self.path))

    def unmount(self) -> None:
        if os.path.ismount(self.path):
            _run("umount", str(self.path))
        self._image.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, left_bytes: int) -> None:
        """Allocate all but ``left_bytes``; less if other processes write at the same time."""
        take = self.free_bytes - left_bytes
        if take <= 0:
            return
        with self._ballast.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), take)
            except OSError:
                return  # others were faster: the disk is full, as intended

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def can_mount(directory: Path) -> bool:
    """Whether a small file system can be mounted here."""
    disk = SmallDisk(directory)
    try:
        disk.mount()
    except CannotMount:
        return False
    disk.unmount()
    return True
