"""deploy/ matches the code: variables, commands, queues, shutdown times, endpoints and limits."""

from __future__ import annotations

import configparser
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from ctypes.util import find_library
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.urls import resolve

from config import variables
from config.dev import run
from config.http import web_server
from copilot.tools.sandbox import bubblewrap, workspace_sync
from tests.support.paths import ROOT
from tests.support.programs import run_manage_command

DEPLOY = ROOT / "deploy"
READ_BY_OTHERS = {"PYTHONUNBUFFERED", "PATH"}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
DOCUMENTS = list(yaml.safe_load_all((DEPLOY / "k8s/pilothouse.yaml").read_text()))
CONTAINERS = {
    container["name"]: (container, document)
    for document in DOCUMENTS
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


ALL = run.list_workers({"TELEGRAM_BOT_TOKEN": "set"})
PROGRAMS = {program.name: plain(program.command) for program in (*ALL, run._build_web("127.0.0.1", 8000))}


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
    assert named - variables.names - READ_BY_OTHERS == set()


def test_no_value_of_the_example_is_followed_by_words():
    """Neither systemd nor Docker knows a comment behind a value."""
    assert {name: value for name, value in example().items() if "#" in value or " " in value} == {}


@pytest.mark.timeout(300)  # the whole site is loaded, on a machine that may be busy
def test_the_example_starts_in_production_and_django_has_no_objection():
    given = {name: value for name, value in example().items() if value}
    done = run_manage_command(
        "check", "--deploy", "--fail-level", "WARNING", **(given | {"SECRET_KEY": "3k-" * 20 + "Zq81"})
    )
    assert done.returncode == 0, done.stderr


def seconds(text: str | int) -> int:
    return int(str(text).removesuffix("s"))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("turns", settings.TURN_GRACE_SECONDS + 10),  # the hand-over writes every turn's last words
        ("web", int(example()["WEB_DRAIN_SECONDS"]) + web_server.SHUTDOWN_TIMEOUT_SECONDS + 5),
        ("chats", 60),
        ("background", 60),  # a mail or a payment under way would be done again two hours later
    ],
)
def test_no_process_is_killed_during_its_graceful_shutdown(name, least):
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
        assert (example()["WORKSPACE_ROOT"] in mounted) == (name not in ("migrate", "schedule")), name
    assert {one["User"] for one in UNITS.values()} == {"pilothouse"}
    assert re.search(r"^USER pilothouse$", DOCKERFILE, re.M)


# --- what an attacker who is in finds ----------------------------------------------------------------

OURS = {name: one for name, one in COMPOSE.items() if name not in ("postgres", "redis")}
WRITTEN = {"/tmp", "/var/lib/pilothouse/metrics"}
UNITS_OF_SIZE = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 2**20, "g": 2**30, "G": 2**30, "M": 2**20}


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS_OF_SIZE[unit]


def test_no_pod_has_rights_a_token_or_an_image_it_can_write_to():
    pods = {document["metadata"]["name"]: document for _, document in CONTAINERS.values()}
    assert len(pods) == 6
    for name, (container, document) in CONTAINERS.items():
        pod, own = document["spec"]["template"]["spec"], container["securityContext"]
        assert pod["automountServiceAccountToken"] is False, name
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["readOnlyRootFilesystem"] is True, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        mounted = {one["mountPath"] for one in container["volumeMounts"]}
        assert mounted >= WRITTEN, name
        assert {one["name"] for one in container["volumeMounts"]} <= {one["name"] for one in pod["volumes"]}
        assert {one["name"] for one in container["volumeMounts"]} >= {"metrics"}
        account = pod["securityContext"]
        assert (account["runAsUser"], account["runAsGroup"]) == (10001, 10001)
        assert "privileged" not in own
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert "hostPath" not in str(pod["volumes"])


def test_only_the_pod_with_a_sandbox_has_more_than_the_usual_calls():
    for name, (container, document) in CONTAINERS.items():
        pod = document["spec"]["template"]["spec"]
        kind = pod["securityContext"]["seccompProfile"]["type"]
        assert (kind == "Localhost") == (name == "turns"), name
        assert ("procMount" in container["securityContext"]) == (name == "turns")
        if name == "turns":
            assert pod["hostUsers"] is False  # an uncovered /proc is only safe there


def test_no_container_of_compose_has_rights_or_an_image_it_can_write_to():
    for name, service in OURS.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service
        mounted = {one.rpartition(":")[2] for one in service["volumes"]}
        mounted |= {one.partition(":")[0] for one in service["tmpfs"]}
        assert mounted >= WRITTEN, name
    assert {name for name, service in OURS.items() if len(service["security_opt"]) > 1} == {"turns"}
    assert "seccomp=unconfined" not in str(COMPOSE)
    for name in ("postgres", "redis"):
        assert COMPOSE[name]["networks"] == ["data"]
        assert "ports" not in COMPOSE[name]


def test_memory_is_above_what_programs_in_the_sandbox_may_take():
    at_once = int(COMPOSE["turns"]["environment"]["SANDBOX_CONCURRENCY"])
    assert size(COMPOSE["turns"]["mem_limit"]) >= at_once * bubblewrap.MAX_MEMORY_BYTES + 2**30
    container, document = CONTAINERS["turns"]
    [at_once] = [int(one["value"]) for one in container["env"] if one["name"] == "SANDBOX_CONCURRENCY"]
    assert size(container["resources"]["limits"]["memory"]) >= at_once * bubblewrap.MAX_MEMORY_BYTES + 2**30
    [disk] = [one for one in document["spec"]["template"]["spec"]["volumes"] if one["name"] == "tmp"]
    taken = (
        bubblewrap.MAX_FOLDER_BYTES + workspace_sync.MAX_READ_BYTES
    )  # what it wrote, and what is packed of it
    assert size(disk["emptyDir"]["sizeLimit"]) >= 2 * at_once * taken
    assert "medium" not in disk["emptyDir"]
    at_once = settings.SANDBOX_CONCURRENCY
    assert size(UNITS["turns"]["MemoryMax"]) >= at_once * bubblewrap.MAX_MEMORY_BYTES + 2**30
    assert UNITS["turns"]["OOMPolicy"] == "continue"
    for name, (container, _) in CONTAINERS.items():
        assert container["resources"]["limits"]["memory"], name


def test_pods_are_reached_by_the_proxy_and_prometheus_and_do_not_reach_credentials_of_the_cloud():
    policies = {one["metadata"]["name"]: one["spec"] for one in DOCUMENTS if one["kind"] == "NetworkPolicy"}
    everybody = {"matchLabels": {"app": "pilothouse"}}
    assert policies["pilothouse-ingress"]["podSelector"] == everybody
    assert policies["pilothouse-ingress"]["policyTypes"] == ["Ingress"]
    assert all(rule["from"] for one in policies.values() for rule in one.get("ingress", ()))
    egress = policies["pilothouse-egress"]
    assert egress["podSelector"] == everybody
    open_blocks = [to["ipBlock"] for rule in egress["egress"] if "ports" not in rule for to in rule["to"]]
    assert {block["cidr"] for block in open_blocks} == {"0.0.0.0/0", "::/0"}
    closed = [ip_network(network) for block in open_blocks for network in block["except"]]
    for address in ("169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "fd00::1", "fe80::1"):
        assert any(ip_address(address) in network for network in closed), address
    labels = [document["spec"]["template"]["metadata"]["labels"] for _, document in CONTAINERS.values()]
    assert all(label["app"] == "pilothouse" for label in labels)


def test_units_give_up_what_they_do_not_need_and_the_sandbox_still_starts():
    every = {
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "ProtectSystem": "strict",
        "RestrictSUIDSGID": "yes",
        "LockPersonality": "yes",
        "SystemCallArchitectures": "native",
    }
    # Each of these covers parts of /proc, or bars a call that bubblewrap makes.
    without_a_sandbox = {
        *("ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname", "RestrictNamespaces"),
        *("SystemCallFilter", "PrivateDevices"),
    }
    for name, one in UNITS.items():
        assert every.items() <= dict(one).items(), name
        assert (set(one) & without_a_sandbox) == (set() if name == "turns" else without_a_sandbox), name
        assert "AF_NETLINK" in one["RestrictAddressFamilies"]  # with which bubblewrap brings its loopback up


def test_the_workers_figures_are_scraped_with_the_token():
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert all(job["authorization"]["credentials_file"] for job in jobs)


PROFILE = DEPLOY / "seccomp.json"
NEEDED = {
    "clone",
    "unshare",
    "mount",
    "umount2",
    "pivot_root",
    "sethostname",
    "prctl",
    "seccomp",
    "pidfd_open",
}
NEVER = {
    *(
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "kcmp",
        "pidfd_getfd",
        "bpf",
        "perf_event_open",
        "keyctl",
    ),
    *(
        "add_key",
        "request_key",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "userfaultfd",
        "setns",
    ),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon"),
    *(
        "open_by_handle_at",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
        "iopl",
        "ioperm",
        "syslog",
    ),
}


def test_the_profile_of_calls_names_what_is_allowed_and_nothing_dangerous():
    profile = json.loads(PROFILE.read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == errno.ENOSYS  # libraries take another way then
    assert set(profile["architectures"]) == {"SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"}
    [group] = profile["syscalls"]
    assert group["action"] == "SCMP_ACT_ALLOW"
    names = group["names"]
    assert names == sorted(set(names))
    assert set(names) >= NEEDED
    assert not set(names) & NEVER
    assert COMPOSE["turns"]["security_opt"][1] == f"seccomp=./{PROFILE.name}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
@pytest.mark.skipif(find_library("seccomp") is None, reason="needs libseccomp")
def test_the_sandbox_works_under_the_profile_without_any_rights():
    """As in a container: another account, no capabilities, no way to gain any, and these calls alone"""
    if reason := bubblewrap.find_sandbox_problem():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 54321, 54321)
        words = [
            sys.executable,
            "-m",
            "tests.support.container_worker",
            str(PROFILE),
            place,
            "echo made > x; cat x; id -u",
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"missing": "", "said": "made\n1000\n", "let_through": []}


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


def test_every_long_running_service_has_a_health_check():
    """D15: the web process by its endpoint, the others by the file that they touch"""
    beats = {"name": "HEARTBEAT_FILE", "value": "/tmp/heartbeat"}
    for name, (container, _) in CONTAINERS.items():
        if name != "migrate":
            probe = container["livenessProbe"]
            assert "httpGet" in probe or beats in container["env"], name
    without = [name for name, service in COMPOSE.items() if "healthcheck" not in service]
    assert without == ["migrate"]
