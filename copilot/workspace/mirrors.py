"""Lay a session's files out as a folder on disk, and store what changed there, so that any worker serves any call.

The folder is read after every process that could write to it has ended, and even so by descriptors alone, see `trees`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
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
from copilot.workspace import files, trees
from copilot.workspace.trees import UNREADABLE, Identity, PathRefused, Tree

FOLDERS = "folders.tar"  # names in a workspace have no folders, so what lies in some is kept together
MAX_SAVED = 200  # files per call
MAX_LAID_OUT = 500  # the newest names of a session
MAX_LAID_OUT_BYTES = 256 * 2**20
MAX_LOOKED_AT = 20_000  # a program can make more files than anybody wants back
MAX_READ_BYTES = 2**30  # of one folder, holes included: a file can be said to be far larger than it is
UNREAD = "too much for one call"
CHANGED = "it changed while it was read"
_CHUNK_BYTES = 256 * 1024


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
    with Tree(folder) as tree:
        for name in sorted(wanted, key=lambda name: name != FOLDERS):  # folders first: a file wins over one
            file = wanted[name]
            if file.scan not in files.USABLE:
                unsafe.append(name)
            elif file.size_bytes > room or not _written(file, tree):
                left_out.append(name)
            else:
                room -= file.size_bytes
        digests = _look_at(tree).digests
    return Layout(digests=digests, left_out=left_out, unsafe=unsafe)


def save_changes(owner_id: int, session_id: UUID, call_id: str, folder: Path, before: Layout) -> Saved:
    """Store what is new or different; what cannot be stored is named, never dropped in silence."""
    with Tree(folder) as tree:
        after = _look_at(tree)
        digests = after.digests
        names = sorted(
            path for path in digests if "/" not in path and before.digests.get(path) != digests[path]
        )
        if _nested(digests) != _nested(before.digests):
            names.insert(0, FOLDERS)
        saved = Saved(files=[], left_out=names[MAX_SAVED:], failed=[])
        if len(digests) == MAX_LOOKED_AT:
            saved.failed.append(f"whatever comes after the first {MAX_LOOKED_AT:,} names")
        for name in names[:MAX_SAVED]:
            if digests.get(name) == UNREAD:
                saved.failed.append(f"{name}: {UNREAD}")
                continue
            try:
                with _packed(tree, after) if name == FOLDERS else _opened(tree, name, after) as content:
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
                saved.failed.append(f"{name}: {problem.strerror or CHANGED}")
    return saved


def remove(folder: Path) -> None:
    """Delete a folder, though a program may have closed parts of it, or nested it deeper than a path can say.

    rm follows no links. Opening what was closed is only needed, and only harmless, for whoever owns the files.
    """
    for words in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*words, "--", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
        if not os.path.lexists(folder):
            return


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


def _written(file: WorkspaceFile, tree: Tree) -> bool:
    """Whether the file is on disk now; one that a folder is in the way of is not."""
    try:
        with files.open(file) as content:
            if file.name == FOLDERS:
                return _unpacked(content, tree)
            with tree.create_file(file.name) as target:
                shutil.copyfileobj(content, target)
    except (Refused, OSError, PathRefused):
        return False
    return True


def _unpacked(content: IO[bytes], tree: Tree) -> bool:
    """Plain files and folders only, and never outside: anybody may have uploaded an archive of this name."""
    names = 0
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                names += 1 + _unpack(archive, member, tree)
                if names > MAX_LOOKED_AT:  # folders count that a single long path makes
                    return False
    except (
        tarfile.TarError,
        ValueError,  # among them a path that leaves the tree
        OverflowError,
        RecursionError,
    ):  # a name, a date, a chain of headers
        return False
    return True


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree) -> int:
    """Answers how many folders were made. By hand: `extract` has filters only since Python 3.11.4."""
    parts = trees.split(member.name)
    if member.isdir():
        return tree.make_folder(member.name)
    if not member.isreg() or member.issparse() or not parts:
        return 0
    made = tree.make_folder("/".join(parts[:-1]))
    content = archive.extractfile(member)
    assert content is not None  # a regular file has one
    with content, tree.create_file(member.name) as target:
        shutil.copyfileobj(content, target)
        target.flush()
        os.fchmod(target.fileno(), 0o755 if member.mode & 0o100 else 0o644)
        os.utime(target.fileno(), (member.mtime, member.mtime))
    return made


# --- from disk to rows -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Contents:
    digests: dict[str, str]  # by relative path, as far as one looks; those of folders end in a slash
    identities: dict[str, Identity]


def _look_at(tree: Tree) -> _Contents:
    """Links, pipes, sockets and devices are nobody's files."""
    digests: dict[str, str] = {}
    identities: dict[str, Identity] = {}
    room = MAX_READ_BYTES
    for entry in tree.walk():
        if len(digests) == MAX_LOOKED_AT:
            break
        if entry.is_folder:
            digests[entry.path + "/"] = entry.problem
        elif entry.is_file and entry.status.st_size > room:
            digests[entry.path] = UNREAD
        elif entry.is_file:
            room -= entry.status.st_size
            identities[entry.path] = Identity(entry.status)
            digests[entry.path] = _digest(entry)
    return _Contents(digests=digests, identities=identities)


def _digest(entry: trees.Entry) -> str:
    """Of no more bytes than its size was: a file that grows must not keep us reading."""
    try:
        with trees.open_regular(entry.parent, entry.name) as content:
            digest = hashlib.sha256()
            left = entry.status.st_size
            while left > 0 and (piece := content.read(min(left, _CHUNK_BYTES))):
                digest.update(piece)
                left -= len(piece)
            return digest.hexdigest()
    except OSError:
        return UNREADABLE  # differs from what was there, so that storing it fails by name


def _opened(tree: Tree, path: str, contents: _Contents) -> io.BufferedReader:
    """The very file that was looked at."""
    content = tree.open_file(path)
    if Identity(os.fstat(content.fileno())) != contents.identities.get(path):
        content.close()
        raise OSError(errno.ESTALE, CHANGED)
    return content


def _nested(digests: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in digests.items() if "/" in path}


def _packed(tree: Tree, contents: _Contents) -> IO[bytes]:
    """One archive of everything that lies in folders, or nothing: half of it would look like all."""
    nested = _nested(contents.digests)
    for problem in (UNREAD, trees.TOO_DEEP):
        if problem in nested.values():
            raise OSError(errno.EFBIG, problem)
    with ExitStack() as undo:
        packed = undo.enter_context(tempfile.TemporaryFile())
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(nested):
                _pack(archive, tree, path, contents)
        packed.seek(0)
        undo.pop_all()  # the caller closes it
    return packed


def _pack(archive: tarfile.TarFile, tree: Tree, path: str, contents: _Contents) -> None:
    """Every name by itself, hard links too, and without the account that wrote it."""
    member = tarfile.TarInfo(path.rstrip("/"))
    if path.endswith("/"):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        member.mtime = tree.status_of_folder(path).st_mtime
        archive.addfile(member)
        return
    with _opened(tree, path, contents) as content:
        status = os.fstat(content.fileno())
        member.size, member.mtime = status.st_size, status.st_mtime
        member.mode = 0o755 if status.st_mode & 0o100 else 0o644
        archive.addfile(member, content)
