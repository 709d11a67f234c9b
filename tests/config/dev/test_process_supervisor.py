"""The supervisor: merged lines, restarts, an orderly end, no orphans."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from config.dev import run
from config.dev.run import Program, Supervisor
from tests.support.timeouts import PATIENCE_SECONDS


def python(name: str, code: str) -> Program:
    return Program(name, (sys.executable, "-c", code))


def supervisor(grace_seconds: float = 10) -> Supervisor:
    return Supervisor(dict(os.environ), grace_seconds=grace_seconds)


async def until_said(
    capsys: pytest.CaptureFixture[str], words: str, *, seconds: float = PATIENCE_SECONDS
) -> str:
    said = ""
    async with asyncio.timeout(seconds):
        while words not in said:
            await asyncio.sleep(0.02)
            said += capsys.readouterr().out
    return said


async def test_every_line_bears_the_name_of_its_process(capsys: pytest.CaptureFixture[str]):
    code = await supervisor().run_once(python("web", "print('one'); print(); print('two')"))
    assert code == 0
    assert capsys.readouterr().out == "web         │ one\nweb         │ two\n"


async def test_a_very_long_line_does_not_end_the_log(capsys: pytest.CaptureFixture[str]):
    await supervisor().run_once(python("web", "print('x' * 3_000_000); print('after')"))
    said = capsys.readouterr().out
    assert "left out" in said
    assert said.endswith("│ after\n")


async def test_a_process_that_dies_is_started_again_and_said_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "FIRST_RESTART_DELAY_SECONDS", 0.01)
    crew = supervisor()
    keeping = asyncio.create_task(
        crew.keep_running(python("turns", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    )
    said = await until_said(capsys, "died (signal SIGKILL); starting it again")
    said = await until_said(capsys, "died (signal SIGKILL); starting it again")
    assert said.startswith("turns")
    crew.stop()
    await keeping


async def test_a_stop_asks_kindly_and_kills_who_overstays(capsys: pytest.CaptureFixture[str]):
    crew = supervisor(grace_seconds=0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    kind = "import time; print('up', flush=True); time.sleep(60)"
    async with asyncio.TaskGroup() as group:
        group.create_task(crew.wait_until_stopped())
        group.create_task(crew.keep_running(python("turns", stubborn)))
        group.create_task(crew.keep_running(python("web", kind)))
        said = await until_said(capsys, "turns       │ up")
        if "web         │ up" not in said:
            await until_said(capsys, "web         │ up")
        crew.stop()
    said = capsys.readouterr().out
    assert "turns       │ did not stop within" in said
    assert "web         │ did not stop" not in said


async def test_a_second_stop_ends_everything_at_once(capsys: pytest.CaptureFixture[str]):
    crew = supervisor(grace_seconds=60)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(crew.wait_until_stopped())
        group.create_task(crew.keep_running(python("turns", stubborn)))
        await until_said(capsys, "up")
        crew.stop()
        crew.stop()
