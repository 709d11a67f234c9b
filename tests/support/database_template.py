"""Prepare the database that every test process clones: migrated once, then restored from a dump."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import psycopg
from django.apps import apps
from django.core.management import call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection

from config.dev.servers import find_postgres_binaries
from tests.support import database_cleanup

NAME = "pilothouse_template"
BUILDING = "pilothouse_building"  # so that a failed migration leaves no incomplete template


def make(server: psycopg.Connection[tuple[object, ...]], url: str) -> None:
    server.execute(f"drop database if exists {BUILDING}")
    server.execute(f"create database {BUILDING}")
    own = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = BUILDING
    try:
        _fill(url + BUILDING)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = own
    with psycopg.connect(url + BUILDING, autocommit=True) as built:
        database_cleanup.remember(built)
    server.execute(f"alter database {BUILDING} rename to {NAME}")


def _fill(url: str) -> None:
    dump = _kept() / f"{_fingerprint()}.sql"
    if dump.exists():
        _run("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", url)
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")  # defaults are set by code
        return
    call_command("migrate", verbosity=0, interactive=False)
    with contextlib.suppress(
        OSError, subprocess.CalledProcessError
    ):  # without the tools it is migrated again next time
        _run("pg_dump", "--no-owner", f"--file={dump}.{os.getpid()}", url)
        os.replace(f"{dump}.{os.getpid()}", dump)


def _kept() -> Path:
    """Return the directory of dumps, shared by all checkouts of this user."""
    place = Path(tempfile.gettempdir()) / f"pilothouse-templates-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise PermissionError(f"{place} belongs to somebody else")
    return place


def _fingerprint() -> str:
    """Hash the text of every migration, ours and the libraries', and the server's version."""
    digest = hashlib.sha256(str(find_postgres_binaries()).encode())
    for app in apps.get_app_configs():
        for file in sorted(
            [*Path(app.path).glob("migrations/*.py"), *Path(app.path).glob("migrations/*.sql")]
        ):
            digest.update(f"{app.label}/{file.name}".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


def _run(program: str, *arguments: str) -> None:
    subprocess.run([str(find_postgres_binaries() / program), *arguments], check=True, capture_output=True)
