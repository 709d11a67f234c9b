"""Credentials in tracked files are found, and vulnerable packages named; a feed that was not asked is never praised."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from config.dev import security_audit, venv
from config.dev.servers import find_free_port
from tests.support.paths import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def track(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    subprocess.run(["git", "-C", str(root), "add", name], check=True)


# Put together here, so that this file is clean itself.
CREDENTIALS = {
    "AWS access key": "AKIA" + "ABCDEFGH12345678",
    "Anthropic key": "sk-ant-" + "api03-" + "aB3" * 15,
    "OpenAI key": "sk-" + "proj-" + "aB3d" * 12,
    "Stripe key": "sk_live" + "_" + "a1B2c3D4" * 3,
    "Stripe webhook secret": "whsec" + "_" + "a1B2c3D4" * 4,
    "GitHub token": "ghp" + "_" + "a1B2c3D4e" * 4,
    "Slack token": "xoxb-" + "1234567890-" + "aB3d" * 6,
    "Telegram bot token": "123456789:" + "AA" + "aB3" * 11,
    "Google API key": "AIza" + "aB3d5" * 7,
    "Pilothouse API key": "ph_user_" + "abcdefghij_" + "aB3" * 14 + "x",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "MIIE" * 16,
}


@pytest.mark.attack
@pytest.mark.parametrize("kind", CREDENTIALS)
def test_a_credential_in_a_tracked_file_is_found_and_not_repeated(checkout: Path, kind: str):
    track(checkout, "settings.py", f"# a line\nKEY = '{CREDENTIALS[kind]}'\n")
    assert security_audit.scan_secrets(checkout) == [f"settings.py:2: {kind}"]


def test_every_kind_is_tried():
    assert {*CREDENTIALS, "Discord bot token"} == set(security_audit.SECRET_PATTERNS)


def test_what_is_untracked_binary_or_excused_is_left_alone(checkout: Path):
    key = CREDENTIALS["AWS access key"]
    (checkout / "untracked.txt").write_text(key)
    track(checkout, "made_up.py", f"KEY = '{key}'  # not a secret\n")
    track(checkout, "picture.bin", f"\0{key}")
    track(checkout, "prose.md", "Set OPENAI_API_KEY to your key, such as sk-… or sk-ant-….\n")
    assert security_audit.scan_secrets(checkout) == []


# --- packages ----------------------------------------------------------------------------------------------


class Feed(BaseHTTPRequestHandler):
    answer: object = None
    status = 200
    asked: list[dict[str, object]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Feed.asked = body["queries"]
        answer = self.answer(body["queries"]) if callable(self.answer) else self.answer
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Feed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("AUDIT_FEED", address)
    monkeypatch.setattr(Feed, "status", 200)
    yield address
    server.shutdown()
    server.server_close()


def report(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = security_audit.main(["packages"])
    return code, capsys.readouterr().out


def test_a_clean_lock_says_how_many_were_asked(feed: str, capsys, monkeypatch):
    monkeypatch.setattr(Feed, "answer", staticmethod(lambda queries: {"results": [{} for _ in queries]}))
    code, said = report(capsys)
    assert (code, said) == (0, f"audit    ok ({len(Feed.asked)} packages)\n")
    assert len(Feed.asked) > 100
    assert {
        "package": next(query["package"] for query in Feed.asked if query["package"]["name"] == "django")
    } == {"package": {"name": "django", "ecosystem": "PyPI"}}


def test_a_known_vulnerability_fails_the_check(feed: str, capsys, monkeypatch):
    def judge(queries: list[dict[str, dict[str, str]]]) -> object:
        bad = {"vulns": [{"id": "GHSA-xxxx"}]}
        return {"results": [bad if query["package"]["name"] == "django" else {} for query in queries]}

    monkeypatch.setattr(Feed, "answer", staticmethod(judge))
    code, said = report(capsys)
    assert code == 1
    assert re.search(r"^django [0-9.]+: GHSA-xxxx$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("status", "answer"),
    [(500, {}), (200, {}), (200, {"results": []}), (200, {"results": None}), (200, ["odd"])],
)
def test_an_answer_that_proves_nothing_is_not_called_well(feed: str, capsys, monkeypatch, status, answer):
    monkeypatch.setattr(Feed, "status", status)
    monkeypatch.setattr(Feed, "answer", answer)
    code, said = report(capsys)
    assert code == 0
    assert said.startswith("audit    NOT CHECKED: ")


def test_a_feed_that_is_away_neither_fails_nor_passes(capsys, monkeypatch):
    monkeypatch.setenv("AUDIT_FEED", f"http://127.0.0.1:{find_free_port()}")
    code, said = report(capsys)
    assert (code, "NOT CHECKED" in said, " ok" in said) == (0, True, False)


def test_a_lock_without_packages_is_not_called_well(tmp_path: Path):
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")
    with pytest.raises(security_audit.FeedUnavailable):
        security_audit.find_vulnerabilities(empty, "http://127.0.0.1:1")


# --- the installer -----------------------------------------------------------------------------------------


def test_the_installer_itself_is_pinned_by_hashes():
    lines = venv.UV_LOCK_FILE.read_text()
    assert re.search(r"^uv==[0-9.]+ \\$", lines, re.MULTILINE)
    assert lines.count("--hash=sha256:") > 10
    assert venv.get_uv_version() == f"uv=={lines.partition('==')[2].split()[0]}"
    source = (ROOT / "config" / "dev" / "venv.py").read_text()
    assert '"--require-hashes", "-r", str(UV_LOCK_FILE)' in source
