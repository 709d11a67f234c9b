"""The settings as every environment gets them, and what a release must keep true."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from copilot.models import Session
from tests.support import factories
from tests.support.programs import run_manage_command


@pytest.mark.django_db
def test_people_and_sessions_can_be_made():
    ada, bob = factories.ada(), factories.bob()
    mine = factories.session(ada)
    factories.message(mine, content="hello")
    factories.turn(mine, "succeeded")
    assert Session.objects.get() == mine
    assert bob != ada


@pytest.mark.django_db
def test_every_model_change_has_its_migration():
    out = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=out)
    assert "No changes detected" in out.getvalue()


def test_production_does_not_start_without_a_secret_key():
    done = run_manage_command("check", SECRET_KEY="")
    assert done.returncode != 0
    assert "SECRET_KEY must be set" in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"SECRET_KEY": "k" * 49}, "SECRET_KEY is too short for production"),
        ({"SECRET_KEY": "insecure-development-key-only"}, "SECRET_KEY is too short for production"),
        ({"SECRET_KEY": "x" * 60, "DEBUG": "true"}, "set DEBUG=false in production"),
        ({"SECRET_KEY": "x" * 60, "DEMO_LOGIN": "true"}, "DEMO_LOGIN is for development only"),
    ],
)
def test_production_does_not_start_with_what_only_a_laptop_may_have(given: dict[str, str], told: str):
    done = run_manage_command("check", **given)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_production_refuses_to_log_what_people_write_d19():
    done = run_manage_command("check", SECRET_KEY="x" * 60, LOG_LEVEL="DEBUG")
    assert done.returncode != 0
    assert "LOG_LEVEL" in done.stderr


def test_static_files_can_be_gathered_with_hashed_modules_for_production(tmp_path: Path):
    packages = ("admin", "drf_spectacular_sidecar", "rest_framework", "account")
    ignored = [
        part for package in packages for part in ("--ignore", package)
    ]  # large, and not ours to rewrite
    done = run_manage_command(
        "collectstatic", "--no-input", "-v", "0", *ignored, SECRET_KEY="x" * 60, STATIC_ROOT=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
    hashed = (tmp_path / names["js/chat/chat_page.js"]).read_text()
    assert names["js/chat/socket.js"].removeprefix("js/chat/") in hashed
