"""The doctor says what is wrong, once, and what to do next (D17)."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from config.servers import free_port
from copilot.live import beats, keys
from copilot.live import client as live_client
from copilot.models import WorkerBeat
from diagnostics import tasks as reaper

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "extremely-secret-value-1234567890"


def doctor(*arguments: str) -> tuple[int, list[dict[str, str]]]:
    out = StringIO()
    patience = () if "--timeout" in arguments else ("--timeout", "30")  # a busy machine is slow, not broken
    try:
        call_command("doctor", "--json", *patience, *arguments, stdout=out)
    except SystemExit as left:
        return int(str(left.code)), json.loads(out.getvalue())["checks"]
    return 0, json.loads(out.getvalue())["checks"]


def failing(checks: list[dict[str, str]]) -> list[str]:
    return [check["name"] for check in checks if check["status"] == "fail"]


@pytest.fixture
def worker() -> WorkerBeat:
    beats.note_sweep()
    return WorkerBeat.objects.create(
        worker="host-1",
        lock_key=1,
        host="host",
        pid=1,
        version="0.1.0",
        queues=["turns", "default", "maintenance"],
    )


@pytest.fixture
def no_redis(settings):
    settings.REDIS_URL = settings.CELERY_BROKER_URL = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"
    live_client.blocking.cache_clear()
    yield
    live_client.blocking.cache_clear()


def test_a_well_installation_passes_and_skips_what_is_not_configured_a_d17_2(worker):
    code, checks = doctor()
    assert (code, failing(checks)) == (0, [])
    states = {check["name"]: check["status"] for check in checks}
    assert states["providers.openai"] == states["providers.anthropic"] == "skip"
    assert states["postgres"] == states["redis"] == states["broker"] == states["storage"] == "ok"


def test_a_dead_postgres_is_one_line_a_d17_1(worker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(connection.settings_dict, "PORT", free_port())
    code, checks = doctor("--skip", "config")
    assert (code, failing(checks)) == (1, ["postgres"])


def test_a_dead_redis_is_one_line_and_its_password_none_a_d17_1_a_d7_2(worker, no_redis):
    code, checks = doctor()
    assert (code, failing(checks)) == (1, ["redis"])
    assert SECRET not in json.dumps(checks)


def test_a_silent_reaper_is_one_line_that_says_what_to_start(worker):
    """D17, A-D10.8: never, long ago, and now"""
    for life in (None, beats.SWEEP_MEMORY_SECONDS - 60):
        live_client.blocking().delete(keys.REAPER)
        if life is not None:
            live_client.blocking().set(keys.REAPER, "1", ex=life)
        code, checks = doctor("--only", "workers", "--only", "reaper")
        assert (code, failing(checks)) == (1, ["reaper"])
        assert "celery beat" in checks[-1]["next_step"]
    reaper.sweep()
    assert doctor("--only", "workers", "--only", "reaper")[0] == 0


def test_missing_workers_are_one_line_that_names_the_queues():
    code, checks = doctor()
    assert (code, failing(checks)) == (1, ["workers"])
    told = next(check for check in checks if check["name"] == "workers")
    assert "turns, default, maintenance" in told["detail"]


def test_an_unapplied_migration_is_one_line(worker):
    with connection.cursor() as cursor:
        cursor.execute(
            "update django_migrations set name = 'away' where app = 'copilot' and name = '0001_initial'"
        )
    try:
        code, checks = doctor()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("update django_migrations set name = '0001_initial' where name = 'away'")
    assert (code, failing(checks)) == (1, ["migrations"])


def test_unwritable_storage_is_one_line(worker, settings):
    settings.STORAGES = settings.STORAGES | {
        "workspace": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": "/proc/nowhere"},
        }
    }
    code, checks = doctor()
    assert (code, failing(checks)) == (1, ["storage"])


def test_an_unreachable_provider_is_one_line_and_offline_skips_it(worker, settings):
    settings.OPENAI_API_KEY = SECRET
    settings.OPENAI_BASE_URL = f"http://127.0.0.1:{free_port()}/v1"
    code, checks = doctor()
    assert (code, failing(checks)) == (1, ["providers.openai"])
    assert SECRET not in json.dumps(checks)
    code, checks = doctor("--offline")
    assert code == 0
    assert not [check for check in checks if check["name"].startswith("providers")]


def test_a_weak_key_fails_in_production_alone(worker, settings):
    settings.SECRET_KEY = "weak"
    assert doctor("--only", "config")[0] == 0
    settings.ENVIRONMENT = "production"
    code, checks = doctor("--only", "config")
    assert (code, failing(checks)) == (1, ["config.secret_key"])


def test_strict_counts_warnings_and_only_and_skip_choose(worker, settings):
    WorkerBeat.objects.create(worker="host-2", lock_key=2, host="h", pid=2, version="0.0.9", queues=["turns"])
    assert doctor("--only", "workers")[0] == 0
    assert doctor("--only", "workers", "--strict")[0] == 1
    assert doctor("--only", "workers", "--skip", "workers") == (0, [])


@pytest.mark.parametrize("arguments", [("--only", "nonsense"), ("--timeout", "0"), ("--timeout", "soon")])
def test_wrong_usage_is_refused(arguments):
    with pytest.raises(CommandError):
        doctor(*arguments)


def test_people_get_one_line_per_check(worker, capsys: pytest.CaptureFixture[str]):
    out = StringIO()
    call_command("doctor", "--only", "postgres", stdout=out)
    assert out.getvalue().startswith("ok    postgres")
    assert out.getvalue().count("\n") == 1


def test_tools_that_cannot_work_here_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A32.2"""
    monkeypatch.setattr("copilot.tools.registry.unavailable", lambda: {"web_search": "No engine is set."})
    code, [check] = doctor("--only", "tools")
    assert (code, check["status"]) == (0, "ok")
    assert check["detail"] == "not available: web_search: No engine is set"
