"""The bot of linking's README is whole: taken from there and run as its reader would (L11)."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from copilot.models import Message, Session
from copilot.providers.scripted import ScriptedCall, ScriptedText
from linking.errors import REFUSAL_MESSAGES
from linking.event_projection import PROJECTIONS
from linking.links import bot_keys, confirmation
from linking.models import PlatformUserLink
from linking.models.bot_keys import BOT_KEY_SCOPES
from linking.webhook_deliveries import endpoints
from tests.support import factories
from tests.support.asgi_server import served
from tests.support.paths import ROOT
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import Errand, add_tools, quiet

README = ROOT / "linking" / "README.md"


def program() -> str:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return str(code)


def test_the_readme_names_every_event_and_every_refusal_of_a_message():
    """L13, L11: the README names each one for authors of bots"""
    text = README.read_text()
    assert [kind for kind in PROJECTIONS if f"`{kind}`" not in text] == []
    assert [code for code in REFUSAL_MESSAGES if f"`{code}`" not in text] == []


def test_the_readme_tells_a_genuine_delivery_from_another():
    """L17: while a secret is changed by either; never by another body or an old stamp"""
    [code] = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)
    told: dict[str, Callable[..., bool]] = {}
    exec(code, {"hmac": hmac, "hashlib": hashlib, "time": time}, told)
    now, body = int(time.time()), b'{"kind": "turn.succeeded"}'
    for secret in ("whsec_new", "whsec_old"):
        for stamp, sent, true in ((now, body, True), (now, body + b" ", False), (now - 600, body, False)):
            signed = endpoints.build_signature_header(["whsec_new", "whsec_old"], stamp, body)
            headers = {"Pilothouse-Timestamp": str(stamp), "Pilothouse-Signature": signed}
            assert told["genuine"](secret, headers, sent) is true


class Console:
    """The bot's standard input and output."""

    def __init__(self, path: Path, url: str, key: str) -> None:
        environment = {**os.environ, "PILOTHOUSE_URL": url, "PILOTHOUSE_BOT_KEY": key, "CHAT_USER": "ada-1"}
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def until(self, words: str) -> str:
        """Everything up to the line that holds these words."""
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if words in line:
                return seen
        raise AssertionError(f"{words!r} was never said: {seen}")

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=PATIENCE_SECONDS) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with self.process:  # closes what is open
            pass


def test_the_bot_of_the_readme_links_chats_asks_and_starts_over(rig, model, monkeypatch, tmp_path):
    """L11: in about a hundred lines and by REST alone"""
    assert len(program().splitlines()) < 130
    path = tmp_path / "bot.py"
    path.write_text(program())
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    key = bot_keys.create_bot_key(
        name="demo", platform="scripted", bot_account="demo", scopes=BOT_KEY_SCOPES
    ).key
    with served() as url, Console(path, url, key) as console:
        console.type("Hello")
        said = console.until("Open this to connect")
        confirmation.confirm_user_link(factories.ada(), said.split()[-1].rsplit("/", 1)[1])
        assert PlatformUserLink.objects.get().user == factories.ada()
        console.until("Aye.")
        model.will(ScriptedText("Paying. "), ScriptedCall("pay"))
        model.will(ScriptedCall("ask_user", {"question": "Red or blue?", "choices": ["red", "blue"]}))
        model.will(ScriptedText("It is done."))
        console.type("Pay and paint")
        console.until("[y/n]")
        console.type("yes")
        console.until("Red or blue? / red / blue")
        console.type("blue")
        console.until("It is done.")
        console.type("/new")
        console.type("Again")
        console.until("Aye.")
        console.leave()
    assert Session.objects.count() == 2
    for session in Session.objects.all():
        quiet(session)
    assert list(
        Message.objects.filter(kind="user").order_by("accept_number").values_list("content", flat=True)
    ) == [
        "Hello",
        "Pay and paint",
        "Again",
    ]
