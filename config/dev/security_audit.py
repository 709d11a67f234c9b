"""Look for credentials in tracked files, and for known vulnerabilities of the locked packages (make check)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILE = ROOT / "requirements" / "dev.txt"
VULNERABILITY_FEED_URL = "https://api.osv.dev/v1/querybatch"
FEED_TIMEOUT_SECONDS = 4.0  # a check before every commit must not wait for a network outage
MAX_FILE_BYTES = 1024 * 1024
EXCUSE_COMMENT = "not a secret"  # a comment on the same line marks examples and test values
# Accepted vulnerabilities with their reasons; none now.
ACCEPTED_VULNERABILITIES: Mapping[str, str] = {}

# Only patterns that nothing but a credential matches: a scan with false alarms gets switched off.
SECRET_PATTERNS: Mapping[str, str] = {
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s*\n?[A-Za-z0-9+/=]{40}",
    "AWS access key": r"\bAKIA[0-9A-Z]{16}\b",
    "Anthropic key": r"\bsk-ant-[A-Za-z0-9_-]{40,}",
    "OpenAI key": r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9]{20}[A-Za-z0-9_-]{20,}",
    "Stripe key": r"\b[sr]k_live_[0-9A-Za-z]{20,}",
    "Stripe webhook secret": r"\bwhsec_[0-9A-Za-z]{32,}",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "Slack token": r"\bxox[abeprs]-[0-9]{10,}-[0-9A-Za-z-]{20,}",
    "Telegram bot token": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b",
    "Discord bot token": r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "Pilothouse API key": r"\bph_(?:user|bot)_[a-z0-9]{10}_[A-Za-z0-9_-]{43}\b",
}
_ANY_SECRET = re.compile(
    "|".join(f"(?P<p{number}>{pattern})" for number, pattern in enumerate(SECRET_PATTERNS.values()))
)


# --- credentials ---------------------------------------------------------------------------------------


def scan_secrets(root: Path) -> list[str]:
    """Return file, line and kind of every credential in tracked files, never the credential itself."""
    return [found for path in _list_tracked_files(root) for found in _scan_file(root, path)]


def _list_tracked_files(root: Path) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - whichever made this checkout
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_FILE_BYTES:
            yield path


def _scan_file(root: Path, path: Path) -> Iterator[str]:
    content = path.read_bytes()
    if b"\0" in content:
        return
    text = content.decode(errors="replace")
    kinds = list(SECRET_PATTERNS)
    for match in _ANY_SECRET.finditer(text):
        begins = text.rfind("\n", 0, match.start()) + 1
        line = text[begins : text.find("\n", match.start()) % (len(text) + 1)]
        if EXCUSE_COMMENT not in line:
            kind = kinds[int((match.lastgroup or "p0")[1:])]
            yield f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}: {kind}"


# --- packages --------------------------------------------------------------------------------------------


class FeedUnavailable(Exception):
    """Raised when the feed cannot be asked, or its answer cannot be trusted."""


def find_vulnerabilities(lock: Path, feed: str) -> tuple[int, list[str]]:
    """Ask the feed about every locked package; return the number of packages and the vulnerabilities."""
    packages = _read_locked_packages(lock)
    if not packages:
        raise FeedUnavailable(f"{lock.name} locks no package")
    results = _query_feed(feed, packages)
    found = [
        f"{name} {version}: {known['id']}"
        for (name, version), result in zip(packages, results, strict=True)
        for known in result.get("vulns", ())
        if known["id"] not in ACCEPTED_VULNERABILITIES
    ]
    return len(packages), found


def _read_locked_packages(lock: Path) -> list[tuple[str, str]]:
    return re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE)


def _query_feed(feed: str, packages: Sequence[tuple[str, str]]) -> list[dict[str, list[dict[str, str]]]]:
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages
    ]
    request = urllib.request.Request(  # noqa: S310 - our own address, or the caller's
        feed, data=json.dumps({"queries": queries}).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=FEED_TIMEOUT_SECONDS) as answer:  # noqa: S310
            results = json.load(answer)["results"]
    except urllib.error.HTTPError as refusal:
        with refusal:
            raise FeedUnavailable(f"{feed} answered {refusal.code}") from None
    except OSError as problem:
        reason = getattr(problem, "reason", problem)
        raise FeedUnavailable(f"{feed} cannot be reached ({reason})") from None
    except (ValueError, KeyError, TypeError):
        raise FeedUnavailable(f"{feed} gave no answer that can be read") from None
    if not isinstance(results, list) or len(results) != len(packages):
        raise FeedUnavailable(f"{feed} did not answer for every package")
    return results


# --- the command line ------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["secrets"]:
            return _report_secrets()
        case ["packages"]:
            return _report_packages()
        case _:
            sys.stderr.write("usage: python -m config.dev.security_audit secrets|packages\n")
            return 2


def _report_secrets() -> int:
    try:
        found = scan_secrets(ROOT)
    except (OSError, subprocess.CalledProcessError):
        sys.stdout.write("secrets  NOT CHECKED: this is no git checkout\n")
        return 0
    for one in found:
        sys.stdout.write(f"{one}\n")
    if found:
        sys.stdout.write(
            f"secrets  revoke what is real and remove it; mark what is made up with a comment: {EXCUSE_COMMENT}\n"
        )
        return 1
    sys.stdout.write("secrets  ok\n")
    return 0


def _report_packages() -> int:
    try:
        asked, found = find_vulnerabilities(LOCK_FILE, os.environ.get("AUDIT_FEED") or VULNERABILITY_FEED_URL)
    except FeedUnavailable as reason:
        sys.stdout.write(f"audit    NOT CHECKED: {reason}\n")
        return 0
    for one in found:
        sys.stdout.write(f"{one}\n")
    if found:
        sys.stdout.write("audit    raise these versions in pyproject.toml, then: make lock\n")
        return 1
    sys.stdout.write(f"audit    ok ({asked} packages)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
