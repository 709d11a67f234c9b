"""Create a conversation with every kind of content, export it and import it again."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from copilot.exports import imports
from copilot.exports import services as exports
from copilot.exports.session_reader import ExportOptions
from copilot.files import services as files
from copilot.files import storage
from copilot.models import ExportJob, Session, WorkspaceFile
from tests.support import factories

EVERYTHING = ExportOptions(format="json", reasoning=True, tools=True)
KEY = "sk-" + "a1B2" * 8  # the shape of a secret


def conversation(owner: User, *, title: str = "Ships and wheels") -> tuple[Session, WorkspaceFile]:
    """Create a conversation with messages, reasoning, tool calls, results, and a file on the first message."""
    session = factories.session(owner, title=title)
    file = files.store_file(
        owner.pk, name="log.txt", content=b"calm seas", source="upload", session_id=session.pk
    )
    view = {"file_id": str(file.pk), "name": file.name, "type": file.mime, "size": file.size_bytes}
    turn = factories.turn(session, "succeeded")
    said = factories.message(session, content="Read the log.", turn=turn, attachments=[view])
    said.tier, said.server_context = "advanced", "<env_context>\nCANARY-CONTEXT\n</env_context>"
    said.save(update_fields=["tier", "server_context"])
    factories.message(session, "reasoning", content="A log is a file.", turn=turn)
    factories.message(
        session,
        "tool_call",
        turn=turn,
        call_id="call-1",
        data={"tool": "read_file", "arguments": {"path": f"workspace://{file.pk}", "key": KEY}},
    )
    result = {"tool": "read_file", "success": True, "preview": "calm seas", "duration_ms": 12}
    factories.message(
        session,
        "tool_result",
        content=f"calm seas {KEY}",
        turn=turn,
        call_id="call-1",
        data={**result, "truncated": False, "file_id": None},
    )
    factories.message(session, "note", content="CANARY-NOTE", turn=turn)
    factories.message(session, "assistant", content=f"Calm seas: [log](workspace://{file.pk})", turn=turn)
    factories.message(session, content="Thanks.", turn=factories.turn(session, "succeeded"))
    factories.message(session, "notice", data={"code": "stopped"})
    return session, file


def exported(session: Session, wanted: ExportOptions = EVERYTHING) -> dict[str, Any]:
    """Return the JSON document of a short session."""
    found: dict[str, Any] = json.loads(exports.make_document(session.owner_id, session.pk, wanted).content)
    return found


def archived(session: Session) -> bytes:
    """Return the archive with all its files, exported in the background."""
    job = exports.request_export(
        session.owner_id, session.pk, ExportOptions(format="json", reasoning=True, tools=True, files=True)
    )
    exports.run_export(job.pk)
    return fetched(ExportJob.objects.get(pk=job.pk))


def fetched(job: ExportJob) -> bytes:
    with files.open_file(exports.get_ready_file(job.owner_id, job.pk)) as stream:
        return stream.read()


def imported(owner: User, document: Mapping[str, object] | bytes, *, force: bool = False) -> Session:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return imports.import_document(owner.pk, io.BytesIO(content), force=force)


def objects_of(owner_id: int) -> list[str]:
    """List the storage keys of an account's files."""
    return [key for key, _ in storage.list_objects(storage.get_owner_prefix(owner_id))]


def packed(entries: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return target.getvalue()


def document(*messages: Mapping[str, object], **changes: object) -> dict[str, Any]:
    """Build a small valid document; each message needs only what differs from the default."""
    said = [
        {
            "id": f"m{number}",
            "sequence": number,
            "branch": 0,
            "role": "user",
            "author": "",
            "created_at": "2026-01-02T03:04:05.678Z",
            "parts": [{"type": "user", "text": "Hello"}],
            "attachments": [],
            **message,
        }
        for number, message in enumerate(messages, start=1)
    ]
    frame: dict[str, Any] = {
        "schema": "pilothouse.conversation/1",
        "exported_at": "2026-01-02T03:04:05.678Z",
        "app_version": "1",
        "session": {"title": "Small", "created_at": "2026-01-02T03:04:05.678Z", "model_tier": ""},
        "messages": said,
        "files": [],
    }
    return frame | changes


def answer(*parts: Mapping[str, object]) -> dict[str, object]:
    return {"role": "assistant", "parts": list(parts)}
