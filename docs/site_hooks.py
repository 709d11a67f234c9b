"""MkDocs hooks: publish the project's own Markdown files, list folders in the nav, and drop links that leave the site."""

from __future__ import annotations

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Files outside of docs/ that are pages of the site too.
PROJECT_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "deploy/runbook.md": "project/runbook.md",
    "diagnostics/README.md": "project/diagnostics.md",
    "linking/README.md": "project/chat-platforms.md",
    "billing/README.md": "project/billing.md",
}
LISTED_FOLDERS = {"Decisions": "decisions", "Specification": "spec"}  # all their pages are in the navigation
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    for title, folder in LISTED_FOLDERS.items():
        pages = sorted(
            (ROOT / "docs" / folder).glob("*.md"), key=lambda page: (page.stem != "index", page.stem)
        )
        listed = [f"{folder}/{page.name}" for page in pages]
        config.nav = [entry for entry in config.nav if title not in entry]
        if listed:
            config.nav.insert(len(config.nav) - 2, {title: listed})  # before the glossary
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, target in PROJECT_PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Keep links between pages; turn links to other files of the repository into plain text."""
    generated = {target: source for source, target in PROJECT_PAGES.items()}
    at = PurePosixPath(generated.get(page.file.src_uri, f"docs/{page.file.src_uri}"))  # in the repository

    def rewrite(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return link[0]
        named = os.path.normpath(at.parent / path)
        site = PROJECT_PAGES.get(named) or (named.removeprefix("docs/") if named.startswith("docs/") else "")
        if not site:
            return text
        relative = os.path.relpath(site, PurePosixPath(page.file.src_uri).parent)
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(rewrite, markdown)
