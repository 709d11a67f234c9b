"""Files are looked through before anybody may have them, where a hook says how (S4)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO
from uuid import UUID

import pytest
from django.core import mail
from django.utils import timezone

from config.core.errors import ScanFailed
from copilot import checks, tasks
from copilot.files import clamav, virus_scan, zip_stream
from copilot.files import services as files
from copilot.models import Message, WorkspaceFile
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, program

EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
FILES = f"{V1}/files"
Sent = list[tuple[UUID, int]]


def scan(stream: IO[bytes], meta: virus_scan.ScannedFile) -> str:
    """A hook that knows one virus, and fails where it is told to."""
    content = stream.read()
    if b"BROKEN" in content:
        raise RuntimeError("the scanner is away")
    if b"ODD" in content:
        return "perhaps"
    assert len(content) == meta.size_bytes
    return "infected" if b"EICAR" in content else "clean"


not_callable = "not a hook"


@pytest.fixture
def sent(settings, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The hook is on; what would be sent to workers is kept."""
    settings.WORKSPACE_SCAN_HOOK = "tests.copilot.files.test_virus_scan.scan"
    kept: Sent = []

    def keep(*, args: tuple[str], countdown: int, retry: bool) -> None:
        kept.append((UUID(args[0]), countdown))

    monkeypatch.setattr(tasks.scan_file, "apply_async", keep)
    return kept


def stored(content: bytes, name: str = "a.txt", session_id: UUID | None = None) -> WorkspaceFile:
    return files.store_file(
        factories.ada().pk, name=name, content=content, source="upload", session_id=session_id
    )


def state(file: WorkspaceFile) -> str:
    file.refresh_from_db()
    return file.scan


@pytest.mark.django_db(transaction=True)
def test_a_pending_file_is_not_served_until_it_is_clean(sent: Sent) -> None:
    """S4: neither downloadable nor readable by tools"""
    file, client = stored(b"fine"), program(factories.ada())
    assert (file.scan, sent) == ("pending", [(file.id, 0)])
    refused = client.get(f"{FILES}/{file.id}/download")
    assert (refused.status_code, code_of(refused)) == (409, "scan_pending")
    assert files.resolve_attachments(factories.ada().pk, [str(file.id)]) == ([], [str(file.id)])
    tasks.scan_file(str(file.id))
    assert state(file) == "clean"
    assert file.scanned_at is not None
    assert b"".join(client.get(f"{FILES}/{file.id}/download").streaming_content) == b"fine"


@pytest.mark.django_db(transaction=True)
def test_a_virus_is_closed_away_and_its_owner_told(sent: Sent) -> None:
    """A-S4.5"""
    session, client = factories.session(), program(factories.ada())
    bad, good, other = (
        stored(EICAR, "bad.txt", session.id),
        stored(b"1", "good.txt"),
        stored(b"2", "other.txt"),
    )
    for file in (bad, good, other):
        tasks.scan_file(str(file.id))
    assert [state(file) for file in (bad, good, other)] == ["infected", "clean", "clean"]
    for path in (f"{FILES}/{bad.id}/download", f"{FILES}/{bad.id}/download?inline=1"):
        refused = client.get(path)
        assert (refused.status_code, code_of(refused)) == (403, "quarantined")
    assert client.get(f"{FILES}/{bad.id}").json()["scan"] == "infected"
    ids = [str(file.id) for file in (bad, good, other)]
    archive = b"".join(client.post(f"{FILES}/zip", {"ids": ids}, content_type=JSON).streaming_content)
    assert b"EICAR" not in archive
    assert [file.name for file in zip_stream.plan_archive([bad, good]).files] == ["good.txt"]
    [letter] = mail.outbox
    assert (letter.to, "bad.txt" in letter.body) == (["ada@example.com"], True)
    assert Message.objects.get(session=session, kind="notice").data == {"code": "file_quarantined"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("content", [b"BROKEN", b"ODD"])
def test_a_hook_that_fails_is_asked_three_times_more(sent: Sent, content: bytes) -> None:
    """S4: then the file stays closed"""
    file, client = stored(content), program(factories.ada())
    for failures in range(1, 4):
        tasks.scan_file(str(file.id))
        assert (state(file), len(sent)) == ("pending", failures + 1)
    assert [later for _, later in sent] == [0, 60, 120, 240]
    tasks.scan_file(str(file.id))
    assert (state(file), len(sent)) == ("failed", 4)
    assert code_of(client.get(f"{FILES}/{file.id}/download")) == "scan_pending"
    tasks.scan_file(str(file.id))
    assert state(file) == "failed"
    again = client.post(f"{FILES}/{file.id}/scan")
    assert (again.status_code, again.json()["scan"]) == (202, "pending")
    assert sent[4:] == [(file.id, 0)]
    client.post(f"{FILES}/{file.id}/scan")  # it is on its way already
    assert len(sent) == 5
    assert program(factories.bob()).post(f"{FILES}/{file.id}/scan").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_scan_lost_on_its_way_is_sent_again(sent: Sent) -> None:
    """S4"""
    lost, fresh = stored(b"a"), stored(b"b")
    WorkspaceFile.objects.filter(pk=lost.pk).update(created_at=timezone.now() - timedelta(minutes=16))
    sent.clear()
    tasks.resend_lost_scans()
    assert sent == [(lost.id, 0)]
    assert state(fresh) == "pending"


@pytest.mark.django_db(transaction=True)
def test_files_that_wait_for_a_hook_taken_away_are_usable(sent: Sent, settings) -> None:
    """S4: unset means unscanned"""
    file = stored(b"a")
    settings.WORKSPACE_SCAN_HOOK = ""
    tasks.scan_file(str(file.id))
    assert state(file) == "unscanned"
    assert stored(b"b").scan == "unscanned"


@pytest.mark.django_db(transaction=True)
def test_models_do_not_see_a_picture_that_waits(sent: Sent) -> None:
    """S4"""
    assert files.load_image(stored(b"\x89PNG\r\n\x1a\n" + b"\0" * 32)) is None


@pytest.mark.parametrize(
    "name",
    [
        "nowhere.scan",
        "tests.copilot.files.test_virus_scan.nothing",
        "tests.copilot.files.test_virus_scan.not_callable",
    ],
)
def test_a_hook_that_is_not_there_stops_the_boot(settings, name: str) -> None:
    """S20"""
    settings.WORKSPACE_SCAN_HOOK = name
    assert [found.id for found in checks.check_scan_hook(None)] == ["copilot.E007"]
    settings.WORKSPACE_SCAN_HOOK = "copilot.files.clamav.scan"
    assert checks.check_scan_hook(None) == []


# --- ClamAV ------------------------------------------------------------------------------------------


@contextmanager
def clamd(answer: Callable[[bytes], bytes], *, unix: str = "", greedy: bool = True) -> Iterator[str]:
    """A daemon for one conversation; its address."""
    listener = socket.socket(socket.AF_UNIX) if unix else socket.socket()
    listener.bind(unix or ("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as incoming:
            assert incoming.read(10) == b"zINSTREAM\0"
            content = b""
            while greedy and (length := struct.unpack("!I", incoming.read(4))[0]):
                content += incoming.read(length)
            peer.sendall(answer(content))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"unix:{unix}" if unix else f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(10)
        listener.close()


def verdict(content: bytes) -> bytes:
    return b"stream: Eicar-Test-Signature FOUND\0" if b"EICAR" in content else b"stream: OK\0"


def look(settings, content: bytes, path, address: str) -> str:
    settings.CLAMD_ADDRESS = address
    (path / "content").write_bytes(content)
    with (path / "content").open("rb") as stream:
        return clamav.scan(stream, None)


@pytest.mark.parametrize(
    ("content", "found"), [(b"", "clean"), (b"x" * 200_000, "clean"), (EICAR, "infected")]
)
def test_clamd_is_sent_the_bytes_and_believed(settings, tmp_path, content: bytes, found: str) -> None:
    """S4: a ClamAV hook is shipped"""
    seen: list[bytes] = []

    def answer(came: bytes) -> bytes:
        seen.append(came)
        return verdict(came)

    with clamd(answer) as address:
        assert look(settings, content, tmp_path, address) == found
    assert seen == [content]
    with clamd(verdict, unix=str(tmp_path / "clamd")) as address:
        assert look(settings, content, tmp_path, address) == found


@pytest.mark.parametrize(
    "answer", [b"INSTREAM size limit exceeded. ERROR\0", b"", b"stream: no idea\0", b"x" * 5000]
)
def test_anything_but_a_verdict_of_clamd_is_a_failure(settings, tmp_path, answer: bytes) -> None:
    """S4"""
    with clamd(lambda _: answer) as address, pytest.raises(ScanFailed):
        look(settings, b"content", tmp_path, address)


def test_clamd_that_is_away_is_a_failure(settings, tmp_path) -> None:
    """S4"""
    for address in ("127.0.0.1:1", f"unix:{tmp_path}/nothing"):
        with pytest.raises(OSError):  # noqa: PT011 - the kernel's words
            look(settings, b"content", tmp_path, address)
