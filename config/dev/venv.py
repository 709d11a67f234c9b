"""Create the virtual environment and sync it whenever the lock has changed. Needs only the standard library."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LOCK_FILE = ROOT / "requirements" / "dev.txt"
STAMP_FILE = VENV / "synced"
UV_LOCK_FILE = ROOT / "requirements" / "uv.txt"  # with hashes, like everything it installs
MIN_PYTHON_VERSION = (3, 11)
COMPILER_SIGNS = ("gcc", "cc1", "compiler", "Python.h", "No usable wheels")
NETWORK_SIGNS = (
    "resolve host",
    "dns error",
    "Connection refused",
    "timed out",
    "NewConnectionError",
    "error sending request",
)


class SetupProblem(Exception):
    """Raised when the environment cannot be created; the message says what to do."""


def main() -> int:
    try:
        sync_environment()
    except SetupProblem as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


def sync_environment() -> None:
    if sys.version_info < MIN_PYTHON_VERSION:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetupProblem(
            f"Pilothouse needs Python 3.11 or newer, not {found}: try `make PYTHON=python3.11 …`."
        )
    wanted = _compute_fingerprint()
    if _read_stamp() == wanted:
        return
    sys.stdout.write("Installing what requirements/dev.txt locks …\n")
    sys.stdout.flush()
    if not (VENV / "bin" / "python").exists():
        _run_command([sys.executable, "-m", "venv", "--clear", str(VENV)])
    # uv installs the locked wheels in seconds; pip takes a minute.
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _run_command([*pip, "--require-hashes", "-r", str(UV_LOCK_FILE)])
    _run_command([str(VENV / "bin" / "uv"), "pip", "sync", "--quiet", "--require-hashes", str(LOCK_FILE)])
    STAMP_FILE.write_text(wanted)


def _compute_fingerprint() -> str:
    """Hash what the environment is built from: the lock file and the Python version."""
    content = LOCK_FILE.read_bytes() + sys.version.encode() + get_uv_version().encode()
    return hashlib.sha256(content).hexdigest()


def get_uv_version() -> str:
    """Return the first word of its lock, such as uv==0.13.7."""
    return next(line.split()[0] for line in UV_LOCK_FILE.read_text().splitlines() if line.startswith("uv=="))


def _read_stamp() -> str:
    return STAMP_FILE.read_text() if STAMP_FILE.exists() and (VENV / "bin" / "python").exists() else ""


def _run_command(command: list[str]) -> None:
    settings = {
        "VIRTUAL_ENV": str(VENV),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_COMPILE_BYTECODE": "1",  # otherwise the first start spends seconds compiling
        "UV_LINK_MODE": "copy",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupProblem(_explain_failure(done.stdout + done.stderr))


def _explain_failure(output: str) -> str:
    """Return one sentence, followed by the tool's own output."""
    if "ensurepip is not" in output or "No module named venv" in output:
        return "Python's venv module is missing: install it (on Debian: apt-get install python3-venv)."
    if "No space left" in output or os.strerror(errno.ENOSPC) in output:
        return f"The disk is full: free about 1 GB for {VENV}."
    last = "\n".join(output.strip().splitlines()[-15:])
    if any(sign in output for sign in NETWORK_SIGNS):
        return f"The package index cannot be reached; check the network or your pip settings.\n{last}"
    if any(sign in output for sign in COMPILER_SIGNS):
        return (
            "A package has no ready-made wheel for this machine and needs a compiler "
            f"(on Debian: apt-get install build-essential python3-dev).\n{last}"
        )
    return f"The packages could not be installed.\n{last}"


if __name__ == "__main__":
    sys.exit(main())
