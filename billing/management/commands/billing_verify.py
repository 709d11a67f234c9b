"""Are days and weeks the sums of what was recorded? Says which are not, and puts them right if asked (B5.7)."""

from __future__ import annotations

import argparse

from django.core.management.base import BaseCommand, CommandError

from billing.usage import windows


class Command(BaseCommand):
    help = "Report rows of use that are not the sum of their records less what was forgiven; exit status 1."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="rewrite these rows and tell Redis")

    def handle(self, *args: object, repair: bool = False, **options: object) -> None:
        found = list(windows.find_window_mismatches())
        for one in found:
            self.stdout.write(
                f"account {one.account_id} {one.kind} {one.starts_on}: "
                f"{one.used_microdollars} instead of {one.right_microdollars} microdollars"
            )
            if repair:
                windows.repair_window(one)
        if found and not repair:
            raise CommandError(f"{len(found)} rows do not add up.", returncode=1)
        self.stdout.write(f"{len(found)} rows repaired." if found else "Every row adds up.")
