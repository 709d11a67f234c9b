"""Write the generated pages of docs/reference: `python -m docs.generate`, or `--check` to compare them with the code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def build_pages() -> dict[str, str]:
    from docs import reference_code, reference_django, reference_settings

    return {
        "settings.md": reference_settings.render(),
        "rest.md": reference_django.render_rest(),
        "commands.md": reference_django.render_commands(),
        "events.md": reference_code.render_events(ROOT),
        "errors.md": reference_code.render_errors(ROOT),
        "metrics.md": reference_code.render_metrics(ROOT),
    }


def find_outdated(pages: dict[str, str]) -> list[str]:
    return [name for name, text in pages.items() if _read(REFERENCE / name) != text]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check = parser.parse_args().check
    os.environ["PILOTHOUSE_ENVIRONMENT"] = "test"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    pages = build_pages()
    outdated = find_outdated(pages)
    if not check:
        for name in outdated:
            (REFERENCE / name).write_text(pages[name], encoding="utf-8")
    for name in outdated:
        sys.stdout.write(f"docs/reference/{name} {'is out of date' if check else 'written'}\n")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
