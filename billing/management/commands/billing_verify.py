"""Report usage windows that don't match their records, and repair them on request."""

from __future__ import annotations

import argparse

from django.core.management.base import BaseCommand, CommandError

from billing.usage import windows


class Command(BaseCommand):
    help = "Report usage windows that don't match their records and resets. Exits with status 1 if there are any."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="rewrite these windows and update Redis")

    def handle(self, *args: object, repair: bool = False, **options: object) -> None:
        found = list(windows.find_window_mismatches())
        for mismatch in found:
            self.stdout.write(
                f"account {mismatch.account_id} {mismatch.kind} {mismatch.starts_on}: "
                f"{mismatch.used_microdollars} instead of {mismatch.right_microdollars} microdollars"
            )
            if repair:
                windows.repair_window(mismatch)
        if found and not repair:
            raise CommandError(
                f"{len(found)} windows don't add up. Run again with --repair to fix them.", returncode=1
            )
        self.stdout.write(f"{len(found)} windows repaired." if found else "All windows add up.")
