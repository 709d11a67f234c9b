"""The clients that npm has, where they are at hand: NODE_CLIENTS names a folder with `ai` and `openai` installed (E4)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from copilot.accounts import api_keys
from copilot.providers.scripted import ScriptedCall, ScriptedReasoning, ScriptedText
from tests.support import factories
from tests.support.asgi_server import served

FOLDER = os.environ.get("NODE_CLIENTS", "")
SCRIPT = Path(__file__).with_name("node_clients.mjs")


@pytest.mark.skipif(not FOLDER, reason="NODE_CLIENTS names no folder with the clients")
def test_the_clients_of_npm_take_every_stream_without_complaint(model):
    """E4.1, E4.2"""
    token = api_keys.create_api_key(factories.ada()).token
    model.will(
        ScriptedReasoning("Hm."),
        ScriptedText("Looking."),
        ScriptedCall("current_time"),
        ScriptedCall("read_file", {"name": "none"}),
    )
    model.will(ScriptedText("It is noon.", size=3))
    with served() as site:
        ran = subprocess.run(
            ["node", str(SCRIPT), FOLDER, site, token],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    answer = seen.pop("answer")
    assert answer["problems"] == []
    shown = [(part["type"], part.get("state")) for part in answer["parts"]]
    assert shown == [
        ("step-start", None),
        ("reasoning", "done"),
        ("text", "done"),
        ("dynamic-tool", "output-available"),
        ("dynamic-tool", "output-error"),
        ("step-start", None),
        ("text", "done"),
    ]
    aye = dict.fromkeys(("streamed", "whole", "first", "second"), "Aye.")
    assert seen == {"idle": None, "refused": 400, **aye}
