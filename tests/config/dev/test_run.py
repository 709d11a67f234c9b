"""`make run`: one command to a served page, clear sentences, a clean end (P14)."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from config.core import demo_login
from config.dev import run
from config.dev.run import Program
from config.dev.servers import find_free_port
from tests.support.paths import ROOT

PATIENCE_SECONDS = 90  # on a busy machine; alone it takes two to six


class Run:
    """A running installation with a directory of its own."""

    def __init__(self, var: Path, port: int) -> None:
        left_out = ("DATABASE_URL", "REDIS_URL", "PILOTHOUSE_ENVIRONMENT", "STATIC_ROOT", "WORKSPACE_ROOT")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        self.port = port
        self.process = subprocess.Popen(
            [sys.executable, "-m", "config.dev.run"],
            cwd=ROOT,
            env=environment | {"PILOTHOUSE_VAR": str(var), "PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def until_said(self, words: str) -> str:
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                pytest.fail(f"never said {words!r}:\n{''.join(self.said[-40:])}")
            self.said.append(line)
            if words in line:
                return line

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        while not self._lines.empty():
            self.said.append(self._lines.get())
        return code


@pytest.fixture
def var(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "var"


@contextlib.contextmanager
def running(var: Path, port: int) -> Iterator[Run]:
    run = Run(var, port)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.ended()


def descendants(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.timeout(300)
def test_a_run_serves_says_where_heals_and_leaves_nothing_behind(var: Path):
    with running(var, find_free_port()) as run:
        assert str(run.port) in run.until_said("ready: http")
        assert "demo / demo-pilothouse" in run.until_said("log in as")
        assert run.status("/accounts/login/") == 200
        with running(var, find_free_port()) as second:
            assert (second.ended(), "already runs here" in "".join(second.said)) == (1, True)
        family = descendants(run.process.pid)
        [web] = [pid for pid in family if "config.http.web_server" in _command(pid)]
        os.kill(web, signal.SIGKILL)
        run.until_said("died (signal SIGKILL); starting it again")
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0
        assert "Traceback" not in "".join(run.said)
        assert not [pid for pid in family if _alive(pid)]
    with running(var, find_free_port()) as again:
        again.until_said("ready: http")
        family = descendants(again.process.pid)
        again.process.kill()
        again.ended()
        _until_gone(family)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):  # a server's child of a moment
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def _until_gone(pids: list[int]) -> None:
    import time

    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "somebody outlived the supervisor"
        time.sleep(0.05)


def test_a_taken_port_is_a_sentence(var: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with running(var, other.getsockname()[1]) as run:
            assert run.ended() == 1
        assert len(run.said) == 1
        assert "cannot be used" in run.said[0]
        assert "make run PORT=" in run.said[0]


@pytest.mark.parametrize("port", ["0", "99999", "soon"])
def test_a_nonsense_port_is_a_sentence(var: Path, monkeypatch: pytest.MonkeyPatch, port: str):
    monkeypatch.setenv("PORT", port)
    done = subprocess.run(
        [sys.executable, "-m", "config.dev.run"],
        cwd=ROOT,
        env=os.environ | {"PILOTHOUSE_VAR": str(var), "PORT": port},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"PORT must be a number from 1 to 65535, not '{port}'.\n")


def test_a_database_that_does_not_answer_is_a_sentence(var: Path, monkeypatch: pytest.MonkeyPatch):
    done = subprocess.run(
        [sys.executable, "-m", "config.bootstrap"],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": f"postgres://nobody:secret@127.0.0.1:{find_free_port()}/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("The database does not answer")
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_bots_of_our_own_have_a_worker_of_their_own() -> None:
    """L18: what somebody waits for in a chat waits behind nothing else; without bots nothing is started for them"""
    assert [program.name for program in run.list_workers({})] == [program.name for program in run.WORKERS]
    *_, chats = run.list_workers({"TELEGRAM_BOT_TOKEN": "1:x"})
    assert (chats.name, chats.command[:2]) == ("chats", ("nice", "-n"))


def test_every_turn_worker_has_a_name_of_its_own() -> None:
    """Celery tells nodes apart by name, and the supervisor its processes"""
    [first, *more] = [
        program
        for program in run.repeat_turn_worker(run.list_workers({}), 3)
        if queue_of(program) == ["turns"]
    ]
    assert [program.name for program in (first, *more)] == ["turns", "turns2", "turns3"]
    assert [program.command[program.command.index("-n") + 1] for program in more] == [
        "turns2@%h",
        "turns3@%h",
    ]
    assert run.repeat_turn_worker(run.list_workers({}), 1) == run.list_workers({})


@pytest.mark.parametrize("count", ["0", "65", "many"])
def test_a_nonsense_number_of_turn_workers_is_a_sentence(monkeypatch: pytest.MonkeyPatch, count: str):
    monkeypatch.setenv("TURN_PROCESSES", count)
    with pytest.raises(run.RunProblem, match="TURN_PROCESSES must be a number from 1 to 64"):
        run._read_turn_processes()


def test_the_scheduler_is_a_thread_of_the_maintenance_worker() -> None:
    """P22: a process of its own takes the memory of a whole Django"""
    programs = {program.name: program.command for program in run.embed_scheduler(run.list_workers({}))}
    assert set(programs) == {"turns", "maintenance", "background"}
    assert [name for name, command in programs.items() if "--with-scheduler" in command] == ["maintenance"]


def test_one_process_alone_speaks_to_the_platforms() -> None:
    """L20: it keeps count of what they take; without bots somebody serves the queue all the same"""
    for environment in ({}, {"SLACK_BOT_TOKEN": "xoxb"}):
        served = [queue_of(program) for program in run.list_workers(environment)]
        assert sum("chats" in queues for queues in served) == 1


def queue_of(program: Program) -> list[str]:
    words = program.command
    return words[words.index("-Q") + 1].split(",") if "-Q" in words else []


# --- the demo login ------------------------------------------------------------------------------------


@pytest.mark.attack
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "chat.example.com"])
def test_a_run_that_the_network_reaches_is_refused_with_the_demo_login(var: Path, host: str):
    left_out = ("PILOTHOUSE_ENVIRONMENT", "DEMO_LOGIN")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-m", "config.dev.run"],
        cwd=ROOT,
        env=environment | {"PILOTHOUSE_VAR": str(var), "PORT": str(find_free_port()), "HOST": host},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"HOST={host} would let everybody on the network log in as demo / demo-pilothouse: "
        "switch the demo login off with DEMO_LOGIN=false, or leave HOST out.\n"
    )


@pytest.mark.parametrize(
    ("host", "variables"),
    [
        ("127.0.0.1", {}),
        ("::1", {}),
        ("localhost", {}),
        ("0.0.0.0", {"DEMO_LOGIN": "false"}),
        ("0.0.0.0", {"PILOTHOUSE_ENVIRONMENT": "production"}),
    ],
)
def test_other_runs_are_not_refused(monkeypatch: pytest.MonkeyPatch, host: str, variables: dict[str, str]):
    monkeypatch.setenv("PILOTHOUSE_ENVIRONMENT", "development")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run._refuse_public_demo(host)


@pytest.mark.django_db
def test_the_demo_login_is_closed_and_opened_again():
    demo_login.open_demo_login()
    assert demo_login.is_demo_login_open()
    assert demo_login.close_demo_login() is True
    assert not demo_login.is_demo_login_open()
    assert not User.objects.filter(
        is_superuser=True, is_active=True
    ).exists()  # the setup link can be printed
    assert demo_login.close_demo_login() is False
    demo_login.open_demo_login()
    assert demo_login.is_demo_login_open()


@pytest.mark.django_db
def test_a_demo_account_with_a_password_of_its_own_is_left_alone():
    demo_login.open_demo_login()
    user = User.objects.get(username=demo_login.DEMO_USERNAME)
    user.set_password("something else")
    user.save()
    assert demo_login.close_demo_login() is False
    demo_login.open_demo_login()
    user.refresh_from_db()
    assert user.check_password("something else")
