"""Print the one-time link with which the first administrator signs up."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

from config.core.errors import RequestRefused
from copilot.accounts import invitations


class Command(BaseCommand):
    help = "Print a one-time sign-up link for the first administrator."

    def handle(self, *args: object, **options: object) -> None:
        try:
            link = invitations.create_setup_link()
        except RequestRefused as refusal:
            raise CommandError(
                f"{refusal.message} Use `manage.py createsuperuser` or the admin to add another."
            ) from refusal
        self.stdout.write(
            f"Create the first administrator here (works once, for {invitations.SETUP_LINK_HOURS} hours):\n{link.url}"
        )
