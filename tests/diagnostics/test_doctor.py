"""The doctor says what is wrong, once, and what to do next (D17)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from kombu import Connection

from bench.installation import directory_of
from config.celery import app
from config.core import demo_login, redis
from config.dev.servers import EmbeddedValkey, find_free_port, start_servers
from copilot.models import WorkerHeartbeat
from copilot.providers import catalogue
from copilot.realtime import redis_keys
from copilot.worker import heartbeat, recovery
from diagnostics import reaper
from diagnostics.checks import check_production_values
from diagnostics.probes import configuration, runner, servers
from tests.support.paths import ROOT

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "extremely-secret-value-1234567890"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "QUICK_TIMEOUT_SECONDS", 30.0)
    monkeypatch.setattr(runner, "SLOW_TIMEOUT_SECONDS", 30.0)
    monkeypatch.setattr(servers, "CONNECT_TIMEOUT_SECONDS", 30)
    monkeypatch.setattr(servers, "STATEMENT_TIMEOUT_SECONDS", 30)
    monkeypatch.setattr(servers, "HEARTBEAT_LIFE_SECONDS", 600.0)  # nobody beats here after the first time
    monkeypatch.setattr(servers, "REAPER_SILENT_SECONDS", 50.0)


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
def worker() -> WorkerHeartbeat:
    heartbeat.write_sweep()
    for work in ("scheduler", "queue:maintenance", "queue:default"):
        heartbeat.write_work_time(work)
    PeriodicTask.objects.update_or_create(
        name="deliver",
        defaults={
            "task": "linking.tasks.deliver",
            "last_run_at": timezone.now(),
            "interval": IntervalSchedule.objects.get_or_create(every=5, period="seconds")[0],
        },
    )
    return WorkerHeartbeat.objects.create(
        worker="host-1",
        lock_key=1,
        host="host",
        pid=1,
        version="0.1.0",
        queues=["turns", "default", "chats", "maintenance"],
    )


def test_a_well_installation_passes_and_skips_what_is_not_configured(worker):
    """A-D17.2"""
    code, checks = doctor()
    assert (code, failing(checks)) == (0, [])
    states = {check["name"]: check["status"] for check in checks}
    for optional in (
        "payments.stripe",
        "platforms.telegram",
        "platforms.slack",
        "webhooks.stripe",
        "channels",
    ):
        assert states[optional] == "skip"
    assert states["providers.openai"] == states["providers.anthropic"] == "skip"
    assert states["postgres"] == states["redis"] == states["broker"] == states["storage"] == "ok"


class Broken:
    """One thing that is wrong with an installation, and everything else that is right."""

    def __init__(self, settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings, self.monkeypatch = settings, monkeypatch
        self.mend: Callable[[], object] = lambda: None

    def postgres(self) -> None:
        self.monkeypatch.setitem(connection.settings_dict, "PORT", find_free_port())

    def redis(self) -> None:
        self.settings.REDIS_URL = f"redis://:{SECRET}@127.0.0.1:{find_free_port()}/0"
        self.settings.CELERY_BROKER_URL = self.settings.REDIS_URL
        redis.get_redis.cache_clear()

    def broker(self) -> None:
        self.settings.CELERY_BROKER_URL = f"redis://:{SECRET}@127.0.0.1:{find_free_port()}/0"
        gone = self.settings.CELERY_BROKER_URL
        self.monkeypatch.setattr(app, "connection_for_read", lambda **how: Connection(gone, **how))

    def migrations(self) -> None:
        self.monkeypatch.setattr(servers, "_list_migrations", lambda: frozenset({("copilot", "9999_unborn")}))

    def workers(self) -> None:
        WorkerHeartbeat.objects.all().delete()

    def reaper(self) -> None:
        redis.get_redis().delete(redis_keys.REAPER_KEY)

    def scheduler(self) -> None:
        redis.get_redis().delete(redis_keys.last_work_key("scheduler"))
        PeriodicTask.objects.update(last_run_at=timezone.now() - timedelta(minutes=5))

    def postgres_writes(self) -> None:
        cursor = connection.cursor()
        name = connection.settings_dict["NAME"]
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        self.mend = lambda: cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    def storage(self) -> None:
        nowhere = {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": "/proc/nowhere"},
        }
        self.settings.STORAGES = self.settings.STORAGES | {"workspace": nowhere}

    def mail(self) -> None:
        self.settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        self.settings.EMAIL_HOST, self.settings.EMAIL_PORT = "127.0.0.1", find_free_port()
        self.settings.EMAIL_HOST_PASSWORD = SECRET

    def providers_openai(self) -> None:
        self.settings.OPENAI_API_KEY = SECRET
        self.settings.OPENAI_BASE_URL = f"http://127.0.0.1:{find_free_port()}/v1"

    def payments_stripe(self) -> None:
        self.settings.STRIPE_SECRET_KEY = self.settings.STRIPE_WEBHOOK_SECRETS = SECRET
        self.settings.STRIPE_API_BASE = f"http://127.0.0.1:{find_free_port()}"

    def platforms_telegram(self) -> None:
        self.settings.TELEGRAM_BOT_TOKEN = f"12345:{SECRET}"
        self.settings.TELEGRAM_API_URL = f"http://127.0.0.1:{find_free_port()}"

    def tools_models(self) -> None:
        self.settings.ALLOW_DEMO_MODEL = False
        catalogue.set_catalogue(catalogue.build_from_settings(self.settings))
        self.settings.ALLOW_DEMO_MODEL = True
        self.mend = lambda: catalogue.set_catalogue(catalogue.build_from_settings(self.settings))

    def tools_scanner(self) -> None:
        self.settings.WORKSPACE_SCAN_HOOK = "copilot.files.clamav.scan"
        self.settings.CLAMD_ADDRESS = f"127.0.0.1:{find_free_port()}"

    def accounts_demo(self) -> None:
        demo_login.open_demo_login()

    def redis_keys(self) -> None:
        recovery.rebuild_redis_if_restored()
        stranger = heartbeat.InstallationCopy(installation_id=str(uuid4()), epoch=1, incarnation="1/1")
        heartbeat.write_installation_copy(stranger)

    def config_hosts(self) -> None:
        self.settings.SITE_URL = "https://chat.example.com"

    def config_static(self) -> None:
        self.settings.ENVIRONMENT = "production"
        self.settings.SECRET_KEY = SECRET + SECRET
        self.settings.STATIC_ROOT = "/nowhere"

    def config_secret_key(self) -> None:
        self.settings.ENVIRONMENT, self.settings.SECRET_KEY = "production", "weak"
        self.monkeypatch.setitem(
            configuration.CONFIGURATION_PROBES, "config.static", lambda: runner.ProbeFinding()
        )

    def config_debug(self) -> None:
        self.settings.ENVIRONMENT, self.settings.DEBUG = "production", True
        self.settings.SECRET_KEY = SECRET + SECRET
        self.monkeypatch.setitem(
            configuration.CONFIGURATION_PROBES, "config.static", lambda: runner.ProbeFinding()
        )

    def config_mail_sender(self) -> None:
        self._be_in_production()
        self.settings.MAIL_WORKS, self.settings.DEFAULT_FROM_EMAIL = True, "pilothouse@localhost"

    def config_traces(self) -> None:
        self._be_in_production()
        self.settings.TRACES = True
        self.monkeypatch.setattr(configuration, "find_spec", lambda name: None)

    def _be_in_production(self) -> None:
        self.settings.ENVIRONMENT, self.settings.SECRET_KEY = "production", SECRET + SECRET
        self.monkeypatch.setitem(
            configuration.CONFIGURATION_PROBES, "config.static", lambda: runner.ProbeFinding()
        )


SETUPS = [name for name in vars(Broken) if not name.startswith("_")]


@pytest.mark.parametrize("name", SETUPS)
def test_each_broken_set_up_is_named_by_one_line(
    name: str, worker, settings, monkeypatch: pytest.MonkeyPatch
):
    """A-D17.1, A-D17.3, A-D7.2: with the next step, and without a secret"""
    broken = Broken(settings, monkeypatch)
    getattr(broken, name)()
    skipped = () if name.startswith("config") else ("--skip", "config")
    try:
        code, checks = doctor(*skipped)
    finally:
        broken.mend()
        redis.get_redis.cache_clear()
    assert (code, failing(checks)) == (1, [name.replace("_", ".", 1)])
    told = next(check for check in checks if check["status"] == "fail")
    assert told["detail"]
    assert told["next_step"]
    assert SECRET not in json.dumps(checks)


def test_untrusted_proxies_are_reported(settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.5")
    settings.TRUST_PROXY = False
    told = configuration.probe_proxies()
    assert (told.status, "TRUST_PROXY=true" in told.next_step) == ("warn", True)
    assert [one.id for one in check_production_values(None)] == ["diagnostics.W001"]
    settings.TRUST_PROXY, settings.TRUSTED_PROXIES = True, "10.0.0.5"
    assert configuration.probe_proxies().status == "ok"
    assert check_production_values(None) == []


@pytest.mark.parametrize(
    "given",
    [
        {"TRUST_PROXY": "true", "FORWARDED_ALLOW_IPS": "proxy.internal"},
        {"BILLING_CURRENCY": "jpy"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"DEFAULT_FROM_EMAIL": "Pilothouse"},
    ],
)
def test_a_value_that_cannot_be_read_is_one_sentence(given: dict[str, str]):
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"Wrong settings: {list(given)[-1]} must ")


def test_work_done_proves_that_a_queue_is_served(worker):
    """D17: a worker of one thread answers no question while its task runs; one that is deaf answers and does nothing"""
    WorkerHeartbeat.objects.update(queues=["turns", "chats"])
    code, checks = doctor("--only", "workers")
    assert (code, failing(checks)) == (0, [])
    grow_old("queue:maintenance", 91)
    code, checks = doctor("--only", "workers")
    assert (code, failing(checks)) == (1, ["workers"])
    assert "no worker serves maintenance" in checks[0]["detail"]


def grow_old(work: str, seconds: int) -> None:
    redis.get_redis().expire(redis_keys.last_work_key(work), heartbeat.WORK_LIFETIME_SECONDS - seconds)


def test_a_live_worker_that_receives_no_turns_is_reported(worker):
    """D17: its beat is fresh and names no queue; one that has only just begun is given time"""
    deaf = WorkerHeartbeat.objects.create(
        worker="host-2", lock_key=2, host="h", pid=2, version="0.1.0", queues=[]
    )
    assert doctor("--only", "workers")[0] == 0
    WorkerHeartbeat.objects.filter(pk=deaf.pk).update(started_at=timezone.now() - timedelta(seconds=9))
    code, checks = doctor("--only", "workers")
    assert (code, failing(checks)) == (1, ["workers"])
    assert "host-2" in checks[0]["detail"]


def test_a_scheduler_that_reaches_no_broker_is_silent(worker):
    """D17: its rows are fresh, its last job is a minute old"""
    grow_old("scheduler", 61)
    code, checks = doctor("--only", "scheduler")
    assert (code, failing(checks)) == (1, ["scheduler"])


def test_our_own_checks_are_waited_for_on_a_busy_machine():
    """D17: they ask nobody, so that being slow is no fault; a server has its limit"""

    def slow() -> runner.ProbeFinding:
        threading.Event().wait(0.2)
        return runner.ProbeFinding()

    results = runner.run_probes({"redis": slow, "config.checks": slow}, longest_seconds=0.01)
    assert [result.status for result in results] == ["fail", "ok"]


def test_a_silent_reaper_is_one_line_that_says_what_to_start(worker):
    """D17, A-D10.8: never, long ago, and now"""
    for life in (None, heartbeat.SWEEP_LIFETIME_SECONDS - 60):
        redis.get_redis().delete(redis_keys.REAPER_KEY)
        if life is not None:
            redis.get_redis().set(redis_keys.REAPER_KEY, "1", ex=life)
        code, checks = doctor("--only", "workers", "--only", "reaper")
        assert (code, failing(checks)) == (1, ["reaper"])
        assert "maintenance or turns" in checks[-1]["next_step"]
    reaper.run_sweep_steps()
    assert doctor("--only", "workers", "--only", "reaper")[0] == 0


def test_offline_contacts_no_external_server(worker, settings):
    """D17"""
    settings.OPENAI_API_KEY = SECRET
    settings.OPENAI_BASE_URL = f"http://127.0.0.1:{find_free_port()}/v1"
    code, checks = doctor("--offline")
    assert code == 0
    assert not [check for check in checks if check["name"].startswith("providers")]


def test_strict_counts_warnings_and_only_and_skip_choose(worker, settings):
    WorkerHeartbeat.objects.create(
        worker="host-2", lock_key=2, host="h", pid=2, version="0.0.9", queues=["turns"]
    )
    assert doctor("--only", "workers")[0] == 0
    assert doctor("--only", "workers", "--strict")[0] == 1
    assert doctor("--only", "workers", "--skip", "workers") == (0, [])


@pytest.mark.parametrize("arguments", [("--only", "nonsense"), ("--timeout", "0"), ("--timeout", "soon")])
def test_wrong_usage_is_refused(arguments):
    with pytest.raises(CommandError):
        doctor(*arguments)


def test_people_get_one_line_per_check(worker, capsys: pytest.CaptureFixture[str]):
    out = StringIO()
    call_command("doctor", "--only", "broker", stdout=out)
    assert out.getvalue().startswith("ok    broker")
    assert out.getvalue().count("\n") == 1


def test_tools_that_cannot_work_here_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A32.2"""
    monkeypatch.setattr(
        "copilot.tools.registry.list_unavailable_tools", lambda: {"web_search": "No engine is set."}
    )
    code, [check, *_] = doctor("--only", "tools")
    assert (code, check["status"]) == (0, "ok")
    assert check["detail"] == "not available: web_search: No engine is set"


# --- one sentence each, for what looks alike --------------------------------------------------------------


def said_of(name: str) -> str:
    code, checks = doctor("--only", name)
    assert code == 1
    return next(f"{check['detail']}. {check['next_step']}" for check in checks if check["status"] == "fail")


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("PASSWORD", "wrong", "refuses the password of user"),
        ("NAME", "nothere", "has no database nothere"),
        ("PORT", 1, "nothing listens at 127.0.0.1:"),
        ("HOST", "no.such.host.invalid", "does not resolve"),
    ],
)
def test_each_mistake_in_the_database_url_has_a_sentence_of_its_own(
    monkeypatch: pytest.MonkeyPatch, part: str, value: object, told: str
):
    monkeypatch.setitem(connection.settings_dict, part, value)
    said = said_of("postgres")
    assert told in said
    assert "DATABASE_URL" in said


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda url: re.sub(r":[^:@/]+@", ":wrong@", url), "refuses the password"),
        (
            lambda url: re.sub(r":[0-9]+/", f":{find_free_port()}/", url),
            "nothing listens at redis://127.0.0.1:",
        ),
        (lambda url: re.sub(r"/[0-9]+$", "/99", url), "no database with the number"),
        (lambda url: url.replace("127.0.0.1", "no.such.host.invalid"), "does not resolve"),
    ],
)
def test_each_mistake_in_the_redis_url_has_a_sentence_of_its_own(
    settings, change: Callable[[str], str], told: str
):
    settings.REDIS_URL = change(settings.REDIS_URL)
    redis.get_redis.cache_clear()
    try:
        said = said_of("redis")
    finally:
        redis.get_redis.cache_clear()
    assert told in said
    assert "REDIS_URL" in said


def test_static_files_that_were_not_collected_again_are_named(settings, tmp_path):
    settings.ENVIRONMENT, settings.STATIC_ROOT = "production", tmp_path
    (tmp_path / "staticfiles.json").write_text('{"paths": {}}')
    assert "are not collected" in configuration.probe_static_files().detail
    paths = dict.fromkeys(configuration._list_static_sources(), "there.js")
    (tmp_path / "staticfiles.json").write_text(json.dumps({"paths": paths}))
    assert configuration.probe_static_files().detail == f"there.js is missing in {tmp_path}"
    (tmp_path / "there.js").touch()
    assert configuration.probe_static_files().status == "ok"


def test_a_scanner_that_answers_is_well(settings):
    settings.WORKSPACE_SCAN_HOOK = "tests.diagnostics.test_doctor.scan_nothing"
    assert doctor("--only", "tools")[0] == 0


def scan_nothing(stream: object, meta: object) -> str:
    return "clean"


DOCTOR = ("manage.py", "doctor")
WORKER = ("-m", "celery", "-A", "config", "worker")
WEB = ("-m", "config.http.web_server", "--port", "1")
WITHOUT_MODEL = (
    "OPENAI_BASE_URL",
    "http://127.0.0.1:1",
)  # it needs OPENAI_MODEL: refused by an app, not by the settings


@pytest.mark.parametrize(
    ("program", "name", "value"),
    [
        (DOCTOR, "DATABASE_URL", "mysql://x/y"),
        (DOCTOR, "REDIS_URL", "redis://:sesame@127.0.0.1:port/0"),
        (DOCTOR, "SITE_URL", "chat.example.com"),
        (DOCTOR, "SECRET_KEY", "short"),
        (DOCTOR, "DEMO_LOGIN", "true"),
        (WORKER, "DEBUG", "true"),
        (WORKER, *WITHOUT_MODEL),
        (WEB, "DEBUG", "true"),
    ],
)
def test_a_bad_value_ends_every_program_with_one_sentence(program: tuple[str, ...], name: str, value: str):
    environment = os.environ | {"PILOTHOUSE_ENVIRONMENT": "production", "SECRET_KEY": SECRET * 2, name: value}
    done = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    [sentence] = done.stderr.strip().splitlines()
    assert name in sentence
    assert "sesame" not in sentence


class ClusterValkey(EmbeddedValkey):
    def _build_command(self) -> list[str]:
        return [*super()._build_command(), "--cluster-enabled", "yes", "--databases", "1"]


def test_doctor_refuses_a_redis_cluster(settings):
    with directory_of("cluster") as directory:
        server = ClusterValkey(directory / "valkey", durable=False)
        start_servers(server)
        try:
            settings.REDIS_URL = server.url
            redis.get_redis.cache_clear()
            _, checks = doctor("--only", "redis")
        finally:
            redis.get_redis.cache_clear()
            server.stop()
    [found] = [check for check in checks if check["name"] == "redis"]
    assert found["status"] == "fail"
    assert "Redis Cluster is not supported" in found["next_step"]
