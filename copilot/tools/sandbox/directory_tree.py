"""Read and write directory trees that a hostile program may have laid out, without ever following a link.

Every part of a path is opened by itself, relative to the descriptor of the part before it, and judged by the
open descriptor: a folder that is swapped for a symbolic link between two calls leads nowhere.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_TREE_DEPTH = 100  # folders in folders; archives and builds seldom have more than thirty
MAX_PATH_BYTES = 3_000  # below the kernel's limit for one path
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not block.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE_FLAGS = (
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
)


class PathRefused(ValueError):
    """A path that leaves the tree, or is too long or too deep."""


class FileIdentity:
    """Stat fields that are equal only if the content is the same, as far as the kernel tells."""

    __slots__ = ("_fields",)

    def __init__(self, status: os.stat_result) -> None:
        self._fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileIdentity) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """One name in the tree. `problem` says why a folder was not entered."""

    path: str  # relative to the tree
    name: str
    parent: int  # descriptor of its folder, open until the next entry is requested
    status: os.stat_result
    problem: str = ""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


TOO_DEEP = "nested too deeply"
UNREADABLE = "unreadable"


class DirectoryTree:
    """A directory tree, held by the descriptor of its root."""

    def __init__(self, folder: Path) -> None:
        self._root = os.open(folder, _FOLDER_FLAGS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._root)

    def walk(self) -> Iterator[TreeEntry]:
        """Yield every name once, folders before their content; links, pipes, sockets and devices too.

        One descriptor is open per level, so that deep folders cost no more than others.
        """
        levels = [_OpenFolder(path="", folder=os.dup(self._root))]
        try:
            yield from levels[-1].entries()
            while levels:
                level = levels[-1]
                if not level.waiting:
                    os.close(levels.pop().folder)
                    continue
                name = level.waiting.pop()
                try:
                    folder = os.open(name, _FOLDER_FLAGS, dir_fd=level.folder)
                except OSError:
                    continue  # it is gone by now, or is no longer a folder
                levels.append(_OpenFolder(path=_join_path(level.path, name), folder=folder))
                yield from levels[-1].entries()
        finally:
            for level in levels:
                os.close(level.folder)

    def open_file(self, path: str) -> io.BufferedReader:
        *folders, name = split_path(path)
        with self._opened_folder(folders) as parent:
            return open_regular_file(parent, name)

    def stat_folder(self, path: str) -> os.stat_result:
        with self._opened_folder(split_path(path)) as folder:
            return os.fstat(folder)

    def make_folder(self, path: str) -> int:
        """Make a folder and its parents, and return how many were new."""
        made = 0
        current = os.dup(self._root)
        try:
            for part in split_path(path):
                try:
                    os.mkdir(part, 0o755, dir_fd=current)
                    made += 1
                except FileExistsError:
                    pass
                following = os.open(part, _FOLDER_FLAGS, dir_fd=current)
                os.close(current)
                current = following
        finally:
            os.close(current)
        return made

    def create_file(self, path: str) -> io.BufferedWriter:
        """Open a regular file for writing, new or emptied. Its folder must exist."""
        *folders, name = split_path(path)
        with self._opened_folder(folders) as parent:
            descriptor = os.open(name, _WRITE_FLAGS, 0o644, dir_fd=parent)
        file = io.FileIO(descriptor, "w")
        _check_regular(file)
        return io.BufferedWriter(file)

    def change_owner(self, uid: int, gid: int) -> None:
        os.fchown(self._root, uid, gid)
        for entry in self.walk():
            os.chown(entry.name, uid, gid, dir_fd=entry.parent, follow_symlinks=False)

    def _open_folder(self, parts: list[str]) -> int:
        current = os.dup(self._root)
        for part in parts:
            try:
                following = os.open(part, _FOLDER_FLAGS, dir_fd=current)
            finally:
                os.close(current)
            current = following
        return current

    @contextmanager
    def _opened_folder(self, parts: list[str]) -> Iterator[int]:
        folder = self._open_folder(parts)
        try:
            yield folder
        finally:
            os.close(folder)


def split_path(path: str) -> list[str]:
    """Split a relative path that stays inside the tree."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise PathRefused("a path outside the tree")
    if len(parts) > MAX_TREE_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise PathRefused(TOO_DEEP)
    return parts


def open_regular_file(parent: int, name: str) -> io.BufferedReader:
    """Open a regular file in an open folder for reading; anything else is refused."""
    file = io.FileIO(os.open(name, _READ_FLAGS, dir_fd=parent), "r")
    _check_regular(file)
    return io.BufferedReader(file)


def _check_regular(file: io.FileIO) -> None:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")


class _OpenFolder:
    """An open folder on the way down, and the subfolders that are still to be entered."""

    def __init__(self, *, path: str, folder: int) -> None:
        self.path = path
        self.folder = folder
        self.waiting: list[str] = []

    def entries(self) -> Iterator[TreeEntry]:
        with os.scandir(self.folder) as found:
            for item in found:
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue  # it is gone by now
                path = _join_path(self.path, item.name)
                is_folder = stat.S_ISDIR(status.st_mode)
                problem = _folder_problem(self.folder, item.name, path) if is_folder else ""
                if is_folder and not problem:
                    self.waiting.append(item.name)
                yield TreeEntry(path=path, name=item.name, parent=self.folder, status=status, problem=problem)


def _join_path(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _folder_problem(parent: int, name: str, path: str) -> str:
    try:
        split_path(path)
        os.close(os.open(name, _FOLDER_FLAGS, dir_fd=parent))
    except PathRefused:
        return TOO_DEEP
    except OSError:
        return UNREADABLE
    return ""
