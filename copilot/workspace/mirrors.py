"""A session's files as a folder on disk, and what changed there as files again, so that any worker serves any call (A23.4)."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import UUID

from copilot.commands import as_uuid
from copilot.errors import NotFound, Refused
from copilot.models import Message, WorkspaceFile
from copilot.workspace import files

FOLDERS = "folders.tar"  # names in a workspace have no folders, so what lies in some is kept together
MAX_SAVED = 200  # files per call
MAX_LAID_OUT = 500  # the newest names of a session
MAX_LAID_OUT_BYTES = 256 * 2**20
MAX_LOOKED_AT = 20_000  # a program can make more files than anybody wants back
MAX_READ_BYTES = 2**30  # of one folder, holes included: a file can be said to be far larger than it is
UNREADABLE = "unreadable"
UNREAD = "too much for one call"
_NO_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a program may have left links and pipes to trap us


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What lay in the folder before a call: digests by path, and the names that found no room, or passed no scan."""

    digests: dict[str, str]
    left_out: list[str]
    unsafe: list[str]


@dataclass(frozen=True, kw_only=True)
class Saved:
    files: list[WorkspaceFile]
    left_out: list[str]  # beyond what one call may save
    failed: list[str]  # with the reason


def lay_out(owner_id: int, session_id: UUID, folder: Path) -> Layout:
    """Write the session's files into `folder`, the newest of each name, attachments included."""
    left_out: list[str] = []
    unsafe: list[str] = []
    room = MAX_LAID_OUT_BYTES
    wanted = _newest(owner_id, session_id)
    for name in sorted(wanted, key=lambda name: name != FOLDERS):  # folders first: a file wins over a folder
        file = wanted[name]
        if file.scan not in files.USABLE:
            unsafe.append(name)
        elif file.size_bytes > room or not _written(file, folder):
            left_out.append(name)
        else:
            room -= file.size_bytes
    return Layout(digests=_digests(folder), left_out=left_out, unsafe=unsafe)


def save_changes(owner_id: int, session_id: UUID, call_id: str, folder: Path, before: Layout) -> Saved:
    """Store what is new or different; what cannot be stored is named, never dropped in silence."""
    after = _digests(folder)
    names = sorted(path for path in after if "/" not in path and before.digests.get(path) != after[path])
    if _nested(after) != _nested(before.digests):
        names.insert(0, FOLDERS)
    saved = Saved(files=[], left_out=names[MAX_SAVED:], failed=[])
    if len(after) == MAX_LOOKED_AT:
        saved.failed.append(f"whatever comes after the first {MAX_LOOKED_AT:,} names")
    for name in names[:MAX_SAVED]:
        if after.get(name) == UNREAD:
            saved.failed.append(f"{name}: {UNREAD}")
            continue
        try:
            with _packed(folder, after) if name == FOLDERS else _opened(folder / name) as content:
                saved.files.append(
                    files.store(
                        owner_id,
                        name=name,
                        content=content,
                        source="agent",
                        session_id=session_id,
                        call_id=call_id,
                    )
                )
        except Refused as refusal:
            saved.failed.append(f"{name}: {refusal.code}")
        except OSError as problem:
            saved.failed.append(f"{name}: {problem.strerror}")
    return saved


def remove(folder: Path) -> None:
    """Delete a folder, though a program may have closed parts of it, or nested it deeper than a path can say."""
    for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*words, "--", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603


# --- from rows to disk -------------------------------------------------------------------------------


def _newest(owner_id: int, session_id: UUID) -> dict[str, WorkspaceFile]:
    found: dict[str, WorkspaceFile] = {}
    offset, more = 0, True
    while more and len(found) < MAX_LAID_OUT:
        page = files.page(owner_id, session_id=session_id, limit=files.PAGE_FILES, offset=offset)
        for file in page.items:
            found.setdefault(file.name, file)
        offset, more = offset + files.PAGE_FILES, page.has_more
    for file in _attached(owner_id, session_id):
        found.setdefault(file.name, file)
    return found


def _attached(owner_id: int, session_id: UUID) -> Iterator[WorkspaceFile]:
    rows = Message.objects.filter(session_id=session_id, kind=Message.Kind.USER).exclude(attachments=[])
    for attachments in rows.order_by("-created_at").values_list("attachments", flat=True)[:MAX_LAID_OUT]:
        for attachment in attachments:
            file_id = as_uuid(str(attachment.get("file_id", "")))
            if file_id is None:
                continue
            try:
                yield files.get(owner_id, file_id)
            except NotFound:
                continue


def _written(file: WorkspaceFile, folder: Path) -> bool:
    """Whether the file is on disk now; one that a folder is in the way of is not."""
    try:
        with files.open(file) as content:
            if file.name == FOLDERS:
                return _unpacked(content, folder)
            with (folder / file.name).open("wb") as target:
                shutil.copyfileobj(content, target)
    except (Refused, OSError):
        return False
    return True


def _unpacked(content: IO[bytes], folder: Path) -> bool:
    """Plain files and folders only, and never outside: anybody may have uploaded an archive of this name."""
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_LOOKED_AT:
                    return False
                if not (folder / member.name).resolve().is_relative_to(folder.resolve()):
                    return False
                _unpack(archive, member, folder / member.name)
    except (
        tarfile.TarError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # a name, a date, a chain of headers
        return False
    return True


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """By hand: the filters of `extract` came with Python 3.11.4, and Debian's is older."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isreg() and not member.issparse():
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None  # a regular file has one
        with content, path.open("wb") as target:
            shutil.copyfileobj(content, target)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
        os.utime(path, (member.mtime, member.mtime))


# --- from disk to rows -------------------------------------------------------------------------------


def _digests(folder: Path) -> dict[str, str]:
    """What lies in the folder, by relative path, as far as one looks."""
    return dict(itertools.islice(_entries(folder), MAX_LOOKED_AT))


def _entries(folder: Path) -> Iterator[tuple[str, str]]:
    """Folders end in a slash; links, pipes and devices are nobody's files."""
    closed: list[OSError] = []
    room = MAX_READ_BYTES
    for parent, names, leaves in os.walk(folder, onerror=closed.append):
        within = os.path.relpath(parent, folder)
        for name in sorted(names):
            if not os.path.islink(os.path.join(parent, name)):
                yield os.path.normpath(os.path.join(within, name)) + "/", ""
        for leaf in sorted(leaves):
            path = os.path.join(parent, leaf)
            if (size := _size(path)) is not None:
                fits = size <= room
                room -= size if fits else 0
                yield os.path.normpath(os.path.join(within, leaf)), _digest(path) if fits else UNREAD
    for problem in closed:
        yield os.path.relpath(problem.filename, folder) + "/", UNREADABLE


def _size(path: str) -> int | None:
    """None for what is no file; what cannot be looked at is taken for one, so that storing it fails by name."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _digest(path: str) -> str:
    try:
        with _opened(path) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return UNREADABLE  # differs from what was there, so that storing it fails by name


def _opened(path: str | Path) -> io.BufferedReader:
    return io.BufferedReader(io.FileIO(os.open(path, _NO_LINKS), "r"))


def _nested(digests: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in digests.items() if "/" in path}


def _packed(folder: Path, after: dict[str, str]) -> IO[bytes]:
    """One archive of everything that lies in folders, or nothing: half of it would look like all."""
    if UNREAD in _nested(after).values():
        raise OSError(errno.EFBIG, UNREAD)
    with ExitStack() as undo:
        packed = undo.enter_context(tempfile.TemporaryFile())
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(_nested(after)):
                archive.add(folder / path, arcname=path.rstrip("/"), recursive=False, filter=_anonymous)
        packed.seek(0)
        undo.pop_all()  # the caller closes it
    return packed


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
