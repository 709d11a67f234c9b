"""Invite somebody to sign up, by mail or by a printed link."""

from __future__ import annotations

from argparse import ArgumentParser

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.core.validators import validate_email

from copilot.accounts import invitations


class Command(BaseCommand):
    help = "Create an invitation, print its link and email it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "email", nargs="?", default="", help="the only address that can use it (default: any)"
        )
        parser.add_argument(
            "--days", type=int, default=invitations.DEFAULT_LIFETIME_DAYS, help="days until it expires"
        )
        parser.add_argument("--no-mail", action="store_true", help="only print the link")

    def handle(self, *, email: str, days: int, no_mail: bool, **_options: object) -> None:
        if settings.SIGNUP == "closed":
            raise CommandError("Sign-up is closed. Set SIGNUP=invite (or another policy) to use invitations.")
        if not 1 <= days <= invitations.MAX_LIFETIME_DAYS:
            raise CommandError(f"--days must be from 1 to {invitations.MAX_LIFETIME_DAYS}.")
        if email:
            try:
                validate_email(email)
            except ValidationError:
                raise CommandError(f"{email!r} is not an email address.") from None
        invitation = invitations.create_invitation(email=email, days=days)
        self.stdout.write(invitation.url)
        if email and not no_mail:
            is_sent = invitations.send_invitation_email(invitation)
            self.stderr.write("Email sent." if is_sent else "The email could not be sent.")
