"""Images and files in requests, with OpenAI's own client."""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import openai
import pytest

from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.openai_compat import files as request_files
from copilot.providers import catalogue, catalogue_store
from copilot.tools.web.http_client import PublicHttpClient
from tests.support.turn_engine import until

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


@pytest.fixture
def sighted(monkeypatch):
    """Let every model see images."""
    resolve = catalogue_store.resolve_chain
    monkeypatch.setattr(
        catalogue_store,
        "resolve_chain",
        lambda *args: tuple(replace(entry, supports_images=True) for entry in resolve(*args)),
    )


@contextmanager
def served_image():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "image/png")
            self.end_headers()
            self.wfile.write(PNG)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/dot.png"
        server.shutdown()


def image(url=DATA_URL):
    return {"type": "image_url", "image_url": {"url": url}}


def asked(*parts, text="What is this?"):
    return [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]


def stored():
    return WorkspaceFile.objects.stored().count()


def test_images_are_seen_where_they_were_sent_and_not_kept(ada, client, model, sighted):
    """X1.3: in earlier messages too"""
    client.chat.completions.create(
        model="standard",
        messages=[
            *asked(image(), text="First."),
            {"role": "assistant", "content": "A dot."},
            *asked(image(), text="And this?"),
        ],
    )
    first, _, last = model.requests[-1].messages
    assert [part.data for part in (*first.images, *last.images)] == [PNG, PNG]
    until(lambda: stored() == 0)


def test_a_response_takes_images_and_files_by_id_and_keeps_its_own(ada, client, model, sighted):
    """X1.3"""
    file = files.store_file(ada.pk, name="dot.png", content=PNG, source="upload")
    response = client.responses.create(
        model="standard",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Compare."},
                    {"type": "input_image", "file_id": str(file.pk), "detail": "auto"},
                    {
                        "type": "input_file",
                        "filename": "notes.txt",
                        "file_data": f"data:text/plain;base64,{base64.b64encode(b'Hello').decode()}",
                    },
                ],
            }
        ],
    )
    assert response.status == "completed"
    [message] = [m for m in model.requests[-1].messages if m.role == "user"]
    assert (len(message.images), "notes.txt" in message.text) == (1, True)
    assert stored() == 2


def test_a_url_is_fetched_by_the_rules_of_web_fetch(ada, client, model, sighted, monkeypatch):
    """X1.3: public addresses only"""
    with served_image() as url:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="standard", messages=asked(image(url)))
        assert refused.value.code == "invalid_url"
        port = int(url.split(":")[2].split("/")[0])
        monkeypatch.setattr(
            request_files,
            "get_http_client",
            lambda: PublicHttpClient(ports={port}, unchecked={"127.0.0.1"}),
        )
        client.chat.completions.create(model="standard", messages=asked(image(url)))
    assert model.requests[-1].messages[-1].images[0].data == PNG


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (image("data:image/png;base64,bm90IGFuIGltYWdl"), "invalid_image"),
        (image("data:image/png;base64,%%%"), "invalid_file"),
        (image("ftp://example.com/x.png"), "invalid_file"),
        ({"type": "file", "file": {"file_id": str(uuid4())}}, "file_not_found"),
        ({"type": "file", "file": {}}, "invalid_file"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "unsupported_content"),
    ],
    ids=["lies", "broken", "scheme", "unknown", "empty", "audio"],
)
def test_files_that_cannot_be_used_are_refused_and_nothing_is_kept(ada, client, model, part, code):
    """X1.3"""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="standard", messages=asked(image(), part))
    assert refused.value.code == code
    assert stored() == 0


def test_another_users_file_does_not_exist(ada, client, model):
    """X1.3"""
    from tests.support import factories

    file = files.store_file(factories.bob().pk, name="dot.png", content=PNG, source="upload")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="standard", messages=asked({"type": "file", "file": {"file_id": str(file.pk)}})
        )
    assert refused.value.code == "file_not_found"
    assert catalogue.get_tier_entries()
