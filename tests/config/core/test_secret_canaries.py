"""Canaries planted where secrets are: none is found in a row, an event, a log line, a file or a request (A33.c6)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings as configured

from config.core import redaction
from config.core.redis import get_redis
from copilot.models import Turn
from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from copilot.tools.base import ToolOutput
from tests.support import factories, mcp_servers
from tests.support.rest_clients import V1, person, program
from tests.support.turn_engine import (
    Errand,
    Model,
    Rig,
    add_tools,
    cue,
    ended,
    lease_of,
    queue,
    start,
    told,
    until,
)

SETTING, CREDENTIAL, HEADER = "canary-setting-5f1e", "canary-credential-77aa", "canary-header-c0de"
SHAPED = "sk-" + "canary" * 5  # nobody registered it: its shape is enough
CANARIES = (SETTING, CREDENTIAL, HEADER, SHAPED)
ALL = " ".join(CANARIES)
PRIVATE = "my-private-words"
ENTRY = CatalogueEntry(name="Vendor", provider="scripted", model="vendor", credential=CREDENTIAL)


@pytest.fixture(name="planted")
def planted_fixture(rig: Rig, settings) -> Iterator[None]:
    """A key in the settings and a credential in the catalogue, learnt as they are at boot."""
    settings.WEB_SEARCH_KEY = SETTING
    before = catalogue.get_catalogue()
    catalogue.set_catalogue(
        catalogue.Catalogue(entries=(ENTRY,), tiers={"standard": (ENTRY,), "small": (ENTRY,)})
    )
    scripted.install_script("vendor", rig.model)
    learnt = [*redaction.find_setting_secrets("WEB_SEARCH_KEY", configured.WEB_SEARCH_KEY), CREDENTIAL]
    redaction.register_temporary_secrets(learnt)
    yield
    redaction.release_temporary_secrets(learnt)
    scripted.uninstall_script("vendor")
    catalogue.set_catalogue(before)


def leaking(name: str, **declared: object) -> Errand:
    """Says all it can: progress, a result longer than the model is shown, or an error."""
    errand = Errand(name, **declared)

    async def run(arguments, invocation):
        invocation.progress(f"reading {ALL}")
        if name == "break":
            raise RuntimeError(f"refused for {ALL}")
        return ToolOutput(value={"text": f"{ALL} " + "x" * 80_000 + f" {ALL}", ALL: [ALL]})

    object.__setattr__(errand.tool, "run", run)
    return errand


def everything_kept(root: Path) -> Iterator[tuple[str, str]]:
    """Every row of every table, every value in Redis, every stored file."""
    for table in apps.get_models():
        yield table.__name__, repr(list(table.objects.values()))
    server = get_redis()
    for key in server.scan_iter():
        yield (
            key.decode(),
            repr(server.dump(key)) + repr(server.xrange(key) if server.type(key) == b"stream" else ""),
        )
    for path in root.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes().decode("latin-1")


def play_everything(model: Model, session) -> None:
    """One turn that leaks by tools and MCP, is told more meanwhile and pauses; then one whose provider does."""
    model.will(
        ScriptedText("Looking. "),
        cue(1),
        ScriptedCall("leak"),
        ScriptedCall("break"),
        ScriptedCall("mcp_files_headers"),
    )
    model.will(ScriptedCall("pay"))
    turn_id = start(session, PRIVATE)
    model.reaches(1)
    queue(session, f"{PRIVATE} again")
    model.give(1)
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    model.will(ScriptedFailure(status=400, body=f'{{"error": {{"message": "no {ALL}"}}}}'))
    failed = ended(start(session, "Go on"))
    assert failed.status == "failed"
    assert Turn.objects.get(pk=turn_id).status == "cancelled"


def test_no_canary_is_found_where_it_must_not_be(rig, model, planted, monkeypatch, settings, caplog):
    """A33.c6, A9.10, A31.5: rows, events, files, requests, pages; and no message is in a log"""
    session = factories.session()
    add_tools(monkeypatch, leaking("leak"), leaking("break"), leaking("pay", approval="ask"))
    caplog.set_level(logging.DEBUG)
    mcp_servers.everybodys(
        "files", mcp_servers.standing(), secrets={"Authorization": f"Bearer {HEADER}", "X-Key": HEADER}
    )
    play_everything(model, session)
    kept = dict(everything_kept(Path(settings.MEDIA_ROOT)))
    kept["requests"] = repr(model.requests)
    kept["page"] = person(factories.ada()).get(f"/chat/{session.pk}/").content.decode()
    kept["REST"] = program(factories.ada()).get(f"{V1}/sessions/{session.pk}/messages").content.decode()
    kept["log"] = "\n".join(record.getMessage() + str(record.exc_text) for record in caplog.records)
    assert kept["Message"].count("[REDACTED]") > 4
    assert {"Approval", "WorkspaceFile", "ModelCall", "UsageRecord", "McpServer"} <= set(kept)
    found = {(place, canary) for place, text in kept.items() for canary in CANARIES if canary in text}
    assert found == set()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert not [line for line in said if PRIVATE in line]
