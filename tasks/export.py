"""A file of sagas that are about to be deleted: one JSON line each, on the disk before they go.

A crash between the two leaves a saga in both places, so that it may come to stand in a file twice,
with the same id and alike in every word. A line that a crash cut short is of a saga that was not
deleted, and is cut off when the file is written to again.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from pydantic_core import to_json

from orchestration.errors import InputError
from orchestration.retention import Story

_OPENING = b'{"saga":'
"""What each line of such a file begins with."""


class ExportFile:
    """The file, held by one purge at a time. Raises ``InputError`` for one that is not ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Open it, or make it, readable by its owner only."""
        new = not self.path.exists()
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = os.fdopen(number, "r+b")
        try:
            self._take(file)
            if new:
                _keep_name(self.path)
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()

    def _take(self, file: BinaryIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another purge is writing to {self.path}") from None
        start = file.read(len(_OPENING))
        if not _OPENING.startswith(start):
            raise InputError(f"{self.path} is there already and was not written by a purge")
        file.truncate(_end_of_last_line(file))
        file.seek(0, os.SEEK_END)

    def write(self, stories: Sequence[Story]) -> None:
        """Write sagas; when it returns they are on the disk. If it cannot, none of them is."""
        assert self._file is not None
        number, before = self._file.fileno(), self._file.seek(0, os.SEEK_END)
        data, at = memoryview(b"".join(to_json(story) + b"\n" for story in stories)), before
        try:
            while data:  # Past the file's own buffer, of which a part might be written later.
                written = os.pwrite(number, data, at)
                data, at = data[written:], at + written
            os.fsync(number)
        except OSError as error:
            os.ftruncate(number, before)
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def _end_of_last_line(file: BinaryIO) -> int:
    """Return where the last whole line of a file ends."""
    at = file.seek(0, os.SEEK_END)
    while at > 0:
        begin = max(at - 65_536, 0)
        file.seek(begin)
        newline = file.read(at - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return 0


def _keep_name(path: Path) -> None:
    """Have a new file's name survive a crash, too."""
    number = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
