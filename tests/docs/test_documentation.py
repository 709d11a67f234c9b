"""The reference is what the code says, and the site loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate
from tests.support.paths import ROOT

SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()
LOADED = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//')


def test_the_generated_reference_is_up_to_date():
    """Otherwise: .venv/bin/python -m docs.generate"""
    assert generate.find_outdated(generate.build_pages()) == []


@pytest.mark.parametrize(
    ("page", "entry", "least"),
    [
        ("settings.md", r"^\| `[A-Z_0-9]+` \|", 130),
        ("rest.md", r"^- `[A-Z]+ /", 150),
        ("commands.md", r"^## ", 12),
        ("events.md", r"^### ", 50),
        ("events.md", r"^\| `[a-z.]+` \|", 18),
        ("errors.md", r"^\| `[a-z_]+` \| [45][0-9]{2} \|", 110),
        ("errors.md", r"^\| `[a-z_]+` \| [^0-9]", 25),
        ("metrics.md", r"^\| `pilothouse_", 45),
    ],
)
def test_what_is_read_from_the_code_is_found_there(page: str, entry: str, least: int):
    """A pattern that code no longer follows would leave a page empty without an error."""
    text = (ROOT / "docs" / "reference" / page).read_text()
    assert len(re.findall(entry, text, re.MULTILINE)) >= least


def test_every_variable_of_the_example_file_is_in_the_reference():
    example = (ROOT / "deploy" / "env.example").read_text()
    names = re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", example, re.MULTILINE)
    assert names
    assert [name for name in names if f"| `{name}` |" not in SETTINGS] == []


def test_every_line_of_the_threat_table_names_tests_that_exist():
    """Files are renamed, and a table that names none of them proves nothing."""
    table = (ROOT / "SECURITY.md").read_text().partition("## Threats")[2]
    lines = [line for line in table.splitlines() if line.startswith("| ") and "**" not in line][1:]
    named = {line: re.findall(r"`([^`]+\.py)`", line.rstrip("| ").rpartition("|")[2]) for line in lines}
    assert len(named) > 40
    assert [line for line, files in named.items() if not files] == []
    assert [file for files in named.values() for file in files if not (ROOT / "tests" / file).is_file()] == []


def test_the_site_is_built_strictly_and_loads_nothing_from_other_hosts(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        capture_output=True,
    )
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []
    assert [page.name for page in pages if 'class="mermaid"' in page.read_text()] == []
