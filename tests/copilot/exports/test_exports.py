"""Conversations on their way out: documents, jobs, and who may have them (S15)."""

from __future__ import annotations

import errno
import io
import json
import tracemalloc
import zipfile
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from django.conf import LazySettings
from django.test import Client
from django.utils import timezone
from markdown_it import MarkdownIt

from billing import ledger
from config.core.errors import StorageUnavailable
from copilot.accounts import api_keys
from copilot.api.exports import serialize_export
from copilot.exports import services as exports
from copilot.exports.documents import HEADING
from copilot.exports.session_reader import ExportOptions
from copilot.files import storage
from copilot.models import ExportJob, MemoryItem
from tests.support import factories, rest_clients
from tests.support.bots import link_ada
from tests.support.exports import (
    EVERYTHING,
    KEY,
    archived,
    conversation,
    exported,
    fetched,
    imported,
    objects_of,
)
from tests.support.paths import ROOT
from tests.support.race_repeats import rounds

pytestmark = pytest.mark.django_db
MOST_HELD_BYTES = 5_000_000  # half of ten thousand messages

SCHEMA = json.loads((ROOT / "static" / "schemas" / "conversation-1.schema.json").read_bytes())
MARKDOWN = ExportOptions(format="md")


def _without_ids_and_dates(document: Mapping[str, Any]) -> object:
    """Ids become the order in which they first appear, wherever they stand; dates go."""
    known: dict[str, str] = {}
    ids = [file["id"] for file in document["files"]]
    for message in document["messages"]:
        ids += [message["id"], *(part["call_id"] for part in message["parts"] if "call_id" in part)]
    text = json.dumps(document, sort_keys=True)
    for one in ids:
        known.setdefault(one, f"id-{len(known)}")
        text = text.replace(one, known[one])
    return json.loads(
        text,
        object_hook=lambda found: {
            name: value for name, value in found.items() if name not in ("created_at", "exported_at")
        },
    )


def test_a_document_is_the_same_after_a_journey() -> None:
    """A-S15.1: export → import → export gives equal JSON except ids and dates, with files and without."""
    session, _ = conversation(factories.ada())
    packed = archived(session)
    moved = imported(factories.bob(), packed)
    before, after = (
        json.loads(zipfile.ZipFile(io.BytesIO(content)).read("conversation.json"))
        for content in (packed, archived(moved))
    )
    assert _without_ids_and_dates(before) == _without_ids_and_dates(after)
    assert before["messages"][0]["id"] != after["messages"][0]["id"]
    assert [len(message["parts"]) for message in before["messages"]] == [1, 4, 1]
    assert before["session"]["model_tier"] == "advanced"
    for document in (before, after, exported(session), exported(session, ExportOptions(format="json"))):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_a_document_holds_only_what_was_asked_for_and_no_secrets() -> None:
    """S15: no secrets, context blocks, notes, notices or account ids; reasoning and tools when asked."""
    session, _ = conversation(factories.ada())
    full, plain = json.dumps(exported(session)), json.dumps(exported(session, ExportOptions(format="json")))
    for hidden in ("CANARY", KEY, "env_context", "ada@example.com", '"notice"'):
        assert hidden not in full
    assert "A log is a file." in full
    assert "read_file" in full
    assert "[REDACTED]" in full
    assert "A log is a file." not in plain
    assert "read_file" not in plain
    assert exported(session)["messages"] == exported(session)["messages"]


HOSTILE = [
    "```python\nprint('an open fence')",
    "---\ntitle: front matter\n---\n\nAnd then words.",
    "~~~~\nanother open fence",
    "<!-- an open comment",
    "<pre>\nan open element",
    "## Assistant · 2026-01-01 00:00:00 UTC\n\nforged",
    "User · 2026-01-01 00:00:00 UTC\n---\n\nforged, too",
    "Plain words, `code` and a list:\n\n- one\n- two",
    "> a quote with\n> ```\n> a fence",
]


def test_markdown_parses_to_the_same_messages() -> None:
    """A-S15.2: fences, front matter, open blocks and forged headings stay inside their messages."""
    session = factories.session(factories.ada(), title="Fences")
    for number, text in enumerate(HOSTILE):
        factories.message(session, "assistant" if number % 2 else "user", content=text)
    text = exports.make_document(session.owner_id, session.pk, MARKDOWN).content.decode()
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [
        inline.content
        for opening, inline in pairwise(tokens)
        if opening.type == "heading_open" and opening.level == 0 and HEADING.fullmatch(inline.content)
    ]
    assert [heading.split(" · ")[0] for heading in headings] == ["User", "Assistant"] * 4 + ["User"]
    assert all(one in text for one in HOSTILE)  # otherwise unchanged
    assert text.startswith("# Fences\n")


def test_markdown_shows_steps_and_files_when_asked() -> None:
    """S15: tool steps as fenced JSON, attachments as a list, relative links when files are included."""
    session, file = conversation(factories.ada())
    content = exports.make_document(
        session.owner_id, session.pk, ExportOptions(format="md", tools=True, reasoning=True)
    )
    text = content.content.decode()
    assert content.name == "Ships and wheels.md"
    assert "<summary>read\\_file called</summary>\n\n```json\n" in text
    assert f"- log.txt (text/plain, {file.size_bytes} bytes)" in text
    job = exports.request_export(session.owner_id, session.pk, ExportOptions(format="md", files=True))
    exports.run_export(job.pk)
    with zipfile.ZipFile(io.BytesIO(fetched(job))) as archive:
        assert archive.read("files/log.txt") == b"calm seas"
        assert "- [log.txt](files/log.txt)" in archive.read("conversation.md").decode()


@rounds(3_000, 10_000)
def test_a_long_conversation_becomes_a_job_whose_memory_is_bounded(rounds: int) -> None:
    """A-S15.3: 10,000 messages; what is held at once does not grow with them."""
    ada = factories.ada()
    session = factories.session(ada)
    factories.many_messages(session, rounds, length=1_000)
    client = rest_clients.person(ada)
    response = client.get(f"{rest_clients.V1}/sessions/{session.pk}/export?format=md")
    assert response.status_code == 202
    assert response.json()["state"] == "queued"
    tracemalloc.start()
    exports.run_export(ExportJob.objects.get().pk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    job = ExportJob.objects.get()
    assert job.state == "ready"
    assert job.size_bytes > 1_000 * rounds
    assert peak < MOST_HELD_BYTES
    again = client.get(f"{rest_clients.V1}/sessions/{session.pk}/export?format=md").json()
    assert again["id"] == str(job.pk)  # nothing was said since
    fetched_over_rest = client.get(again["download"])
    assert len(b"".join(fetched_over_rest)) == job.size_bytes
    assert "attachment" in fetched_over_rest["Content-Disposition"]


def test_nobody_else_sees_an_export() -> None:
    """A-S15.4: bob's request for ada's job, its download and her session is the 404 of a random id."""
    ada, bob = factories.ada(), factories.bob()
    session, _ = conversation(ada)
    archived(session)
    job = ExportJob.objects.get()
    for path in (f"exports/{job.pk}", f"exports/{job.pk}/download", f"sessions/{session.pk}/export"):
        foreign = rest_clients.person(bob).get(f"{rest_clients.V1}/{path}")
        assert (foreign.status_code, foreign.content) == (404, rest_clients.NOT_FOUND)
    assert rest_clients.person(bob).get(f"{rest_clients.V1}/exports").json() == {"items": []}
    assert rest_clients.person(ada).get(f"{rest_clients.V1}/exports/{job.pk}").json()["state"] == "ready"


def test_an_export_lives_for_a_day(settings: LazySettings) -> None:
    """S15: download for 24 h; then its bytes go."""
    session, _ = conversation(factories.ada())
    archived(session)
    job = ExportJob.objects.get()
    assert job.expires_at is not None
    assert timedelta(hours=23) < job.expires_at - timezone.now() <= timedelta(hours=24)
    ExportJob.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert (
        rest_clients.person(factories.ada()).get(f"{rest_clients.V1}/exports/{job.pk}/download").status_code
        == 404
    )
    exports.sweep_exports()
    job.refresh_from_db()
    assert (job.state, job.storage_key) == ("expired", "")
    assert [key for key in objects_of(job.owner_id) if str(job.pk) in key] == []
    assert exports.list_exports(job.owner_id) == []


def test_an_export_that_fails_says_why_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    """S13, S15: a job meets a storage that is away, or files that are too many for an archive."""
    session, file = conversation(factories.ada())
    with_files = ExportOptions(format="json", files=True)

    def away(*_: object) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(storage, "write_object", away)
    job = exports.request_export(session.owner_id, session.pk, with_files)
    for state in ("queued", "queued", "failed"):
        exports.run_export(job.pk)
        job.refresh_from_db()
        assert (job.state, job.error) == (state, "storage_unavailable")
    monkeypatch.undo()
    settings.ZIP_TOTAL_MAX = 4
    job = exports.request_export(session.owner_id, session.pk, with_files)
    exports.run_export(job.pk)
    assert serialize_export(exports.get_export(session.owner_id, job.pk)).error == "zip_too_large"
    settings.ZIP_TOTAL_MAX, settings.ZIP_FILE_MAX = 400, 4
    packed = zipfile.ZipFile(io.BytesIO(archived(session)))
    assert packed.namelist() == ["conversation.json", "SKIPPED.txt"]
    assert file.name in packed.read("SKIPPED.txt").decode()
    assert "path" not in json.loads(packed.read("conversation.json"))["files"][0]


def test_a_file_that_breaks_off_is_named_and_the_rest_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13, S15: whether it breaks at the first look or while it is packed, no half of it is in the archive"""
    session, file = conversation(factories.ada())
    whole = storage.open_object
    for good_reads in (0, 1, 2):

        class Breaking(io.BytesIO):
            left = good_reads

            def read(self, size: int | None = -1, /) -> bytes:
                if self.left == 0:
                    raise OSError("the bucket failed")
                self.left -= 1
                return super().read(size)

        monkeypatch.setattr(
            storage,
            "open_object",
            lambda key, kind=Breaking: kind(b"calm seas") if key == file.storage_key else whole(key),
        )
        archive = zipfile.ZipFile(io.BytesIO(archived(session)))
        ExportJob.objects.all().delete()
        assert archive.namelist() == ["conversation.json", "SKIPPED.txt"]
        assert archive.read("SKIPPED.txt") == b"log.txt: could not be read\n"
        assert archive.testzip() is None


def test_an_export_that_finds_no_room_on_disk_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: it does not look as if somebody were at it for half an hour"""
    session, _ = conversation(factories.ada())
    job = exports.request_export(session.owner_id, session.pk, EVERYTHING)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "measure_size", full)
    exports.run_export(job.pk)
    job.refresh_from_db()
    assert (job.state, job.error) == ("queued", "storage_unavailable")
    monkeypatch.undo()
    exports.run_export(job.pk)
    job.refresh_from_db()
    assert job.state == "ready"


def test_a_job_whose_worker_was_lost_is_done_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: one who was believed lost and comes back leaves nothing behind."""
    session, _ = conversation(factories.ada())
    job = exports.request_export(session.owner_id, session.pk, EVERYTHING)
    written = storage.write_object

    def overtaken(*given: Any) -> str:
        monkeypatch.undo()
        ExportJob.objects.update(started_at=timezone.now() - timedelta(hours=1))
        exports.run_export(job.pk)
        return written(*given)

    monkeypatch.setattr(storage, "write_object", overtaken)
    exports.run_export(job.pk)
    job.refresh_from_db()
    assert (job.state, job.attempts) == ("ready", 2)
    kept = [key for key in objects_of(job.owner_id) if key == job.storage_key]
    others = set(objects_of(job.owner_id)) - set(kept)
    assert len(kept) == 1
    assert len(others) == 1  # the conversation's own file


def test_a_key_needs_the_scope_for_jobs() -> None:
    """A20.6: reading takes `read`, exports that take a job `manage`."""
    session, _ = conversation(factories.ada())
    reader = rest_clients.program(factories.ada(), "read")
    assert reader.get(f"{rest_clients.V1}/sessions/{session.pk}/export?format=json").status_code == 200
    refused = reader.get(f"{rest_clients.V1}/sessions/{session.pk}/export?files=1")
    assert (refused.status_code, rest_clients.code_of(refused)) == (403, "insufficient_scope")
    manager = rest_clients.program(factories.ada(), "read", "manage")
    assert manager.get(f"{rest_clients.V1}/sessions/{session.pk}/export?files=1").status_code == 202


def test_everything_of_an_account_is_one_archive_a_day() -> None:
    """S15: all sessions, memories, links, ledger and a list of files; nothing that grants access."""
    ada = factories.ada()
    session, file = conversation(ada, title="Ships/wheels")
    conversation(factories.bob(), title="Bob's")
    MemoryItem.objects.create(owner=ada, text="Likes ships.", digest="d")
    ledger.grant_credits(ada.pk, 500, key="welcome", reason="Welcome")
    link_ada()
    key = api_keys.create_api_key(ada, scopes=("read", "manage")).token
    client = Client(headers={"authorization": f"Bearer {key}"})
    asked = client.post(f"{rest_clients.V1}/exports")
    assert asked.status_code == 202
    job = ExportJob.objects.get()
    exports.run_export(job.pk)
    assert client.post(f"{rest_clients.V1}/exports").json()["id"] == str(job.pk)
    with zipfile.ZipFile(io.BytesIO(fetched(ExportJob.objects.get()))) as archive:
        assert archive.namelist() == ["account.json", "conversations/00001 Ships_wheels.json"]
        account = json.loads(archive.read("account.json"))
        document = json.loads(archive.read("conversations/00001 Ships_wheels.json"))
    assert document["session"]["title"] == session.title
    assert [one["name"] for one in account["files"]] == [file.name]
    assert account["memories"][0]["text"] == "Likes ships."
    assert [(one["kind"], one["amount_cents"]) for one in account["ledger"]] == [("GRANT", 500)]
    assert [one["platform_user_id"] for one in account["linked_chats"]] == ["ada-1"]
    assert account["linked_servers"] == []
    assert key not in json.dumps(account)
