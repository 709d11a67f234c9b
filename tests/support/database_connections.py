"""Run database work in threads of a test."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection


def run_in_own_connection(act: Callable[[], object]) -> None:
    try:
        act()
    finally:
        connection.close()
