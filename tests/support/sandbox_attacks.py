"""Escapes that a program in the sandbox tries, each from inside; run by the system's Python, without imports of ours.

`python3 -c <this file> '<json of what lies outside>'` prints one JSON object: the name of each attack and what it got, or
null. An attack gets hold of something by returning it; an OSError or an answer of -1 is a failure to escape.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Attack = Callable[[dict[str, Any]], object]
ATTACKS: dict[str, Attack] = {}
X86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def call(number: tuple[int, int], *arguments: object, refusal: int = errno.ENOSYS) -> object:
    """A system call by its number on x86-64 and on aarch64: nothing if the filter refused it.

    Any other error means that the kernel looked at the arguments, which better ones might pass.
    """
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    answer = libc.syscall(ctypes.c_long(number[0] if X86 else number[1]), *words)
    if answer != -1:
        return f"answered {answer}"
    return None if ctypes.get_errno() == refusal else f"reached the kernel: {os.strerror(ctypes.get_errno())}"


def everywhere(number: int) -> tuple[int, int]:
    return number, number


def written(path: str, content: str) -> object:
    Path(path).write_text(content)
    return f"wrote {path}"


def in_child(act: Callable[[], object]) -> tuple[int, object]:
    """Return how a child ended, and what it got."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            got = act()
            os.write(writing, str(got or "").encode())
        except OSError:
            pass
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return status, said or None


# --- other processes -----------------------------------------------------------------------------------


@attack
def attach_to_the_first_process_by_ptrace(outside: dict[str, Any]) -> object:
    return call((101, 117), 16, 1, 0, 0)


@attack
def seize_the_first_process_by_ptrace(outside: dict[str, Any]) -> object:
    return call((101, 117), 0x4206, 1, 0, 0)


@attack
def trace_a_child(outside: dict[str, Any]) -> object:
    return in_child(lambda: call((101, 117), 0, 0, 0, 0))[1]


@attack
def read_memory_of_the_first_process(outside: dict[str, Any]) -> object:
    return call((310, 270), 1, 0, 0, 0, 0, 0)


@attack
def write_memory_of_the_first_process(outside: dict[str, Any]) -> object:
    return call((311, 271), 1, 0, 0, 0, 0, 0)


@attack
def open_the_memory_file_of_the_first_process(outside: dict[str, Any]) -> object:
    return os.open("/proc/1/mem", os.O_RDWR)


@attack
def open_the_memory_file_of_its_thread(outside: dict[str, Any]) -> object:
    return os.open("/proc/1/task/1/mem", os.O_RDWR)


@attack
def look_at_descriptors_of_the_first_process(outside: dict[str, Any]) -> object:
    return os.listdir("/proc/1/fd")


@attack
def enter_the_root_of_the_first_process(outside: dict[str, Any]) -> object:
    return os.listdir("/proc/1/root")


@attack
def take_a_descriptor_of_the_first_process(outside: dict[str, Any]) -> object:
    held = libc.syscall(ctypes.c_long(434), ctypes.c_long(1), ctypes.c_long(0))
    return call(everywhere(438), held, 1, 0)


@attack
def compare_with_the_first_process(outside: dict[str, Any]) -> object:
    return call((312, 272), os.getpid(), 1, 0, 0, 0)


@attack
def give_advice_on_memory_of_others(outside: dict[str, Any]) -> object:
    return call(everywhere(440), libc.syscall(434, 1, 0), 0, 0, 4, 0)


@attack
def set_up_a_ring_of_calls(outside: dict[str, Any]) -> object:
    return call(everywhere(425), 8, ctypes.create_string_buffer(256))


@attack
def enter_a_ring_of_calls(outside: dict[str, Any]) -> object:
    return call(everywhere(426), 0, 1, 0, 0, 0, 0)


@attack
def register_with_a_ring_of_calls(outside: dict[str, Any]) -> object:
    return call(everywhere(427), -1, 17, 0, 0)


@attack
def kill_the_first_process(outside: dict[str, Any]) -> object:
    """If this worked, all attacks would end with it, and their list would not be printed."""
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        os.kill(1, number)
    return None


@attack
def kill_a_process_outside(outside: dict[str, Any]) -> object:
    os.kill(outside["victim"], signal.SIGKILL)
    return None if outside["victim"] < 1000 else "a process of that number"


@attack
def kill_a_process_group_outside(outside: dict[str, Any]) -> object:
    os.killpg(outside["victim"], signal.SIGKILL)
    return "a group of that number"


@attack
def open_a_process_outside(outside: dict[str, Any]) -> object:
    return os.pidfd_open(outside["worker"]) if outside["worker"] > 1000 else None


@attack
def see_processes_outside(outside: dict[str, Any]) -> object:
    own = {"1", str(os.getpid()), str(os.getppid())}
    return sorted(name for name in os.listdir("/proc") if name.isdigit() and name not in own) or None


@attack
def give_oneself_a_better_place(outside: dict[str, Any]) -> object:
    return os.nice(-5)


@attack
def run_in_real_time(outside: dict[str, Any]) -> object:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return "runs in real time"


@attack
def survive_when_memory_runs_out(outside: dict[str, Any]) -> object:
    return written("/proc/self/oom_score_adj", "-1000")


# --- namespaces and mounts -----------------------------------------------------------------------------


def _unshare(flag: int, outside: dict[str, Any]) -> object:
    return in_child(lambda: call((272, 97), flag))[1]


for _name, _flag in {
    "user": 0x1000_0000,
    "mount": 0x2_0000,
    "process": 0x2000_0000,
    "network": 0x4000_0000,
    "ipc": 0x800_0000,
    "host_name": 0x400_0000,
    "cgroup": 0x200_0000,
    "time": 0x80,
    "user_and_mount": 0x1002_0000,
}.items():
    ATTACKS[f"unshare_the_{_name}_namespace"] = partial(_unshare, _flag)


@attack
def clone_into_a_user_namespace(outside: dict[str, Any]) -> object:
    child = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_long(0x1000_0000 | 17), 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return None if child == -1 else "a child in a namespace of its own"


@attack
def clone_by_the_newer_call(outside: dict[str, Any]) -> object:
    arguments = (ctypes.c_uint64 * 11)(0x1000_0000, 0, 0, 0, 17)
    child = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_long(88))
    if child == 0:
        os._exit(0)
    return None if child == -1 else "a child in a namespace of its own"


@attack
def enter_a_namespace(outside: dict[str, Any]) -> object:
    held = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    return call((308, 268), held, 0)


@attack
def claim_accounts_by_the_uid_map(outside: dict[str, Any]) -> object:
    return written("/proc/self/uid_map", "0 0 1")


@attack
def allow_more_user_namespaces(outside: dict[str, Any]) -> object:
    return written("/proc/sys/user/max_user_namespaces", "100")


@attack
def mount_memory(outside: dict[str, Any]) -> object:
    return call((165, 40), b"none", b"/tmp", b"tmpfs", 0, 0)


@attack
def mount_the_host_disk_again(outside: dict[str, Any]) -> object:
    return call((165, 40), b"/usr", b"/workspace", 0, 4096, 0)


@attack
def make_the_system_writable(outside: dict[str, Any]) -> object:
    return call((165, 40), b"none", b"/usr", 0, 32 | 4096, 0)


@attack
def mount_another_proc(outside: dict[str, Any]) -> object:
    os.makedirs("/tmp/proc", exist_ok=True)
    return call((165, 40), b"proc", b"/tmp/proc", b"proc", 0, 0)


@attack
def uncover_the_first_process(outside: dict[str, Any]) -> object:
    return call((166, 39), b"/proc/1", 2)


@attack
def change_the_root(outside: dict[str, Any]) -> object:
    return call((161, 51), b"/workspace")


@attack
def turn_the_root(outside: dict[str, Any]) -> object:
    return call((155, 41), b"/workspace", b"/workspace")


def _mount_by(number: int, outside: dict[str, Any]) -> object:
    return call(everywhere(number), b"tmpfs" if number == 430 else -100, b"/", 0, 0, 0)


for _name, _number in {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fspick": 433,
    "mount_setattr": 442,
}.items():
    ATTACKS[f"mount_by_{_name}"] = partial(_mount_by, _number)


# --- accounts and rights -------------------------------------------------------------------------------


@attack
def become_root(outside: dict[str, Any]) -> object:
    os.setresuid(0, 0, 0)
    return "root"


@attack
def join_the_group_of_root(outside: dict[str, Any]) -> object:
    os.setresgid(0, 0, 0)
    return "root's group"


@attack
def take_groups(outside: dict[str, Any]) -> object:
    os.setgroups([0])
    return "root's groups"


@attack
def become_the_account_of_the_worker(outside: dict[str, Any]) -> object:
    os.setuid(outside["uid"] or 0)
    return "the worker's account"


@attack
def have_a_program_that_becomes_its_owner(outside: dict[str, Any]) -> object:
    copy = "/workspace/suid"
    Path(copy).write_bytes(Path("/usr/bin/id").read_bytes())
    os.chmod(copy, 0o6755)
    said = subprocess.run([copy, "-u"], capture_output=True, text=True, check=False).stdout.strip()
    os.unlink(copy)
    return None if said in ("1000", "") else said


@attack
def use_a_program_of_root(outside: dict[str, Any]) -> object:
    for program in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/newgrp", "/usr/bin/passwd"):
        if os.path.exists(program) and os.stat(program).st_mode & stat.S_ISUID:
            status = Path("/proc/self/status").read_text()
            return None if "NoNewPrivs:\t1" in status else "programs of root work"
    return None


@attack
def have_capabilities(outside: dict[str, Any]) -> object:
    status = Path("/proc/self/status").read_text()
    sets = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    return None if set(sets) == {"0" * 16} else sets


@attack
def raise_a_capability(outside: dict[str, Any]) -> object:
    return None if libc.prctl(47, 2, 21, 0, 0) == -1 else "an ambient capability"


@attack
def take_new_privileges_again(outside: dict[str, Any]) -> object:
    return None if libc.prctl(38, 0, 0, 0, 0) == -1 else "may have new privileges"


@attack
def give_a_file_capabilities(outside: dict[str, Any]) -> object:
    Path("/workspace/caps").touch()
    try:
        rights = bytes.fromhex("0100000200002000000000000000000000000000")
        os.setxattr("/workspace/caps", "security.capability", rights)
    finally:
        os.unlink("/workspace/caps")
    return "a file with capabilities"


@attack
def raise_limits(outside: dict[str, Any]) -> object:
    got = []
    for name in ("RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_MSGQUEUE"):
        number = getattr(resource, name)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            got.append(name)
    return got or None


# --- files ---------------------------------------------------------------------------------------------


@attack
def read_a_file_outside(outside: dict[str, Any]) -> object:
    return Path(outside["secret"]).read_text()


@attack
def climb_out_of_the_folder(outside: dict[str, Any]) -> object:
    return Path("/workspace/" + "../" * 30 + outside["secret"].lstrip("/")).read_text()


@attack
def follow_a_link_out(outside: dict[str, Any]) -> object:
    os.symlink(outside["secret"], "/tmp/link")
    return Path("/tmp/link").read_text()


@attack
def go_by_one_s_own_root(outside: dict[str, Any]) -> object:
    return Path("/proc/self/root" + outside["secret"]).read_text()


@attack
def go_by_the_folder_above(outside: dict[str, Any]) -> object:
    return Path("/proc/self/cwd/../.." + outside["secret"]).read_text()


@attack
def list_folders_of_other_calls(outside: dict[str, Any]) -> object:
    return [name for name in os.listdir("/tmp") if name.startswith("pilothouse")] or None


@attack
def read_accounts_of_the_host(outside: dict[str, Any]) -> object:
    places = ("/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/run", "/srv", "/opt", "/work")
    return [path for path in places if os.path.lexists(path)] or None


@attack
def link_a_file_of_the_system(outside: dict[str, Any]) -> object:
    os.link("/usr/bin/env", "/workspace/env")
    return "a hard link"


@attack
def open_by_handle(outside: dict[str, Any]) -> object:
    return call((304, 265), os.open("/workspace", os.O_RDONLY), ctypes.create_string_buffer(64), 0)


@attack
def write_to_the_system(outside: dict[str, Any]) -> object:
    got = []
    for folder in ("/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/dev", "/proc", "/lib64"):
        with contextlib.suppress(OSError):
            got.append(written(f"{folder}/written", ""))
    return got or None


@attack
def find_another_place_to_write(outside: dict[str, Any]) -> object:
    """Search all mounts: memory and disk are limited in three places only."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    got = []
    for place in set(places) - {"/workspace", "/tmp", "/dev/shm"}:
        with contextlib.suppress(OSError):
            got.append(written(f"{place}/written", ""))
    return got or None


@attack
def read_configuration_of_the_host(outside: dict[str, Any]) -> object:
    return [name for place in ("/usr/local/etc", "/usr/etc") for name in Path(place).glob("*")] or None


@attack
def change_a_program_of_the_system(outside: dict[str, Any]) -> object:
    return os.open("/usr/bin/env", os.O_WRONLY)


@attack
def make_a_device(outside: dict[str, Any]) -> object:
    os.mknod("/workspace/memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    return "a device"


@attack
def make_a_disk(outside: dict[str, Any]) -> object:
    os.mknod("/workspace/disk", stat.S_IFBLK | 0o666, outside["disk"])
    return "a disk"


@attack
def open_devices_of_the_host(outside: dict[str, Any]) -> object:
    names = ("mem", "kmem", "kmsg", "port", "fuse", "kvm", "vda", "sda", "loop-control", "net/tun", "vsock")
    return [name for name in names if os.path.exists(f"/dev/{name}")] or None


@attack
def have_the_kernel_s_own_files(outside: dict[str, Any]) -> object:
    return os.listdir("/sys")


@attack
def have_a_program_run_at_a_crash(outside: dict[str, Any]) -> object:
    return written("/proc/sys/kernel/core_pattern", "|/workspace/x")


@attack
def press_the_kernel_s_keys(outside: dict[str, Any]) -> object:
    return written("/proc/sysrq-trigger", "h")


@attack
def change_settings_of_the_kernel(outside: dict[str, Any]) -> object:
    got = []
    for name in ("vm/drop_caches", "kernel/hostname", "fs/protected_symlinks", "net/ipv4/ip_forward"):
        with contextlib.suppress(OSError):
            got.append(written(f"/proc/sys/{name}", "1"))
    return got or None


@attack
def read_the_kernel_s_memory(outside: dict[str, Any]) -> object:
    return Path("/proc/kcore").read_bytes()[:1] or None


@attack
def read_addresses_of_the_kernel(outside: dict[str, Any]) -> object:
    return Path("/proc/kallsyms").read_text()[:100] or None


@attack
def read_the_environment_of_others(outside: dict[str, Any]) -> object:
    seen = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/environ"))
    return "the canary" if outside["canary"].encode() in seen else None


# --- descriptors, sockets and shared memory ------------------------------------------------------------


@attack
def use_descriptors_of_the_worker(outside: dict[str, Any]) -> object:
    """A child inherits only /dev/null, two pipes to the worker, and what ls opens."""
    held = subprocess.run(
        ["/usr/bin/ls", "/proc/self/fd"], capture_output=True, text=True, check=False, close_fds=False
    ).stdout.split()
    return None if held == ["0", "1", "2", "3"] and os.fstat(0).st_rdev == os.makedev(1, 3) else held


@attack
def type_into_a_terminal(outside: dict[str, Any]) -> object:
    master, slave = os.openpty()
    try:
        return None if libc.ioctl(slave, ctypes.c_ulong(0x5412), b"x") == -1 else "typed"
    finally:
        os.close(master)
        os.close(slave)


@attack
def type_with_a_number_longer_than_it_should_be(outside: dict[str, Any]) -> object:
    master, slave = os.openpty()
    try:
        return call((16, 29), slave, 0x1_0000_5412, b"x", refusal=errno.EPERM)
    finally:
        os.close(master)
        os.close(slave)


@attack
def open_the_worker_s_terminal(outside: dict[str, Any]) -> object:
    return os.open("/dev/tty", os.O_RDWR)


@attack
def reach_an_abstract_socket(outside: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0" + outside["abstract"])
    return "connected"


@attack
def reach_a_socket_in_the_file_system(outside: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(outside["socket"])
    return "connected"


@attack
def reach_a_port_of_the_host(outside: dict[str, Any]) -> object:
    with socket.create_connection(("127.0.0.1", outside["port"]), 2):
        return "connected"


@attack
def reach_the_internet(outside: dict[str, Any]) -> object:
    for address in ("1.1.1.1", "169.254.169.254", "10.0.0.1"):
        with contextlib.suppress(OSError):
            socket.create_connection((address, 80), 1).close()
            return address
    return None


@attack
def send_datagrams_out(outside: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return one.sendto(b"x", ("1.1.1.1", 53))


@attack
def have_raw_sockets(outside: dict[str, Any]) -> object:
    got = []
    for family, kind, protocol in ((2, 3, 1), (17, 3, 0), (40, 1, 0), (38, 5, 0), (31, 3, 1), (16, 3, 9)):
        with contextlib.suppress(OSError):
            socket.socket(family, kind, protocol).close()
            got.append(family)
    return [family for family in got if family != 16] or None


@attack
def bring_up_an_interface(outside: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return None if libc.ioctl(one.fileno(), 0x8914, b"lo".ljust(16, b"\0") + bytes(24)) == -1 else "set"


@attack
def attach_shared_memory(outside: dict[str, Any]) -> object:
    return call((29, 194), outside["ipc_key"], 0, 0)


@attack
def open_a_message_queue(outside: dict[str, Any]) -> object:
    return call((68, 186), outside["ipc_key"], 0)


@attack
def open_semaphores(outside: dict[str, Any]) -> object:
    return call((64, 190), outside["ipc_key"], 0, 0)


@attack
def open_named_shared_memory(outside: dict[str, Any]) -> object:
    return Path(f"/dev/shm/{outside['shared']}").read_text()


@attack
def make_a_named_message_queue(outside: dict[str, Any]) -> object:
    return call((240, 180), b"escape", os.O_CREAT | os.O_RDWR, 0o600, 0, refusal=errno.EMFILE)


@attack
def read_a_keyring(outside: dict[str, Any]) -> object:
    return call((250, 219), 11, -3, 0, 0) or call((250, 219), 0, -4, 0)


@attack
def add_a_key(outside: dict[str, Any]) -> object:
    return call((248, 217), b"user", b"escape", b"x", 1, -4)


@attack
def request_a_key(outside: dict[str, Any]) -> object:
    return call((249, 218), b"user", b"escape", 0, -4)


@attack
def list_keys(outside: dict[str, Any]) -> object:
    return Path("/proc/keys").read_text() or None


# --- calls of the kernel -------------------------------------------------------------------------------


def _call_with_buffer(numbers: tuple[int, int], outside: dict[str, Any]) -> object:
    first = 3 if numbers[0] == 103 else 0
    return call(numbers, first, ctypes.create_string_buffer(4096), 4096, 0, 0)


for _name, _numbers in {
    "take_faults_of_memory": (323, 282),
    "load_a_program_into_the_kernel": (321, 280),
    "measure_the_processor": (298, 241),
    "hide_memory_in_a_file": (319, 279),
    "hide_memory_from_the_kernel": (447, 447),
    "watch_files": (294, 26),
    "watch_the_whole_file_system": (300, 262),
    "read_the_kernel_s_log": (103, 116),
    "account_for_processes": (163, 89),
    "add_swap": (167, 224),
    "load_a_module": (313, 273),
    "load_another_kernel": (246, 104),
    "set_the_clock": (227, 112),
    "ask_for_quotas": (443, 443),
    "move_pages_of_others": (279, 239),
    "list_mounts": (458, 458),
    "use_a_call_nobody_reviewed": (463, 463),
    "use_a_call_far_away": (1000, 1000),
}.items():
    ATTACKS[_name] = partial(_call_with_buffer, _numbers)


@attack
def restart_the_machine(outside: dict[str, Any]) -> object:
    return call((169, 142), 0xFEE1DEAD - 2**32, 672274793, 0, 0)  # would only forbid Ctrl-Alt-Del


@attack
def call_by_the_second_number(outside: dict[str, Any]) -> object:
    """x86-64 has every call twice: this is getpid."""
    return call((0x4000_0000 + 39, 463))


@attack
def call_as_another_architecture(outside: dict[str, Any]) -> object:
    """Call getpid as a 32-bit call; the kernel kills a process that tries."""
    if not X86:
        return None
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    status, got = in_child(function)
    ended_so = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGSYS, signal.SIGSEGV)
    return None if ended_so else got or "answered"


@attack
def have_ports_of_the_processor(outside: dict[str, Any]) -> object:
    return call((172, 463), 3) if X86 else None


def tried(one: Attack, outside: dict[str, Any]) -> object:
    try:
        return one(outside)
    except (OSError, ValueError) as problem:
        return None if not isinstance(problem, OSError) or problem.errno != errno.EINTR else "interrupted"


def main() -> None:
    outside = json.loads(sys.argv[1])
    began = time.monotonic()
    got = {name: tried(one, outside) for name, one in ATTACKS.items()}
    print(json.dumps({"got": got, "seconds": time.monotonic() - began}, default=str))


if __name__ == "__main__":
    main()
