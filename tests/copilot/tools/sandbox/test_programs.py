"""Programs in the sandbox, run for real, and the session's files around them (A23)."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.files import quotas
from copilot.files import services as files
from copilot.models import Session, WorkspaceFile
from copilot.realtime.events import ArtifactAdded, Event
from copilot.tools import registry
from copilot.tools.sandbox import bubblewrap, programs, workspace_sync
from tests.support import factories
from tests.support.sandbox import list_processes, run_bash, wait_until
from tests.support.tool_calls import use

PNG = "89504e470d0a1a0a" + "00" * 32


def within(folder: Path) -> list[Path]:
    return list(folder.iterdir())


# --- running ---------------------------------------------------------------------------------------


async def test_a_command_answers_in_fields(context: TurnContext) -> None:
    """A23.3: a non-zero exit is a result"""
    fields = await run_bash(context, "echo out; echo err >&2; exit 3")
    assert fields == {
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
        "timed_out": False,
        "files": [],
        "message": "",
    }


async def test_a_command_out_of_time_is_killed_with_what_it_said(context: TurnContext) -> None:
    """A23.c1: sleep 400, timeout 2"""
    mark = f"400.{uuid4().int % 10**9}"
    fields = await run_bash(context, f"echo begun; sleep {mark} & sleep {mark}", timeout=2)
    assert (fields["timed_out"], fields["stdout"]) == (True, "begun\n")
    assert "Stopped after 2 s" in fields["message"]
    await wait_until(lambda: not list_processes(mark), 60)


async def test_a_stop_leaves_no_process(context: TurnContext) -> None:
    """A23.c1: stop mid-command"""
    mark = f"400.{uuid4().int % 10**9}"
    task = asyncio.create_task(run_bash(context, f"setsid sleep {mark} & trap '' TERM; sleep {mark}"))
    await wait_until(lambda: len(list_processes(mark)) >= 2, 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await wait_until(lambda: not list_processes(mark), 60)


async def test_a_program_is_asked_to_leave_before_it_is_killed(context: TurnContext, folders: Path) -> None:
    """A1.7: a stop lets it finish its line; on one that does not listen see above"""
    mark = f"400.{uuid4().int % 10**9}"
    command = f"trap 'echo heard > note; exit' TERM; echo > ready; while :; do sleep 0.1; : {mark}; done"
    task = asyncio.create_task(sandbox_alone(context, command))
    await wait_until(lambda: any(folders.glob("*/ready")), 60)
    [folder] = within(folders)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (folder / "note").read_text() == "heard\n"
    assert not list_processes(mark)
    workspace_sync.remove_folder(folder)


async def sandbox_alone(context: TurnContext, command: str) -> None:
    """The program without what comes before and after it: its folder stays."""
    folder = Path(tempfile.mkdtemp(prefix="pilothouse-sandbox-"))
    bubblewrap.prepare_folder(folder)
    await bubblewrap.run_program(["/bin/bash", "-c", command], folder=folder, seconds=60)


async def test_there_is_no_network(context: TurnContext) -> None:
    """A23.c1"""
    code = "import socket\nfor a in ('1.1.1.1', '127.0.0.1'):\n try: socket.create_connection((a, 80), 2)\n except OSError as e: print(e.errno)"
    outcome = await use(context, "python_exec", code=code)
    fields = json.loads(outcome.content)
    assert (fields["stdout"].split(), fields["exit_code"]) == (["101", "111"], 0)
    assert (await run_bash(context, "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -vc lo:"))[
        "stdout"
    ] == "2\n"


async def test_nothing_of_the_server_is_seen(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """A23.c1: settings and environment are absent"""
    monkeypatch.setenv("CANARY_OF_THE_SERVER", "canary-sandbox-1")
    seen = await run_bash(
        context,
        f"env; cat /proc/*/environ | tr '\\0' '\\n'; ls {settings.BASE_DIR} {os.environ['WORKSPACE_ROOT']} /root /home /etc/passwd; "
        "touch /usr/x; id -u; hostname",
    )
    assert "CANARY" not in seen["stdout"] + seen["stderr"]
    assert "SECRET_KEY" not in seen["stdout"]
    assert seen["stderr"].count("No such file") == 5
    assert "Read-only file system" in seen["stderr"]
    assert seen["stdout"].endswith("1000\nsandbox\n")


async def test_only_the_working_directory_and_bounded_memory_can_be_written(context: TurnContext) -> None:
    """A23.1"""
    places = "/ /dev /etc /usr /proc /sandbox /workspace /tmp /dev/shm"
    command = f'for p in {places}; do touch "$p/x" 2>/dev/null && echo "$p"; done; df -m --output=size /tmp /dev/shm'
    assert (await run_bash(context, command))["stdout"].split() == [
        *("/workspace", "/tmp", "/dev/shm", "1M-blocks", "256", "256")
    ]


async def test_a_fork_bomb_is_contained(context: TurnContext) -> None:
    """A23.c1"""
    mark = f"bomb{uuid4().hex}"
    fields = await run_bash(context, f": {mark}; b() {{ b | b & }}; b; sleep 30", timeout=2)
    assert "Resource temporarily unavailable" in fields["stderr"]
    await wait_until(lambda: not list_processes(mark), 60)
    assert (await run_bash(context, "echo well"))["stdout"] == "well\n"


async def test_memory_and_file_sizes_have_ends(context: TurnContext) -> None:
    """A23.1"""
    memory = json.loads((await use(context, "python_exec", code="x = bytearray(2**30)")).content)
    assert "MemoryError" in memory["stderr"]
    large = await run_bash(
        context, "head -c 300M /dev/zero > /tmp/big; ls -s --block-size=1M /tmp/big | cut -d' ' -f1"
    )
    assert int(large["stdout"]) <= 200


async def test_many_processes_share_one_allowance_of_memory(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23.1: the kernel's limit holds for each of them only"""
    monkeypatch.setattr(bubblewrap, "MAX_MEMORY_BYTES", 200 * 2**20)
    eater = "python3 -c 'import time; x = bytearray(90 * 2**20); print(1, flush=True); time.sleep(60)'"
    fields = await run_bash(context, " & ".join([eater] * 4) + "; wait", timeout=60)
    assert "Stopped, because it took more than" in fields["message"]
    assert (fields["timed_out"], fields["exit_code"]) == (False, -9)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("mkdir d; head -c 30M /dev/zero > d/x", id="in a file"),
        pytest.param("exec 3> x; rm x; head -c 30M /dev/zero >&3", id="held open and deleted, in no folder"),
        pytest.param("mkdir d; touch d/{1..6000}", id="by names alone, of which a disk has only so many"),
    ],
)
async def test_a_program_that_fills_the_disk_is_stopped(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A23.1"""
    monkeypatch.setattr(bubblewrap, "MAX_FOLDER_BYTES", 20 * 2**20)
    fields = await run_bash(context, f"{program}; sleep 60", timeout=60)
    assert "Stopped, because it wrote more than" in fields["message"]


HIDING = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.memfd_create(b"x", 0), libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600))
print(libc.unshare(0x10000000), libc.unshare(0x10020000), libc.syscall(250, 0, -3, 0))
"""


async def test_memory_cannot_be_taken_where_nobody_counts_it(context: TurnContext) -> None:
    """A23.1: files in memory, segments of no process, and mounts in a namespace of one's own"""
    fields = json.loads((await use(context, "python_exec", code=HIDING)).content)
    assert fields["stdout"].split() == ["-1"] * 7, fields["stderr"]


WATCHING = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.inotify_init(), ctypes.get_errno(), libc.inotify_init1(0), ctypes.get_errno(), libc.fanotify_init(0x200, 0), ctypes.get_errno())
"""


async def test_nothing_is_kept_for_programs_that_would_watch_files(context: TurnContext) -> None:
    """A23.1: watches and what they noted are the kernel's memory, counted for all of a user; programs look by themselves"""
    fields = json.loads((await use(context, "python_exec", code=WATCHING)).content)
    assert fields["stdout"].split() == ["-1", str(errno.ENOSYS)] * 3, fields["stderr"]
    followed = await run_bash(context, "echo one > x; sleep 0.3 & tail --pid=$! -s 0.1 -f x")
    assert (followed["stdout"], followed["exit_code"]) == ("one\n", 0)


FULL = """
import socket, time
def fill(end):
    end.setblocking(False)
    try:
        while end.send(bytes(4096)):
            pass
    except BlockingIOError:
        pass
"""
UNACCEPTED = """
heard = socket.socket(socket.AF_UNIX)
heard.bind("/tmp/heard")
heard.listen(2000)
for _ in range(1500):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("/tmp/heard")
        fill(one)
time.sleep(60)
"""
LETTERS = """
boxes = []
for number in range(150):
    boxes.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    boxes[-1].bind(f"/tmp/{number}")
    for _ in range(11):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.connect(f"/tmp/{number}")
            fill(one)
time.sleep(60)
"""
UNREAD = """
heard = socket.create_server(("127.0.0.1", 0), backlog=2000)
for _ in range(1500):
    with socket.create_connection(heard.getsockname()) as one:
        fill(one)
time.sleep(60)
"""
IN_MEMORY = """
for place in ("/tmp/x", "/dev/shm/x"):
    with open(place, "wb") as file:
        file.write(bytes(150 * 2**20))
time.sleep(60)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(UNACCEPTED, id="connections that nobody accepts, whose callers have gone"),
        pytest.param(LETTERS, id="datagrams that nobody reads"),
        pytest.param(UNREAD, id="connections inside its own network"),
        pytest.param(IN_MEMORY, id="files that lie in memory"),
    ],
)
async def test_what_the_kernel_keeps_for_a_program_is_its_memory(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A23.1: 1 GiB is all there is, wherever it lies"""
    monkeypatch.setattr(bubblewrap, "MAX_MEMORY_BYTES", 200 * 2**20)
    fields = json.loads((await use(context, "python_exec", code=FULL + program, timeout=60)).content)
    assert "Stopped, because it took more than" in fields["message"], fields


async def test_many_processes_share_one_allowance_of_open_files(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23.1: each of them keeps something in the kernel, and counting them must not take long"""
    monkeypatch.setattr(bubblewrap, "MAX_TOTAL_OPEN_FILES", 2_000)
    holder = "python3 -c 'import os, time; kept = [os.pipe() for _ in range(300)]; time.sleep(60)'"
    fields = await run_bash(context, " & ".join([holder] * 4) + "; wait", timeout=60)
    assert "Stopped, because it held more than 2,000 files open" in fields["message"]


SOCKETS = """
import asyncio, ctypes, multiprocessing, socket
one, other = socket.socketpair()
before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
    one.setsockopt(socket.SOL_SOCKET, size, 2**22)
print(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)
libc = ctypes.CDLL(None, use_errno=True)
print(*(libc.socket(*kind) for kind in ((38, 5, 0), (40, 1, 0), (2, 1, 132), (10, 1, 262), (2, 2, 1))))
with socket.create_server(("127.0.0.1", 0)) as heard, socket.create_connection(heard.getsockname()) as caller:
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    caller.send(b"over tcp")
    print(heard.accept()[0].recv(20).decode())
print(socket.if_nameindex()[0][1], asyncio.run(asyncio.sleep(0, "in a loop")))
with multiprocessing.Pool(2) as pool:
    print(sum(pool.map(abs, [-1, -2])))
"""


async def test_programs_have_sockets_of_the_usual_kinds_and_sizes_only(context: TurnContext) -> None:
    """A23.1: buffers keep the size they are counted at, and what is in no namespace is out of reach"""
    fields = json.loads((await use(context, "python_exec", code=SOCKETS)).content)
    assert fields["stdout"].splitlines() == [
        "True",
        "-1 -1 -1 -1 -1",
        "over tcp",
        "lo in a loop",
        "3",
    ], fields["stderr"]


async def test_a_flood_of_output_is_counted_not_kept(context: TurnContext) -> None:
    """A23.1"""
    outcome = await use(context, "bash_exec", command="head -c 3000000 /dev/zero | tr '\\0' x")
    whole = await run_in_thread(
        files.read_tool_output, context.user_id, UUID(context.session_id), "this-call"
    )
    fields = json.loads(whole)
    assert outcome.truncated
    assert len(fields["stdout"]) == bubblewrap.MAX_CAPTURED_BYTES
    assert f"{3_000_000 - 2**20:,} more bytes of stdout" in fields["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": ""},
        {"command": "x" * 20_001},
        {"command": "a\x00b"},
        {"command": "ls", "timeout": 0},
        {"command": "ls", "timeout": 301},
        {"command": "ls", "workdir": "/etc"},
        {"command": "ls", "workdir": "a/../.."},
    ],
)
async def test_arguments_outside_the_rules_are_refused(
    context: TurnContext, arguments: dict[str, JSON]
) -> None:
    """A23.3"""
    assert not (await use(context, "bash_exec", **arguments)).success


def test_without_bubblewrap_the_tools_are_absent_with_a_reason(settings: Any) -> None:
    """A23.c1, A23.2, A32.c1"""
    for program, reason in (
        ("no-such-bwrap", "not installed"),
        ("", "switched off"),
        ("false", "does not work here"),
    ):
        settings.SANDBOX_PROGRAM = program
        offered = {tool.name for tool in registry.list_offered_tools(UNRESTRICTED, CHANNELS_BY_ORIGIN["web"])}
        assert not offered & {"bash_exec", "python_exec"}
        assert reason in registry.list_unavailable_tools()["bash_exec"]
        assert reason in registry.list_unavailable_tools()["python_exec"]


# --- files -----------------------------------------------------------------------------------------


async def test_a_file_written_by_one_call_is_there_for_the_next_wherever_it_runs(
    context: TurnContext,
) -> None:
    """A23.c1, A23.4: nothing stays on the worker between the calls"""
    events: list[Event] = []
    await use(
        context,
        "bash_exec",
        events=events,
        command="echo one > a.txt; mkdir -p d/e; echo two > d/e/b.sh; chmod +x d/e/b.sh; mkdir empty",
    )
    assert [event.name for event in events if isinstance(event, ArtifactAdded)] == [
        workspace_sync.FOLDERS_ARCHIVE,
        "a.txt",
    ]
    again = await run_bash(
        context, "cat a.txt e/b.sh ../a.txt; test -x e/b.sh && ls -d ../empty", workdir="d"
    )
    assert again["stdout"] == "two\none\n../empty\n"
    assert again["files"] == []
    assert (await use(context, "read_file", file="a.txt")).content.endswith("one\n")


async def test_only_what_changed_is_saved_again(context: TurnContext) -> None:
    """A23.4"""
    await run_bash(context, "echo 1 > a; echo 1 > b")
    changed = await run_bash(context, "echo 2 > a; touch b; rm -f nothing")
    assert [file["name"] for file in changed["files"]] == ["a"]
    assert (await run_bash(context, "cat a b"))["stdout"] == "2\n1\n"


async def test_uploads_and_attachments_of_the_session_lie_ready_and_others_do_not(
    context: TurnContext,
) -> None:
    """A23.4, A20.1"""

    def lay() -> None:
        session = Session.objects.get(pk=context.session_id)
        files.store_file(
            context.user_id, name="own.txt", content=b"own", source="upload", session_id=session.id
        )
        files.store_file(context.user_id, name="other.txt", content=b"x", source="upload")
        attached = files.store_file(context.user_id, name="att.txt", content=b"att", source="upload")
        foreign = files.store_file(factories.bob().pk, name="bob.txt", content=b"x", source="upload")
        factories.message(session, attachments=[{"file_id": str(file.id)} for file in (attached, foreign)])

    await run_in_thread(lay)
    assert (await run_bash(context, "cat *.txt"))["stdout"] == "attown"


async def test_links_and_pipes_are_not_followed(context: TurnContext) -> None:
    """A23.1: what a program leaves behind is read outside the sandbox"""
    fields = await run_bash(
        context, "ln -s /etc/shadow s; ln -s /root d; mkfifo p; mkdir f; ln -s /etc/passwd f/x; echo y > f/y"
    )
    assert [file["name"] for file in fields["files"]] == [workspace_sync.FOLDERS_ARCHIVE]
    file = await run_in_thread(WorkspaceFile.objects.get, name=workspace_sync.FOLDERS_ARCHIVE)
    with files.open_file(file) as stream, tarfile.open(fileobj=io.BytesIO(stream.read())) as archive:
        assert archive.getnames() == ["f", "f/y"]


async def test_an_uploaded_archive_of_that_name_reaches_nothing_outside(context: TurnContext) -> None:
    """A23.1"""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind in (("../evil", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc"
            archive.addfile(member)
    session_id = UUID(context.session_id)
    content = packed.getvalue()
    await run_in_thread(
        files.store_file,
        context.user_id,
        name=workspace_sync.FOLDERS_ARCHIVE,
        content=content,
        source="upload",
        session_id=session_id,
    )
    fields = await run_bash(context, "ls -A")
    assert fields["stdout"] == ""
    assert workspace_sync.FOLDERS_ARCHIVE in fields["message"]


async def test_what_cannot_be_saved_is_named(context: TurnContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A23.4"""
    monkeypatch.setitem(
        quotas.PLAN_QUOTAS, "FREE", quotas.StorageQuota(file_bytes=10, total_bytes=100, files=9)
    )
    fields = await run_bash(context, "echo 12345678901234567890 > large; echo 1 > small")
    assert [file["name"] for file in fields["files"]] == ["small"]
    assert "Could not be saved: large: file_too_large." in fields["message"]


async def test_a_call_saves_two_hundred_files_and_names_the_rest(context: TurnContext) -> None:
    """A23.4"""
    fields = await run_bash(context, "for n in $(seq -w 203); do echo $n > f$n; done")
    assert len(fields["files"]) == workspace_sync.MAX_SAVED_FILES == 200
    assert "a call saves 200 files: f201, f202, f203." in fields["message"]


async def test_pictures_that_python_draws_are_shown(context: TurnContext) -> None:
    """A23.5"""
    outcome = await use(context, "python_exec", code=f"open('a.png', 'wb').write(bytes.fromhex('{PNG}'))")
    assert [part.data for part in outcome.media] == [bytes.fromhex(PNG)]


BURROW = """
import os
open("top", "w").write("kept")
for level in range(1500):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
    open("f" * 200, "w").close()
"""


async def test_a_folder_deeper_than_a_path_costs_its_own_content_only(
    context: TurnContext, folders: Path
) -> None:
    """A23.4: the output and the other files are saved, the failure is named, nothing is left behind"""
    outcome = await use(context, "python_exec", code=BURROW)
    assert outcome.success, outcome.content
    fields = json.loads(outcome.content)
    assert [file["name"] for file in fields["files"]] == ["top"]
    assert f"Could not be saved: {workspace_sync.FOLDERS_ARCHIVE}: nested too deeply" in fields["message"]
    assert not within(folders)


async def test_names_that_are_no_text_are_saved_under_what_is_left_of_them(context: TurnContext) -> None:
    """A23.4"""
    fields = await run_bash(context, r"echo 1 > $'a\xff.txt'; mkdir -p $'d\xfe'; echo 2 > $'d\xfe/\xfd'")
    assert [file["name"] for file in fields["files"]] == [workspace_sync.FOLDERS_ARCHIVE, "a.txt"]
    assert (await run_bash(context, "cat a.txt; cat d*/*"))["stdout"] == "1\n2\n"


async def test_files_that_are_mostly_holes_are_not_read_through(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23.1, A23.4: a thousand of them take no room on the disk, and hundreds of gigabytes wherever they are copied"""
    monkeypatch.setattr(workspace_sync, "MAX_READ_BYTES", 10 * 2**20)
    fields = await run_bash(context, "mkdir d; truncate -s 20M d/hole hole; echo 1 > small; echo 2 > d/small")
    assert [file["name"] for file in fields["files"]] == ["small"]
    said = "Could not be saved: folders.tar: too much for one call, hole: too much for one call."
    assert said in fields["message"]


async def test_more_names_than_are_looked_at_are_said_to_be_lost(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23.4"""
    monkeypatch.setattr(workspace_sync, "MAX_SCANNED_NAMES", 10)
    fields = await run_bash(context, "mkdir d; touch d/{1..20}")
    assert "Could not be saved: whatever comes after the first 10 names" in fields["message"]


def hostile_archive(member: tarfile.TarInfo, **headers: str) -> bytes:
    packed = io.BytesIO()
    member.pax_headers = headers
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    return packed.getvalue()


@pytest.mark.parametrize(
    "headers", [{"mtime": "1e300"}, {"mtime": "nan"}, {"path": "a\0b"}, {"path": "x/" * 5_000}]
)
async def test_a_hostile_archive_is_left_out_and_the_command_runs(
    context: TurnContext, headers: dict[str, str]
) -> None:
    """A23.4"""
    content = hostile_archive(tarfile.TarInfo("d/x"), **headers)
    await run_in_thread(
        files.store_file,
        context.user_id,
        name=workspace_sync.FOLDERS_ARCHIVE,
        content=content,
        source="upload",
        session_id=UUID(context.session_id),
    )
    fields = await run_bash(context, "echo runs")
    assert fields["stdout"] == "runs\n"
    assert workspace_sync.FOLDERS_ARCHIVE in fields["message"]


async def test_what_a_killed_worker_left_is_removed_by_the_next_call(
    context: TurnContext, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A23.1: people's files lay there; a link is not followed"""
    monkeypatch.setattr(programs, "ABANDONED_AFTER_SECONDS", -1.0)
    left, link = (folders / f"{programs.FOLDER_PREFIX}{name}" for name in ("left", "link"))
    for place in (left, folders / "target"):
        place.mkdir()
    (left / "secret.txt").write_text("secret")
    link.symlink_to(folders / "target")
    await run_bash(context, "true")
    assert sorted(path.name for path in within(folders)) == sorted([link.name, "target"])


async def test_no_folder_is_left_behind(context: TurnContext, folders: Path) -> None:
    """A23.1: not even one that the program closed"""
    await run_bash(context, "mkdir -p a/b; touch a/b/c; chmod 000 a/b a")
    assert not within(folders)
