"""What deploy/ says fits the code: variables, commands, queues, times to leave, doors and limits."""

from __future__ import annotations

import ast
import configparser
import json
import re
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.urls import resolve

from config import run, web
from tests.test_settings import manage

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
READ_BY_LIBRARIES = {"PROMETHEUS_MULTIPROC_DIR", "PYTHONUNBUFFERED", "PATH"}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
CONTAINERS = {
    container["name"]: (container, document)
    for document in yaml.safe_load_all((DEPLOY / "k8s/pilothouse.yaml").read_text())
    for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
}


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


UNITS = {
    path.stem.removeprefix("pilothouse-"): unit(path)
    for path in sorted((DEPLOY / "systemd").glob("*.service"))
}


def image_command() -> list[str]:
    return json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.M)[-1])


def plain(command: str | list[str] | tuple[str, ...]) -> str:
    """A command without what may differ: where its program lies, its node's name, how much it says, its address."""
    words = command if isinstance(command, str) else " ".join(command)
    words = (
        re.sub(r"^\S+/", "", re.sub(r"^nice -n \d+ ", "", words))
        .removeprefix("python3 ")
        .removeprefix("python ")
        .removeprefix("-m ")
    )
    return re.sub(r" (--quiet|-l INFO|-n \S+|--host \S+)", "", words)


def example() -> dict[str, str]:
    """The variables of env.example, also those that are commented out."""
    found = re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=(.*)$", (DEPLOY / "env.example").read_text(), re.M)
    return dict(found)


ALL = run.workers({"TELEGRAM_BOT_TOKEN": "set"})
PROGRAMS = {program.name: plain(program.command) for program in (*ALL, run._web("127.0.0.1", 8000))}


@pytest.mark.parametrize("place", ["compose", "systemd", "k8s"])
def test_every_installation_runs_what_make_run_does(place):
    commands = {
        "compose": {name: one.get("command") or image_command() for name, one in COMPOSE.items()},
        "systemd": {name: one["ExecStart"].replace("%%", "%") for name, one in UNITS.items()},
        "k8s": {name: one.get("command") or image_command() for name, (one, _) in CONTAINERS.items()},
    }[place]
    servers_and_jobs = {"postgres", "redis", "migrate"}
    assert {
        name: plain(words) for name, words in commands.items() if name not in servers_and_jobs
    } == PROGRAMS


def test_every_queue_has_its_worker():
    consumed = {words.split(" -Q ")[1].split()[0] for words in PROGRAMS.values() if " -Q " in words}
    routed = {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    assert consumed == routed | {settings.CELERY_TASK_DEFAULT_QUEUE}


def test_every_variable_is_one_that_is_read():
    known = set(READ_BY_LIBRARIES)
    for file in (ROOT / "config").glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="env")), args=[ast.Constant(value=str(name)), *_]
                ):
                    known.add(name)
    named = set(example())
    for service in COMPOSE.values():
        named |= set(service.get("environment", ())) - {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}
    for container, _ in CONTAINERS.values():
        named |= {one["name"] for one in container.get("env", ())}
    named |= {one["Environment"].partition("=")[0] for one in UNITS.values()}
    running = DOCKERFILE.rpartition("FROM ")[2]
    named |= {
        name for line in re.findall(r"^ENV (.*)$", running, re.M) for name in re.findall(r"(\w+)=", line)
    }
    assert named - known == set()


def test_no_value_of_the_example_is_followed_by_words():
    """Neither systemd nor Docker knows a comment behind a value."""
    assert {name: value for name, value in example().items() if "#" in value or " " in value} == {}


@pytest.mark.timeout(300)  # the whole site is loaded, on a machine that may be busy
def test_the_example_starts_in_production_and_django_has_no_objection():
    given = {name: value for name, value in example().items() if value}
    done = manage(
        "check", "--deploy", "--fail-level", "WARNING", **(given | {"SECRET_KEY": "3k-" * 20 + "Zq81"})
    )
    assert done.returncode == 0, done.stderr


def seconds(text: str | int) -> int:
    return int(str(text).removesuffix("s"))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("turns", settings.TURN_GRACE_SECONDS + 10),  # the hand-over writes every turn's last words
        ("web", int(example()["WEB_DRAIN_SECONDS"]) + web.SHUTDOWN_SECONDS + 5),
        ("chats", 60),
        ("background", 60),  # a mail or a payment under way would be done again two hours later
    ],
)
def test_nobody_is_killed_while_leaving_kindly(name, least):
    pod = CONTAINERS[name][1]["spec"]["template"]["spec"]
    assert seconds(COMPOSE[name]["stop_grace_period"]) >= least
    assert seconds(UNITS[name]["TimeoutStopSec"]) >= least
    assert seconds(pod["terminationGracePeriodSeconds"]) >= least
    assert UNITS[name]["KillMode"] == "mixed"


def test_what_is_asked_for_health_is_served():
    probes = re.findall(r"path: (/\w+)", (DEPLOY / "k8s/pilothouse.yaml").read_text())
    [asked] = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", str(COMPOSE["web"]["healthcheck"]))
    for path in {*probes, asked}:
        assert resolve(path).route
    assert "127.0.0.1" in example()["ALLOWED_HOSTS"].split(",")


def test_every_container_reaches_files_and_nobody_is_root():
    for name, (container, document) in CONTAINERS.items():
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"], name
        mounted = {one["mountPath"] for one in container.get("volumeMounts", ())}
        assert (mounted == {example()["WORKSPACE_ROOT"]}) == (name not in ("migrate", "schedule")), name
    assert {one["User"] for one in UNITS.values()} == {"pilothouse"}
    assert re.search(r"^USER pilothouse$", DOCKERFILE, re.M)


def test_the_image_holds_every_package():
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.M))
    ours = {name for name in settings.INSTALLED_APPS if (ROOT / name).is_dir()}
    assert copied == ours | {"config", "templates", "static"}
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M))
    assert copied | {"manage.py", "requirements"} == allowed


def test_the_proxy_takes_what_the_site_takes_and_hides_tokens():
    proxy = (DEPLOY / "nginx.conf").read_text()
    [largest] = re.findall(r"client_max_body_size (\d+)m;", proxy)
    assert int(largest) * 2**20 >= settings.UPLOAD_BODY_MAX_BYTES
    [masked] = re.findall(r"~(\^\S+)\$ \$before", proxy)
    token = "00000000-0000-4000-8000-000000000000"
    for path in (
        f"/share/{token}",
        f"/share/{token}/zip",
        f"/api/v1/public/shares/{token}",
        f"/link/{token}",
        f"/api/v1/linking/tokens/{token}/confirm-user",
        f"/api/bot/v1/tokens/{token}/status",
        f"/hooks/telegram/{token}/",
        f"/accounts/password/reset/key/1-{token}/",
        f"/accounts/confirm-email/{token}/",
    ):
        assert token in " ".join(map(str, resolve(path).kwargs.values()))
        logged = re.sub(masked.replace("?<", "?P<"), r"\g<before>***\g<after>", path)
        assert logged == re.sub(f"(1-)?{token}", "***", path)


def test_every_alert_watches_a_figure_that_is_there():
    sources = "".join((ROOT / file).read_text() for file in ("copilot/metrics.py", "diagnostics/metrics.py"))
    for name in re.findall(r"pilothouse_(\w+)", (DEPLOY / "prometheus.yml").read_text()):
        assert f'"{name}"' in sources or f'"pilothouse_{name}"' in sources, name


def test_whoever_runs_for_long_has_a_check():
    """D15: web by its door, the others by the file that they touch"""
    beats = {"name": "HEARTBEAT_FILE", "value": "/tmp/heartbeat"}
    for name, (container, _) in CONTAINERS.items():
        if name != "migrate":
            probe = container["livenessProbe"]
            assert "httpGet" in probe or beats in container["env"], name
    without = [name for name, service in COMPOSE.items() if "healthcheck" not in service]
    assert without == ["migrate"]
