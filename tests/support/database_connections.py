"""Run database work in threads of a test."""

from __future__ import annotations

from django.db import connection


def run_in_own_connection(act):
    try:
        act()
    finally:
        connection.close()
