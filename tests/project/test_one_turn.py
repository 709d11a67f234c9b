"""Trace one plain turn through the product, so that the documentation of its road stays true."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from django.conf import settings
from django.db import connections

from config.core import db
from config.core.db import run_in_thread
from copilot.providers.scripted import ScriptedText
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.websocket_client import connected, engine

APPS = tuple(str(ROOT / app) + "/" for app in ("config", "copilot", "billing", "linking", "diagnostics"))
MAX_FILES = 88
PAGE = ROOT / "docs" / "concepts" / "one-turn.md"


class CallTrace:
    """Record which product files call which, in all threads that begin while it is installed."""

    def __init__(self) -> None:
        self.is_recording = False
        self.files: dict[str, set[str]] = {}  # in the order of their first call, with the functions called
        self.calls: set[tuple[str, str]] = set()  # from file to file

    def install(self) -> None:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def uninstall(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.is_recording or not frame.f_code.co_filename.startswith(APPS):
            return
        file = _shorten(frame)
        self.files.setdefault(file, set()).add(frame.f_code.co_name)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(APPS):
            caller = caller.f_back
        if caller is not None and (origin := _shorten(caller)) != file:
            self.calls.add((origin, file))


def _shorten(frame: FrameType) -> str:
    return str(Path(frame.f_code.co_filename).relative_to(ROOT))


def close_in_all_threads(threads: db.LifoThreadPool) -> None:
    meeting = threading.Barrier(threads._max_workers)

    def close() -> None:
        meeting.wait(PATIENCE_SECONDS)
        connections.close_all()

    for closed in [threads.submit(close) for _ in range(threads._max_workers)]:
        closed.result()
    threads.shutdown()


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallTrace]:
    """Trace this thread and all that begin from now on; the threads of earlier tests cannot be traced."""
    trace = CallTrace()
    trace.install()
    threads = db.LifoThreadPool(settings.DATABASE_THREADS, "traced database")
    monkeypatch.setattr(db, "_database_threads", threads)
    try:
        yield trace
    finally:
        trace.uninstall()
        close_in_all_threads(threads)


def read_road() -> dict[str, set[str]]:
    """Read the table of the page: a file in each row, then the functions that a plain turn calls in it."""
    rows = re.findall(r"^\| \d+ \| `([a-z_/]+\.py)` \| (.+?) \|", PAGE.read_text(), re.M)
    return {file: set(re.findall(r"`(\w+)`", functions)) for file, functions in rows}


@pytest.mark.django_db(transaction=True)
async def test_a_plain_turn_takes_the_road_that_the_documentation_shows(trace):
    road = read_road()
    assert 12 <= len(road) <= 18
    trace.install()
    ada = await run_in_thread(factories.ada)
    session = await run_in_thread(factories.session)
    async with engine() as rig, connected(ada) as socket:
        await run_in_thread(rig.start_worker)
        await socket.ask("session.subscribe", session_id=str(session.pk))
        for record in (False, True):
            rig.model.will(ScriptedText("One two three.", size=4))
            trace.is_recording = record
            await socket.ask("message.send", session_id=str(session.pk), text="Count.")
            await socket.event("turn.succeeded")
            trace.is_recording = False
    for file, functions in road.items():
        assert functions <= trace.files.get(file, set()), file
    # Besides the road, small modules that it calls: values, keys, limits. Merge rather than raise this.
    assert len(trace.files) <= MAX_FILES, sorted(trace.files)
