"""Create conversations to share, and read them as visitors."""

from __future__ import annotations

import functools
from typing import Any

from django.test import Client
from django.test.client import ClientHandler

from copilot.files import services as files
from copilot.models import Session, Share, WorkspaceFile
from copilot.sharing import services as sharing
from copilot.sharing.drafts import ShareRequest
from copilot.sharing.services import ShareTerms
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person


def spoken(*lines: str, title: str = "") -> Session:
    """Create a conversation of finished turns: a question, its answer, and so on."""
    session = factories.session(title=title)
    for question, answer in zip(lines[::2], lines[1::2], strict=True):
        turn = factories.turn(session, "succeeded")
        factories.message(session, content=question, turn=turn)
        factories.message(session, "assistant", content=answer, turn=turn)
    return session


def stored(name: str = "a.txt", content: bytes = b"a", session: Session | None = None) -> WorkspaceFile:
    return files.store_file(
        factories.ada().pk,
        name=name,
        content=content,
        source="upload",
        session_id=session.pk if session else None,
    )


def with_files(*named: WorkspaceFile, password: str = "") -> Share:
    """Create a share whose answer names these files, all of which are public."""
    session = spoken("Files?", " ".join(f"workspace://{file.pk}" for file in named))
    asked = ShareRequest(include_files=frozenset(file.pk for file in named))
    return sharing.publish_session(session.owner_id, session.pk, asked, ShareTerms(password=password))


def asked_of(session: Session, **body: object) -> Any:
    return person(session.owner).post(f"{V1}/sessions/{session.pk}/share", body, content_type=JSON)


def shared_page(share: Share, **options: Any) -> Any:
    return stranger().get(f"/share/{share.token}", **options)


def stranger() -> Client:
    """A browser without cookies; all share one application, because loading its middleware is slow."""
    made = Client()
    made.handler = _application()
    return made


@functools.cache
def _application() -> ClientHandler:
    return ClientHandler(enforce_csrf_checks=False)


def status(path: str, client: Client | None = None, **options: Any) -> int:
    """Return the status of a visitor's request; a file in the response is read."""
    response: Any = (client or stranger()).get(path, **options)
    if response.streaming:
        list(response.streaming_content)
    return int(response.status_code)
