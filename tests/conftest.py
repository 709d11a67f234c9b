"""One private Postgres and one Valkey per test run; a cloned database and a Redis number per test process."""

from __future__ import annotations

import contextlib
import errno
import gc
import inspect
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
import time_machine
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from config.dev.servers import ServerProblem, run_private_servers
from tests.support import timeouts
from tests.support.suite_parts import IN_BROWSER, WITHOUT_BROWSER

if TYPE_CHECKING:
    from tests.stripe_fake import Fake
    from tests.support.plan_shop import Shop
    from tests.support.turn_engine import Model, Rig

WORKER = os.environ.get(
    "PYTEST_XDIST_WORKER", ""
)  # "gw0", "gw1", …; empty without xdist and in the controller
TESTS = Path(__file__).parent
BROWSER_TESTS = TESTS / "browser"
# Begun last, one of these would keep a process busy while the others have nothing left to do.
LONGEST = (
    "config/dev/test_run.py",
    "copilot/api/test_schemathesis.py",
    "linking/test_linked_chat_journey.py",
    "copilot/admin/test_admin_lists.py",
    "copilot/tools/mcp/test_mcp_turns.py",
    "browser/test_keyboard_journey.py",
    "browser/test_plans.py",
)
_stack = contextlib.ExitStack()

# A busy machine draws slowly: that says nothing about what is tested.
hypothesis_settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Loads the settings only now, with the addresses of servers that run; pytest-django sets up Django next."""
    if WORKER:
        gc.disable()  # while modules and tests are read nothing becomes garbage
    _stay_on_this_machine()
    _hear_interrupts()
    if not WORKER:
        _start_servers()
    _enter_own_environment()
    from django.conf import settings

    assert settings.ENVIRONMENT == "test"
    # In this process only: processes that tests start work as in the field.
    settings.TURN_WAKEUPS = "broker"  # which tests can hold back
    settings.METER_SECONDS = 0
    settings.MODEL_BREAKER_FAILURES = 0  # models of tests fail on purpose
    settings.FOLLOW_CATALOGUE = False  # most tests say themselves when rows are looked at
    # xdist's processes would inherit it, and pytest-django would load their settings too early.
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part of the suite does not even read the other's files: reading all takes a process longer than its start."""
    if not collection_path.name.startswith("test_"):
        return None
    other = WITHOUT_BROWSER if BROWSER_TESTS in collection_path.parents else IN_BROWSER
    return True if config.getoption("markexpr") == other else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _refuse_coroutines_in_a_rolled_back_transaction(items)
    items.sort(key=lambda item: item.path.relative_to(TESTS).as_posix() not in LONGEST)


def _refuse_coroutines_in_a_rolled_back_transaction(items: list[pytest.Item]) -> None:
    """A coroutine's queries run in another thread, on another connection: its rows would stay for the next test."""
    for item in items:
        mark = item.get_closest_marker("django_db")
        if (
            mark
            and not mark.kwargs.get("transaction")
            and inspect.iscoroutinefunction(getattr(item, "obj", None))
        ):
            raise pytest.UsageError(f"{item.nodeid} is a coroutine: mark it django_db(transaction=True)")


def pytest_collection_finish() -> None:
    """What was read lives as long as the process: nobody need look through it for garbage again and again."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    _stack.close()


def _stay_on_this_machine() -> None:
    """To a test process the rest of the world is a network that cannot be reached (B19.c1)."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(str(address[0])):
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        connect(self, address)

    socket.socket.connect = connect_here  # type: ignore[method-assign, assignment]


def _hear_interrupts() -> None:
    """Who is started in the background is deaf to Ctrl-C, and so is everything that tests start and then interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_here(host: str) -> bool:
    try:
        number = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return number.is_loopback or number.is_unspecified


def _start_servers() -> None:
    """In the controller only; xdist's processes inherit the addresses."""
    try:
        postgres, valkey = _stack.enter_context(run_private_servers(prefix="pilothouse-test-"))
    except ServerProblem as problem:
        pytest.exit(str(problem), returncode=1)
    os.environ["TEST_POSTGRES_URL"] = postgres.database_url("")
    os.environ["TEST_REDIS_URL"] = valkey.url.rpartition("/")[0] + "/"
    with redis.Redis.from_url(valkey.url) as client:
        # A test forgets its own number alone: others share the server.
        client.execute_command("ACL", "SETUSER", "default", "-flushall")


def _enter_own_environment() -> None:
    """Each test process has its own database, Redis number, key prefix (channels know no numbers) and files."""
    files = Path(tempfile.mkdtemp(prefix="pilothouse-files-"))
    _stack.callback(shutil.rmtree, files, ignore_errors=True)
    (files / "static").mkdir()  # WhiteNoise warns about a missing one, and warnings are errors here
    number = int(WORKER.removeprefix("gw")) + 1 if WORKER else 0
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PILOTHOUSE_ENVIRONMENT": "test",
        "DATABASE_URL": f"{os.environ['TEST_POSTGRES_URL']}pilothouse_{WORKER or 'main'}",
        "REDIS_URL": f"{os.environ['TEST_REDIS_URL']}{number}",
        "REDIS_KEY_PREFIX": f"ph-{WORKER or 'main'}",
        "WORKSPACE_ROOT": str(files / "workspace"),
        "STATIC_ROOT": str(files / "static"),
    }
    providers = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
    payments = ("STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRETS", "STRIPE_API_BASE")
    for secret in (*providers, *payments):
        os.environ.pop(secret, None)  # a developer's keys must never pay for a test


@pytest.fixture(scope="session", autouse=True)
def _servers_may_be_slow() -> None:
    timeouts.with_servers()


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: pytest.FixtureRequest) -> Iterator[None]:
    """One template per run, created by the first process that needs it; every process clones it."""
    from django.conf import settings
    from django.db import connection

    from tests.support import database_cleanup, database_template

    name = settings.DATABASES["default"]["NAME"]
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        with _maintenance() as server:
            server.execute("select pg_advisory_lock(1)")
            if not server.execute(
                "select 1 from pg_database where datname = %s", [database_template.NAME]
            ).fetchone():
                database_template.make(server, os.environ["TEST_POSTGRES_URL"])
            # A test that is run again after its process's last one sets everything up again.
            server.execute(f'drop database if exists "{name}" with (force)')
            server.execute(f'create database "{name}" template "{database_template.NAME}"')
        with database_cleanup.quickly():
            yield
        connection.close()


@contextlib.contextmanager
def _maintenance() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(os.environ["TEST_POSTGRES_URL"] + "postgres", autocommit=True) as server:
        yield server


@pytest.fixture(scope="session")
def _own_redis() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        yield client


@pytest.fixture
def redis_clean(_own_redis: redis.Redis) -> redis.Redis:
    """This process's Redis, emptied."""
    _own_redis.flushdb()
    return _own_redis


@pytest.fixture(autouse=True)
def _redis_is_clean_where_rows_are(request: pytest.FixtureRequest) -> None:
    """Rows and live state begin empty together; plain tests pay nothing."""
    if request.node.get_closest_marker("django_db") or {"db", "transactional_db"} & set(request.fixturenames):
        request.getfixturevalue("redis_clean")


# --- the engine and Stripe ---------------------------------------------------------------------------


@pytest.fixture
def rig(transactional_db: None) -> Iterator[Rig]:
    """One worker that runs what is sent."""
    from tests.support.turn_engine import rigged

    with rigged() as rig:
        rig.start_worker()
        yield rig


@pytest.fixture
def model(rig: Rig) -> Model:
    return rig.model


@pytest.fixture
def stripe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Payments are on and lead to a fake Stripe; the SDK wastes no time before it tries again."""
    from django.test import override_settings
    from stripe import HTTPClient

    from tests import stripe_fake
    from tests.support.stripe_webhooks import post_webhook

    monkeypatch.setattr(HTTPClient, "INITIAL_DELAY", 0.005)
    monkeypatch.setattr(HTTPClient, "MAX_DELAY", 0.005)
    with (
        stripe_fake.running() as fake,
        override_settings(
            STRIPE_SECRET_KEY=stripe_fake.SECRET_KEY,
            STRIPE_WEBHOOK_SECRETS=[stripe_fake.WEBHOOK_SECRET],
            STRIPE_API_BASE=fake.address,
        ),
    ):
        fake.webhooks.post = post_webhook
        yield fake


@pytest.fixture
def shop_clock() -> Iterator[time_machine.Traveller]:
    """Our clock, set to the moment at which the shop opens."""
    from tests.support.plan_shop import START

    with time_machine.travel(START, tick=True) as clock:
        yield clock


@pytest.fixture
def shop(shop_clock: time_machine.Traveller, stripe: Fake, db: None) -> Iterator[Shop]:
    """Both plans are for sale; the fake begins at the same moment."""
    from tests.support.plan_shop import open_shop

    with open_shop(stripe, shop_clock) as shop:
        yield shop
