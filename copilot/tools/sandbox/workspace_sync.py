"""Lay a session's files out in a folder and store what changed there, so that any worker can serve any call.

The folder is read only after every process that could write to it has ended, and even then through
descriptors alone, see `directory_tree`.
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

from config.core.errors import NotFound, RequestRefused
from config.core.json_values import parse_uuid
from copilot.chat import provenance
from copilot.files import services as files
from copilot.models import Message, WorkspaceFile
from copilot.tools.sandbox import directory_tree
from copilot.tools.sandbox.directory_tree import UNREADABLE, DirectoryTree, FileIdentity, PathRefused

FOLDERS_ARCHIVE = "folders.tar"  # a workspace has no folders, so files in folders are stored in one archive
MAX_SAVED_FILES = 200  # files per call
MAX_LAID_OUT_FILES = 500  # the newest files of a session
MAX_LAID_OUT_BYTES = 256 * 2**20
MAX_SCANNED_NAMES = 20_000  # a program can make more files than anybody needs
MAX_READ_BYTES = 2**30  # of one folder, holes included: a sparse file can claim to be far larger than it is
TOO_LARGE_NOTE = "too much for one call"
CHANGED_NOTE = "it changed while it was read"
_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class WorkspaceLayout:
    """The folder before a call: digests by path, and the names left out for lack of space or for the scan."""

    digests: dict[str, str]
    left_out: list[str]
    unsafe: list[str]
    sources: tuple[str, ...] = ()  # untrusted origins of the files, any of which a program may print


@dataclass(frozen=True, kw_only=True)
class SavedChanges:
    files: list[WorkspaceFile]
    left_out: list[str]  # beyond what one call may save
    failed: list[str]  # with the reason


def lay_out_files(owner_id: int, session_id: UUID, folder: Path) -> WorkspaceLayout:
    """Write the session's files into `folder`: the newest of each name, and attachments."""
    left_out: list[str] = []
    unsafe: list[str] = []
    bytes_left = MAX_LAID_OUT_BYTES
    wanted = _newest_files(owner_id, session_id)
    written: list[WorkspaceFile] = []
    with DirectoryTree(folder) as tree:
        # Folders come first, because a file wins over a folder of the same name.
        for name in sorted(wanted, key=lambda name: name != FOLDERS_ARCHIVE):
            file = wanted[name]
            if file.scan not in files.USABLE_SCANS:
                unsafe.append(name)
            elif file.size_bytes > bytes_left or not _write_file(file, tree):
                left_out.append(name)
            else:
                bytes_left -= file.size_bytes
                written.append(file)
        digests = _read_contents(tree).digests
    sources = provenance.list_sources_of_files(written, session_id=session_id)
    return WorkspaceLayout(digests=digests, left_out=left_out, unsafe=unsafe, sources=sources)


def save_changes(
    owner_id: int, session_id: UUID, call_id: str, folder: Path, before: WorkspaceLayout
) -> SavedChanges:
    """Store what is new or different. Whatever cannot be stored is named in the result."""
    with DirectoryTree(folder) as tree:
        after = _read_contents(tree)
        digests = after.digests
        names = sorted(
            path for path in digests if "/" not in path and before.digests.get(path) != digests[path]
        )
        if _nested_paths(digests) != _nested_paths(before.digests):
            names.insert(0, FOLDERS_ARCHIVE)
        saved = SavedChanges(files=[], left_out=names[MAX_SAVED_FILES:], failed=[])
        if len(digests) == MAX_SCANNED_NAMES:
            saved.failed.append(f"whatever comes after the first {MAX_SCANNED_NAMES:,} names")
        for name in names[:MAX_SAVED_FILES]:
            if digests.get(name) == TOO_LARGE_NOTE:
                saved.failed.append(f"{name}: {TOO_LARGE_NOTE}")
                continue
            try:
                with (
                    _pack_folders(tree, after)
                    if name == FOLDERS_ARCHIVE
                    else _open_unchanged(tree, name, after) as content
                ):
                    saved.files.append(
                        files.store_file(
                            owner_id,
                            name=name,
                            content=content,
                            source="agent",
                            session_id=session_id,
                            call_id=call_id,
                        )
                    )
            except RequestRefused as refusal:
                saved.failed.append(f"{name}: {refusal.code}")
            except OSError as problem:
                saved.failed.append(f"{name}: {problem.strerror or CHANGED_NOTE}")
    return saved


def remove_folder(folder: Path) -> None:
    """Delete a folder even if a program removed permissions or nested it deeper than PATH_MAX.

    rm follows no links. Restoring permissions works, and is safe, only for the owner of the files.
    """
    for words in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*words, "--", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
        if not os.path.lexists(folder):
            return


# --- From rows to disk -------------------------------------------------------------------------------


def _newest_files(owner_id: int, session_id: UUID) -> dict[str, WorkspaceFile]:
    found: dict[str, WorkspaceFile] = {}
    offset, more = 0, True
    while more and len(found) < MAX_LAID_OUT_FILES:
        page = files.get_file_page(owner_id, session_id=session_id, limit=files.MAX_PAGE_FILES, offset=offset)
        for file in page.items:
            found.setdefault(file.name, file)
        offset, more = offset + files.MAX_PAGE_FILES, page.has_more
    for file in _attached_files(owner_id, session_id):
        found.setdefault(file.name, file)
    return found


def _attached_files(owner_id: int, session_id: UUID) -> Iterator[WorkspaceFile]:
    rows = Message.objects.filter(session_id=session_id, kind=Message.Kind.USER).exclude(attachments=[])
    for attachments in rows.order_by("-created_at").values_list("attachments", flat=True)[
        :MAX_LAID_OUT_FILES
    ]:
        for attachment in attachments:
            file_id = parse_uuid(str(attachment.get("file_id", "")))
            if file_id is None:
                continue
            try:
                yield files.get_file(owner_id, file_id)
            except NotFound:
                continue


def _write_file(file: WorkspaceFile, tree: DirectoryTree) -> bool:
    """Write a file, and return False if it could not be written, such as when a folder is in its way."""
    try:
        with files.open_file(file) as content:
            if file.name == FOLDERS_ARCHIVE:
                return _unpack_archive(content, tree)
            with tree.create_file(file.name) as target:
                shutil.copyfileobj(content, target)
    except (RequestRefused, OSError, PathRefused):
        return False
    return True


def _unpack_archive(content: IO[bytes], tree: DirectoryTree) -> bool:
    """Unpack plain files and folders inside the tree. Anybody may have uploaded an archive of this name."""
    names = 0
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                names += 1 + _unpack_member(archive, member, tree)
                if names > MAX_SCANNED_NAMES:  # includes the folders that a single long path makes
                    return False
    # ValueError includes PathRefused. The others come from bad dates and endless chains of headers.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, tree: DirectoryTree) -> int:
    """Unpack one member, and return how many folders were made.

    Done by hand because `extract` has filters only since Python 3.11.4.
    """
    parts = directory_tree.split_path(member.name)
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


# --- From disk to rows -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _FolderContents:
    digests: dict[str, str]  # by relative path; those of folders end in a slash
    identities: dict[str, FileIdentity]


def _read_contents(tree: DirectoryTree) -> _FolderContents:
    """Hash regular files. Links, pipes, sockets and devices are ignored."""
    digests: dict[str, str] = {}
    identities: dict[str, FileIdentity] = {}
    bytes_left = MAX_READ_BYTES
    for entry in tree.walk():
        if len(digests) == MAX_SCANNED_NAMES:
            break
        if entry.is_folder:
            digests[entry.path + "/"] = entry.problem
        elif entry.is_file and entry.status.st_size > bytes_left:
            digests[entry.path] = TOO_LARGE_NOTE
        elif entry.is_file:
            bytes_left -= entry.status.st_size
            identities[entry.path] = FileIdentity(entry.status)
            digests[entry.path] = _hash_entry(entry)
    return _FolderContents(digests=digests, identities=identities)


def _hash_entry(entry: directory_tree.TreeEntry) -> str:
    """Hash no more bytes than the known size: a file that grows must not keep us reading."""
    try:
        with directory_tree.open_regular_file(entry.parent, entry.name) as content:
            digest = hashlib.sha256()
            left = entry.status.st_size
            while left > 0 and (piece := content.read(min(left, _CHUNK_BYTES))):
                digest.update(piece)
                left -= len(piece)
            return digest.hexdigest()
    except OSError:
        return UNREADABLE  # differs from what was there, so that storing it fails by name


def _open_unchanged(tree: DirectoryTree, path: str, contents: _FolderContents) -> io.BufferedReader:
    content = tree.open_file(path)
    if FileIdentity(os.fstat(content.fileno())) != contents.identities.get(path):
        content.close()
        raise OSError(errno.ESTALE, CHANGED_NOTE)
    return content


def _nested_paths(digests: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in digests.items() if "/" in path}


def _pack_folders(tree: DirectoryTree, contents: _FolderContents) -> IO[bytes]:
    """Pack everything in folders into one archive, or raise: a partial archive would look complete."""
    nested = _nested_paths(contents.digests)
    for problem in (TOO_LARGE_NOTE, directory_tree.TOO_DEEP):
        if problem in nested.values():
            raise OSError(errno.EFBIG, problem)
    with ExitStack() as undo:
        packed = undo.enter_context(tempfile.TemporaryFile())
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(nested):
                _pack_member(archive, tree, path, contents)
        packed.seek(0)
        undo.pop_all()  # the caller closes it
    return packed


def _pack_member(archive: tarfile.TarFile, tree: DirectoryTree, path: str, contents: _FolderContents) -> None:
    """Add one name, without the account that wrote it. Hard links become separate files."""
    member = tarfile.TarInfo(path.rstrip("/"))
    if path.endswith("/"):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        member.mtime = tree.stat_folder(path).st_mtime
        archive.addfile(member)
        return
    with _open_unchanged(tree, path, contents) as content:
        status = os.fstat(content.fileno())
        member.size, member.mtime = status.st_size, status.st_mtime
        member.mode = 0o755 if status.st_mode & 0o100 else 0o644
        archive.addfile(member, content)
