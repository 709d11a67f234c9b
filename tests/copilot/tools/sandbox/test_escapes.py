"""Programs that try to leave the sandbox, to outlive their call, or to have the worker read what is not theirs.

`sandbox_attacks` tries what can be tried from inside, all in one start. The tests here judge each attempt, and attack
from outside what comes before and after a program: the copying of its files, and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from config.core import privileges
from config.core.db import run_in_thread
from copilot import checks
from copilot.chat.turn_context import TurnContext
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.tools.base import ToolError
from copilot.tools.sandbox import bubblewrap, directory_tree, programs, resources, workspace_sync
from tests.support import sandbox_attacks
from tests.support.paths import ROOT
from tests.support.sandbox import list_processes, run_bash, wait_until
from tests.support.tool_calls import use

pytestmark = pytest.mark.attack
ATTACKS = Path(sandbox_attacks.__file__).read_text()
AS_ROOT = os.geteuid() == 0


def run_alone(folder: Path, *words: str, seconds: float = 60) -> bubblewrap.ProgramResult:
    """One program in a folder, without what comes before and after it."""
    bubblewrap.prepare_folder(folder)
    return asyncio.run(bubblewrap.run_program(words, folder=folder, seconds=seconds))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as found:
        os.chmod(found, 0o711)
        yield Path(found)


# --- from inside ---------------------------------------------------------------------------------------


class Outside:
    """Things of the host that a program in the sandbox must not reach, and whether it did."""

    def __init__(self, place: Path) -> None:
        self.word = f"word-{uuid4().hex}"
        self.secret = place / "secret"
        self.secret.write_text(self.word)
        self.secret.chmod(0o600)
        self.victim = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.names = {"abstract": f"pilothouse-{uuid4().hex}", "socket": str(place / "heard.sock")}
        self.heard = [self._listening(f"\0{self.names['abstract']}"), self._listening(self.names["socket"])]
        self.heard.append(socket.create_server(("127.0.0.1", 0)))
        self.shared = Path(f"/dev/shm/pilothouse-{uuid4().hex}")
        self.shared.write_text(self.word)
        self.shared.chmod(0o666)
        self.ipc_key = uuid4().int % 2**31
        libc = ctypes.CDLL(None)
        self._segment = libc.shmget(self.ipc_key, 4096, 0o1666)
        self._queue = libc.msgget(self.ipc_key, 0o1666)
        self._semaphores = libc.semget(self.ipc_key, 1, 0o1666)

    @staticmethod
    def _listening(name: str) -> socket.socket:
        heard = socket.socket(socket.AF_UNIX)
        heard.bind(name)
        heard.listen()
        return heard

    def described(self) -> dict[str, object]:
        return {
            **self.names,
            "secret": str(self.secret),
            "victim": self.victim.pid,
            "worker": os.getpid(),
            "uid": os.geteuid(),
            "port": self.heard[2].getsockname()[1],
            "disk": os.stat("/").st_dev,
            "shared": self.shared.name,
            "ipc_key": self.ipc_key,
            "canary": os.environ.get("DJANGO_SETTINGS_MODULE") or "config.settings",
        }

    def was_called(self) -> bool:
        for one in self.heard:
            one.setblocking(False)
            try:
                one.accept()
            except BlockingIOError:
                continue
            return True
        return False

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for one in self.heard:
            one.close()
        self.shared.unlink()
        libc = ctypes.CDLL(None)
        libc.shmctl(self._segment, 0, None)
        libc.msgctl(self._queue, 0, None)
        libc.semctl(self._semaphores, 0, 0, None)


@pytest.fixture(scope="module")
def outside(place: Path) -> Iterator[Outside]:
    found = Outside(place)
    yield found
    found.close()


@pytest.fixture(scope="module")
def got(place: Path, outside: Outside) -> dict[str, object]:
    """What each attack from inside got hold of; all of them run in one sandbox."""
    if reason := bubblewrap.find_sandbox_problem():
        pytest.skip(reason)
    folder = place / "inside"
    folder.mkdir()
    finished = run_alone(folder, "/usr/bin/python3", "-c", ATTACKS, json.dumps(outside.described()))
    assert finished.exit_code == 0, finished.stderr.text
    assert outside.word not in finished.stdout.text + finished.stderr.text
    return dict(json.loads(finished.stdout.text)["got"])


@pytest.mark.parametrize("attack", sandbox_attacks.ATTACKS)
def test_from_inside_nobody_can(got: dict[str, object], attack: str) -> None:
    assert got[attack] is None


@pytest.mark.skipif(not AS_ROOT, reason="only root becomes somebody else; others ran the attacks so above")
def test_from_inside_nobody_can_either_when_the_worker_is_not_root(place: Path, outside: Outside) -> None:
    """Then programs have the worker's own account, and only namespaces and the filter are between them"""
    folder = Path(tempfile.mkdtemp(dir=place))
    os.chown(folder, 54321, 54321)
    about = outside.described() | {"uid": 54321}
    command = shlex.join(["/usr/bin/python3", "-c", ATTACKS, json.dumps(about)])
    worker = start_worker(folder, command, "as another")
    said, _ = worker.communicate(timeout=60)
    got = json.loads(said)["got"]
    assert {name: what for name, what in got.items() if what is not None} == {}
    assert len(got) == len(sandbox_attacks.ATTACKS)


def test_what_lies_outside_is_untouched(got: dict[str, object], outside: Outside) -> None:
    assert outside.victim.poll() is None
    assert not outside.was_called()
    assert outside.secret.read_text() == outside.word


def test_the_attacks_are_many_and_real(outside: Outside) -> None:
    """Some of them succeed where no sandbox is, or the list would say nothing."""
    assert len(sandbox_attacks.ATTACKS) >= 100
    reached = {
        name
        for name in (
            "read_a_file_outside",
            "climb_out_of_the_folder",
            "follow_a_link_out",
            "go_by_one_s_own_root",
            "open_a_process_outside",
            "see_processes_outside",
            "read_accounts_of_the_host",
            "open_named_shared_memory",
            "attach_shared_memory",
            "open_a_message_queue",
            "open_semaphores",
            "read_a_keyring",
            "hide_memory_in_a_file",
            "enter_a_ring_of_calls",
            "compare_with_the_first_process",
            "read_memory_of_the_first_process",
            "watch_files",
        )
        if sandbox_attacks.tried(sandbox_attacks.ATTACKS[name], outside.described()) is not None
    }
    Path("/tmp/link").unlink(missing_ok=True)
    assert len(reached) >= 9, reached  # some hosts bar a few themselves


def test_our_own_code_and_files_are_covered_and_the_cover_takes_no_memory(
    working: None, place: Path, settings: Any
) -> None:
    """Should they lie below /usr, which programs see"""
    settings.BASE_DIR, settings.MEDIA_ROOT = (
        Path("/usr/lib/x86_64-linux-gnu/perl-base"),
        Path("/usr/share/doc"),
    )
    if not all(path.is_dir() for path in (settings.BASE_DIR, settings.MEDIA_ROOT)):
        settings.BASE_DIR = settings.MEDIA_ROOT = Path("/usr/share")
    words = f"ls -A {settings.BASE_DIR} {settings.MEDIA_ROOT}; touch {settings.BASE_DIR}/x {settings.MEDIA_ROOT}/x"
    finished = run_alone(Path(tempfile.mkdtemp(dir=place)), "/bin/bash", "-c", words)
    assert {line for line in finished.stdout.text.splitlines() if line and not line.endswith(":")} == set()
    assert finished.stderr.text.count("Read-only file system") == 2


# --- survivors -----------------------------------------------------------------------------------------

CLEARED = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"
class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in names.split()]
if libc.ptrace(16, 1, None, None) == 0:
    libc.waitpid(1, None, 0x40000000)
    before, now = Registers(), Registers()
    for registers in (before, now):
        libc.ptrace(12, 1, None, ctypes.byref(registers))
    now.rax, now.rdi, now.rsi, now.rip, now.orig_rax = 157, 1, 0, before.rip - 2, 2**64 - 1
    libc.ptrace(13, 1, None, ctypes.byref(now))
    libc.ptrace(9, 1, None, None)
    libc.waitpid(1, None, 0x40000000)
    before.rax, before.rip, before.orig_rax = 61, before.rip - 2, 2**64 - 1
    libc.ptrace(13, 1, None, ctypes.byref(before))
    libc.ptrace(17, 1, None, None)
    print("cleared")
"""


async def test_the_first_process_keeps_the_signal_of_its_parent_s_death(context: TurnContext) -> None:
    """With ptrace a program made it forget that, and lived on while its files were copied"""
    mark = f"500.{uuid4().int % 10**9}"
    command = f"python3 -c '{CLEARED}'; (setsid sleep {mark} &) ; echo left"
    fields = await run_bash(context, command, timeout=30)
    assert fields["stdout"] == "left\n"
    assert not list_processes(mark)


SURVIVORS = {
    "a child in the background": "sleep MARK &",
    "a child that the shell has forgotten": "sleep MARK & disown -a",
    "a session of its own": "(setsid sleep MARK &)",
    "deaf to what asks it to go": "(trap '' TERM HUP INT QUIT; sleep MARK & wait) &",
    "stopped": "sleep MARK & kill -STOP $!",
    "holding the output": "(exec setsid sleep MARK) & (yes MARK | sleep MARK) &",
    "born again and again": "f() { (exec -a MARK sleep 0.01); f; }; (f &) ; (f &)",
    "in a pipe that nobody reads": "(sleep MARK | cat > pipe) 2>/dev/null & mkfifo pipe",
}


async def test_nobody_survives_the_call(context: TurnContext) -> None:
    """Looked at once, without waiting: the files were read before"""
    mark = f"500.{uuid4().int % 10**9}"
    command = "\n".join(SURVIVORS.values()).replace("MARK", mark) + f"\nsleep {mark} & sleep 0.2; echo left"
    fields = await run_bash(context, command, timeout=20)
    assert fields["stdout"].splitlines()[-1] == "left"
    assert not list_processes(mark)


async def test_files_are_read_after_the_last_process_has_gone(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says that the first process has ended only when its namespace is empty"""
    mark = f"500.{uuid4().int % 10**9}"
    seen: list[list[str]] = []
    save = workspace_sync.save_changes

    def look_and_save(*arguments: Any) -> workspace_sync.SavedChanges:
        seen.append(list_processes(mark))
        return save(*arguments)

    monkeypatch.setattr(workspace_sync, "save_changes", look_and_save)
    await run_bash(context, f"for n in $(seq 60); do (setsid sleep {mark} &); done", timeout=20)
    assert seen == [[]]


async def test_programs_end_though_the_first_process_forgot_to_die_with_its_parent(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a program find another way to make it forget: it is killed by its descriptor"""
    walls = bubblewrap._isolation_arguments
    monkeypatch.setattr(
        bubblewrap,
        "_isolation_arguments",
        lambda channels: [word for word in walls(channels) if word != "--die-with-parent"],
    )
    mark = f"500.{uuid4().int % 10**9}"
    for ending in ("echo left", f"sleep {mark}"):  # by itself, and out of time
        await run_bash(context, f"(trap '' TERM HUP; setsid sleep {mark} &); {ending}", timeout=1)
        assert not list_processes(mark)


async def test_nothing_is_read_while_a_process_cannot_be_ended(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a disk hangs"""

    async def never(self: bubblewrap._InitProcess, seconds: float) -> bool:
        return False

    def read(*arguments: object) -> None:
        raise AssertionError("its files were read")

    monkeypatch.setattr(bubblewrap._InitProcess, "has_ended", never)
    monkeypatch.setattr(workspace_sync, "save_changes", read)
    outcome = await use(context, "bash_exec", command="echo secret > x")
    assert not outcome.success
    assert "none of its files was read" in outcome.content


WORKER = """
import asyncio, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
import django
django.setup()
from pathlib import Path
from copilot.tools.sandbox import bubblewrap
folder = Path(sys.argv[1])
if len(sys.argv) > 3:
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
    assert not bubblewrap.find_sandbox_problem(), bubblewrap.find_sandbox_problem()
bubblewrap.prepare_folder(folder)
finished = asyncio.run(bubblewrap.run_program(["/bin/bash", "-c", sys.argv[2]], folder=folder, seconds=60))
print(finished.stdout.text, finished.stderr.text)
"""


def start_worker(folder: Path, command: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), command, *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_worker_that_is_killed_takes_its_programs_with_it(working: None, place: Path) -> None:
    """kill -9 in the middle, with programs that did what they could to be left"""
    mark = f"500.{uuid4().int % 10**9}"
    folder = place / "killed"
    folder.mkdir()
    command = f"python3 -c '{CLEARED}'; (setsid sleep {mark} &); trap '' TERM HUP; touch ready; sleep {mark}"
    worker = start_worker(folder, command)
    try:
        await wait_until((folder / "ready").exists, 60)
        assert list_processes(mark)
    finally:
        worker.kill()
        worker.communicate()
    await wait_until(lambda: not list_processes(mark), 30)


async def test_a_program_does_not_begin_before_it_is_held(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that cannot be killed for certain is not started"""
    monkeypatch.setattr(bubblewrap._InitProcess, "from_report", lambda said, parent: None)
    outcome = await use(context, "bash_exec", command="echo begun > begun; echo begun", timeout=2)
    fields = json.loads(outcome.content)
    assert "begun" not in fields["stdout"]
    assert fields["files"] == []


def test_a_worker_that_is_the_first_process_of_a_container_buries_what_it_killed(
    working: None, place: Path
) -> None:
    """Nobody else would, and after some thousand calls no number would be left for a process"""
    libc = ctypes.CDLL(None)
    adopt_orphans = 36
    assert libc.prctl(adopt_orphans, 1, 0, 0, 0) == 0
    try:
        run_alone(Path(tempfile.mkdtemp(dir=place)), "/bin/bash", "-c", "(setsid sleep 500 &); exit 3")
        own = [
            line.split()
            for line in subprocess.check_output(["ps", "-eo", "ppid,stat,comm"], text=True).splitlines()
        ]
        assert [one for one in own if one[0] == str(os.getpid()) and one[1].startswith("Z")] == []
    finally:
        libc.prctl(adopt_orphans, 0, 0, 0, 0)


@pytest.mark.skipif(not AS_ROOT, reason="only root's folders are closed to the account of programs")
def test_a_folder_that_programs_cannot_reach_is_said(
    working: None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Path(tempfile.mkdtemp(dir=place))
    closed.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    assert "Permission denied" in bubblewrap._probe()


def test_only_the_first_process_of_our_own_child_is_held() -> None:
    """A number may have become another program's"""
    numbers = (4194999, os.getpid(), os.getppid())
    named = [json.dumps({"child-pid": number}).encode() for number in numbers]
    for said in (b"", b"{", b"{}", b'{"child-pid": "x"}', *named):
        assert bubblewrap._InitProcess.from_report(said, os.getpid()) is None


def test_a_signal_reaches_descendants_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process id that was a child's when we looked, and another process's when we signalled"""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        answers = iter([[stranger.pid], []])
        monkeypatch.setattr(resources, "list_descendants", lambda pid: next(answers))
        resources.signal_descendants(os.getpid(), signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


# --- copying back --------------------------------------------------------------------------------------


@pytest.fixture
def secret(place: Path) -> Iterator[Path]:
    """A folder that only the worker may read."""
    with tempfile.TemporaryDirectory(dir=place) as found:
        (Path(found) / "passwords").write_text("the-worker-s-password")
        yield Path(found)


def contents(row: WorkspaceFile) -> bytes:
    with files.open_file(row) as stream:
        return stream.read()


def everything_stored() -> bytes:
    return b"".join(contents(row) for row in WorkspaceFile.objects.filter(purged_at=None))


SWAPPING = """
python3 -c '{cleared}'
mkdir real; echo mine > real/passwords; echo mine > plain
swap() {{ while :; do
  mv -T real kept 2>/dev/null; ln -sfn {secret} real; rm -f real; mv -T kept real 2>/dev/null
  ln -sf {secret}/passwords plain; rm -f plain; echo mine > plain
done; }}
for n in 1 2 3; do (trap '' TERM HUP; swap &) ; done
sleep 0.3
"""


async def test_a_folder_swapped_by_a_survivor_gives_nothing_away(context: TurnContext, secret: Path) -> None:
    for _ in range(3):
        await use(context, "bash_exec", command=SWAPPING.format(secret=secret, cleared=CLEARED), timeout=1)
        assert b"the-worker-s-password" not in await run_in_thread(everything_stored)


SWAPS = {
    "a folder for a link": "rm -r d; ln -s $SECRET d",
    "a file for a link": "ln -sf $SECRET/passwords top",
    "a file in a folder for a link": "ln -sf $SECRET/passwords d/passwords",
    "a file for a hard link": "ln -f $SECRET/passwords top",
    "a file for a pipe": "rm top; mkfifo top",
    "a file for another": "cp $SECRET/passwords other; mv other top",
    "content for another of the same length": "head -c 4 $SECRET/passwords > top",
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
@pytest.mark.django_db(transaction=True)
async def test_what_is_swapped_between_two_looks_is_not_read(
    context: TurnContext, place: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    """Even if some process had stayed: hashing saw one thing, packing finds another"""
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "d").mkdir()
    (work / "d" / "passwords").write_text("mine")
    (work / "top").write_text("mine")
    look = workspace_sync._read_contents

    def look_and_swap(tree: directory_tree.DirectoryTree) -> object:
        seen = look(tree)
        subprocess.run(["/bin/sh", "-ec", swap], cwd=work, env={"SECRET": str(secret)}, check=True)
        return seen

    monkeypatch.setattr(workspace_sync, "_read_contents", look_and_swap)
    before = workspace_sync.WorkspaceLayout(digests={}, left_out=[], unsafe=[])
    saved = await run_in_thread(
        workspace_sync.save_changes, context.user_id, UUID(context.session_id), "call", work, before
    )
    assert saved.failed
    assert b"the-" not in await run_in_thread(everything_stored)
    assert b"the-worker-s-password" not in await run_in_thread(everything_stored)


def test_a_tree_that_is_swapped_all_the_time_gives_nothing_away(place: Path, secret: Path) -> None:
    """Without the wait for the last process: descriptors alone hold"""
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "d").mkdir()
    (work / "d" / "passwords").write_text("mine")
    (work / "link").symlink_to(secret)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for one, other in (("d", "kept"), ("link", "d"), ("d", "link"), ("kept", "d")):
                os.rename(work / one, work / other)

    swapper = threading.Thread(target=swap)
    swapper.start()
    saved = 0
    try:
        for _ in range(400):
            with directory_tree.DirectoryTree(work) as tree, contextlib.suppress(OSError):
                with workspace_sync._pack_folders(tree, workspace_sync._read_contents(tree)) as packed:
                    content = packed.read()
                assert b"the-worker-s-password" not in content
                saved += b"mine" in content
    finally:
        over.set()
        swapper.join()
    assert saved  # sometimes it was in place


@pytest.mark.django_db(transaction=True)
async def test_a_file_that_grows_while_it_is_read_is_read_to_its_first_size(
    context: TurnContext, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "log").write_bytes(b"x" * 1000)
    read: list[int] = []
    opened = directory_tree.open_regular_file

    def open_and_grow(parent: int, name: str) -> io.BufferedReader:
        content = opened(parent, name)
        with (work / "log").open("ab") as log:
            log.write(b"y" * 10_000_000)
        monkeypatch.setattr(directory_tree, "open_regular_file", opened)
        read.append(content.fileno())
        return content

    monkeypatch.setattr(directory_tree, "open_regular_file", open_and_grow)
    with directory_tree.DirectoryTree(work) as tree:
        seen = workspace_sync._read_contents(tree)
        assert read
        with pytest.raises(OSError, match="changed while it was read"):
            workspace_sync._open_unchanged(tree, "log", seen)


ODD = r"""
mkdir -p d/deep; cd d
ln -s / slash; ln -s /proc/self/environ env; ln -s .. up; ln -s loop loop; mkfifo pipe
ln -s /proc/1/root/etc/shadow shadow; ln -s /dev/zero zero
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
echo one > plain; ln plain hard; truncate -s 1M hole
echo odd > $'line\nbreak'; echo odd > $'tab\tquote"\\'; echo odd > -rf; echo odd > "$(printf 'n%.0s' {1..255})"
cd ..; cp d/plain $'top\nline'; echo odd > -- "--checkpoint-action=exec=id"; ln d/plain also; ln -s d/plain soft
"""


async def test_odd_names_and_kinds_are_left_or_kept_as_they_are(context: TurnContext) -> None:
    fields = await run_bash(context, ODD)
    assert "Could not be saved" not in fields["message"], fields["message"]
    row = await run_in_thread(WorkspaceFile.objects.get, name=workspace_sync.FOLDERS_ARCHIVE)
    with tarfile.open(fileobj=io.BytesIO(await run_in_thread(contents, row))) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert {member.type for member in members.values()} == {tarfile.REGTYPE, tarfile.DIRTYPE}
        assert set(members) == {
            *("d", "d/deep", "d/plain", "d/hard", "d/hole", "d/-rf", "d/" + "n" * 255),
            *("d/line\nbreak", 'd/tab\tquote"\\'),
        }
    again = await run_bash(context, "cat d/hard d/plain d/-rf; stat -c %s d/hole; ls | wc -l")
    assert again["stdout"].split()[:4] == ["one", "one", "odd", "1048576"]
    names = [file["name"] for file in fields["files"]]
    assert not any("\n" in name or "/" in name for name in names)


@pytest.mark.skipif(not AS_ROOT, reason="only root makes devices")
def test_a_device_is_never_opened(place: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    os.mknod(work / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with directory_tree.DirectoryTree(work) as tree:
        assert workspace_sync._read_contents(tree).digests == {}
        with pytest.raises(OSError, match="not a regular file"):
            tree.open_file("zero")


@pytest.mark.skipif(not AS_ROOT, reason="only root gives files away")
def test_only_what_lies_in_the_folder_is_given_away(place: Path, secret: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "link").symlink_to(secret / "passwords")
    (work / "folder").symlink_to(secret)
    bubblewrap.prepare_folder(work)
    assert (secret / "passwords").stat().st_uid == 0
    assert secret.stat().st_uid == 0
    assert work.stat().st_uid != 0


def test_removing_a_folder_follows_no_links(place: Path, secret: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "closed").mkdir()
    for path in (work / "link", work / "closed" / "link"):
        path.symlink_to(secret)
    (secret / "passwords").chmod(0o400)
    (work / "closed").chmod(0)
    workspace_sync.remove_folder(work)
    assert not work.exists()
    assert stat.S_IMODE((secret / "passwords").stat().st_mode) == 0o400


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "d/../../x", "d/..", "a\0b", "x/" * 101 + "y", "n" * 3001]
)
def test_a_path_that_leaves_its_tree_is_no_path(path: str) -> None:
    with pytest.raises(directory_tree.PathRefused):
        directory_tree.split_path(path)


def test_no_part_of_a_path_may_be_a_link(place: Path, secret: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "d").symlink_to(secret)
    (work / "f").symlink_to(secret / "passwords")
    with directory_tree.DirectoryTree(work) as tree:
        for act in (
            lambda: tree.open_file("d/passwords"),
            lambda: tree.open_file("f"),
            lambda: tree.create_file("d/new"),
            lambda: tree.create_file("f"),
            lambda: tree.make_folder("d/new"),
            lambda: tree.stat_folder("d"),
        ):
            with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
                act()
    assert os.listdir(secret) == ["passwords"]
    (work / "root").symlink_to(secret)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        directory_tree.DirectoryTree(work / "root")


# --- copying in ----------------------------------------------------------------------------------------


def archive_of(*members: tuple[str, bytes, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6777
            archive.addfile(member)
    return packed.getvalue()


ARCHIVES: dict[str, list[tuple[str, bytes, str]]] = {
    "a link and a file through it": [("d", tarfile.SYMTYPE, "{secret}"), ("d/new", tarfile.REGTYPE, "")],
    "a hard link": [("passwords", tarfile.LNKTYPE, "{secret}/passwords")],
    "a device and a pipe": [("zero", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")],
    "a path from the root": [("{secret}/new", tarfile.REGTYPE, "")],
    "a path upwards": [("d/../../new", tarfile.REGTYPE, "")],
    "more folders than anybody makes": [
        (f"{number}/" + "x/" * 90 + "y", tarfile.REGTYPE, "") for number in range(20)
    ],
    "a file where a folder should be": [("d", tarfile.REGTYPE, ""), ("d/new", tarfile.REGTYPE, "")],
}


@pytest.mark.parametrize("members", ARCHIVES.values(), ids=ARCHIVES)
def test_a_hostile_archive_is_unpacked_inside_or_not_at_all(
    place: Path, secret: Path, members: list[tuple[str, bytes, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_sync, "MAX_SCANNED_NAMES", 500)
    work = Path(tempfile.mkdtemp(dir=place))
    hostile = archive_of(
        *((name.format(secret=secret), kind, target.format(secret=secret)) for name, kind, target in members)
    )
    with directory_tree.DirectoryTree(work) as tree, contextlib.suppress(OSError):  # as the caller does
        workspace_sync._unpack_archive(io.BytesIO(hostile), tree)
    with directory_tree.DirectoryTree(work) as tree:
        made = sum(1 for _ in tree.walk())
        kinds = {stat.S_IFMT(entry.status.st_mode) for entry in tree.walk()}
    assert made <= workspace_sync.MAX_SCANNED_NAMES + directory_tree.MAX_TREE_DEPTH
    assert kinds <= {stat.S_IFREG, stat.S_IFDIR}
    assert os.listdir(secret) == ["passwords"]
    assert not (place / "new").exists()
    shutil.rmtree(work)


# --- exhaustion ----------------------------------------------------------------------------------------


async def test_what_lies_too_deep_to_be_measured_ends_the_program(context: TurnContext) -> None:
    burrow = "import os\nfor n in range(150):\n os.mkdir('d')\n os.chdir('d')\nimport time\ntime.sleep(60)"
    fields = json.loads((await use(context, "python_exec", code=burrow, timeout=60)).content)
    assert "nested too deeply" in fields["message"]
    assert not fields["timed_out"]


async def test_a_nearly_full_disk_ends_every_program(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room that was taken where nobody looks shows there, as of files that are mapped and have no name"""
    monkeypatch.setattr(bubblewrap, "MIN_FREE_BYTES", 2**60)
    fields = await run_bash(context, "sleep 60", timeout=60)
    assert "the disk of the server is nearly full" in fields["message"]


async def test_a_folder_swapped_for_a_link_is_not_measured(place: Path, secret: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=place))
    (work / "d").symlink_to("/usr")
    assert resources.measure_disk_usage(os.getpid(), work, most=2**40).size_bytes < 2**20


async def test_one_account_leaves_room_for_others(
    context: TurnContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program may take a gigabyte: they wait for one another, and an account has half of the places"""
    now, most = 0, 0
    gate = asyncio.Event()

    async def hold(owner_id: int) -> None:
        nonlocal now, most
        async with programs._acquire_slot(owner_id):
            now += 1
            most = max(most, now)
            await gate.wait()
            now -= 1

    monkeypatch.setattr(programs.settings, "SANDBOX_CONCURRENCY", 4)
    greedy = [asyncio.create_task(hold(1)) for _ in range(9)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert now == 2
    others = [asyncio.create_task(hold(number)) for number in (2, 3, 4)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert now == 4
    gate.set()
    await asyncio.gather(*greedy, *others)
    assert most == 4


async def test_waiting_for_a_place_has_an_end(context: TurnContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "QUEUE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(programs.settings, "SANDBOX_CONCURRENCY", 1)
    async with programs._acquire_slot(1):
        with pytest.raises(ToolError, match="Too many programs"):
            async with programs._acquire_slot(2):
                pass


# --- accounts ------------------------------------------------------------------------------------------


def owner_of_a_program(folder: Path) -> tuple[int, int]:
    """The account of a running program, as the host sees it, by the file that it wrote."""
    run_alone(folder, "/bin/bash", "-c", "echo > mine")
    found = (folder / "mine").stat()
    return found.st_uid, found.st_gid


@pytest.mark.skipif(not AS_ROOT, reason="only root changes accounts")
def test_root_runs_programs_as_nobody_or_as_the_account_that_is_set(
    working: None, place: Path, settings: Any
) -> None:
    nobody = pwd.getpwnam("nobody")
    assert owner_of_a_program(Path(tempfile.mkdtemp(dir=place))) == (nobody.pw_uid, nobody.pw_gid)
    settings.SANDBOX_UID = 43210
    assert bubblewrap.find_sandbox_problem() == ""
    assert owner_of_a_program(Path(tempfile.mkdtemp(dir=place))) == (43210, 43210)


@pytest.mark.skipif(not AS_ROOT, reason="only root has nothing to drop to")
def test_root_without_an_account_to_run_them_as_has_no_programs(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(privileges, "get_unprivileged_account", lambda uid=0: None)
    settings.SANDBOX_UID = 43211  # looked up again
    assert "Set SANDBOX_UID" in bubblewrap.find_sandbox_problem()
    assert [found.id for found in checks.check_sandbox_account(None)] == ["copilot.W001"]


def test_an_account_that_cannot_be_taken_is_said(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    settings.SANDBOX_UID = 43212
    assert "only a worker that runs as root" in privileges.find_account_problem(settings.SANDBOX_UID)
    assert [found.id for found in checks.check_sandbox_account(None)] == ["copilot.W001"]
    settings.SANDBOX_UID = 0
    assert privileges.find_account_problem(settings.SANDBOX_UID) == ""


@pytest.mark.parametrize("account", [pwd.struct_passwd(("nobody", "x", 0, 0, "", "/", "")), None])
def test_the_account_is_never_root(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd | None
) -> None:
    def found(name: str) -> pwd.struct_passwd:
        if account is None:
            raise KeyError(name)
        return account

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", found)
    assert privileges.get_unprivileged_account() is None


@pytest.mark.skipif(not AS_ROOT, reason="only root becomes somebody else")
def test_a_worker_that_is_not_root_runs_programs_as_itself(working: None, place: Path) -> None:
    folder = Path(tempfile.mkdtemp(dir=place))
    os.chown(folder, 54321, 54321)
    worker = start_worker(folder, "echo made > mine; id -u; cat /proc/1/environ", "as another")
    said, _ = worker.communicate(timeout=60)
    assert "1000" in said
    assert (folder / "mine").stat().st_uid == 54321
