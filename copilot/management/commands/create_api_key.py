"""Create an API key for a user and print it once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from config.core.errors import RequestRefused
from copilot.accounts import api_keys


class Command(BaseCommand):
    help = "Create an API key for a user. The key is printed once and can't be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", help="username or email address")
        parser.add_argument("--name", default="", help="what the key is for, as shown in lists")
        parser.add_argument(
            "--scopes", nargs="+", choices=api_keys.SCOPES, default=list(api_keys.DEFAULT_SCOPES)
        )
        parser.add_argument("--days", type=int, help="days until it expires (default: never)")

    def handle(
        self, *, username: str, name: str, scopes: list[str], days: int | None, **_options: object
    ) -> None:
        expires_at = timezone.now() + timedelta(days=days) if days is not None else None
        try:
            created = api_keys.create_api_key(
                _find_user(username), name=name, scopes=tuple(scopes), expires_at=expires_at
            )
        except RequestRefused as refusal:
            raise CommandError(refusal.message) from refusal
        self.stdout.write(created.token)


def _find_user(username: str) -> User:
    found = list(User.objects.filter(username=username)[:2]) or list(User.objects.filter(email=username)[:2])
    if len(found) != 1:
        raise CommandError(
            f"There is no user {username!r}." if not found else f"Several users match {username!r}."
        )
    return found[0]
