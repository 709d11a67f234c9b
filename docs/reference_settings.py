"""The reference of settings, written from the table in config/variables.py."""

from __future__ import annotations

from config import variables

HEAD = """# Settings

<!-- Written by `python -m docs.generate`. -->

All settings are environment variables. Lists are separated by commas, sizes are written as `50 MB` or in bytes, and amounts are microdollars (1,000,000 = $1). A variable that is set to nothing counts as not set.
"""


def render() -> str:
    parts = [HEAD]
    for group in variables.groups:
        parts.append(f"## {group.title}\n")
        parts += [f"{group.intro}\n"] if group.intro else []
        parts.append("| variable | value | default | meaning |\n|---|---|---|---|")
        parts += [f"| `{one.name}` | {one.kind} | {one.default} | {one.meaning} |" for one in group.variables]
        parts.append("")
    return "\n".join(parts)
