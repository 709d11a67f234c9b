"""Create answers of the model that judges a goal."""

from __future__ import annotations

import json

from copilot.providers.scripted import ScriptedText


def make_verdict(achieved: bool, step: str = "", reason: str = "because") -> ScriptedText:
    return ScriptedText(json.dumps({"achieved": achieved, "reason": reason, "next_step": step}))
