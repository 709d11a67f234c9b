"""Check the settings and migrate the database before the workers start; make the demo login, or print the setup link."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import call_command
    from django.core.management.base import SystemCheckError
    from django.db import OperationalError, connection

    from config.core import demo_login

    try:
        django.setup()
        from django.contrib.auth.models import User

        call_command("check")
        if "--when-told" in arguments:  # the servers start meanwhile
            sys.stdin.read()
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO off")  # repeated at the next start if it is lost
        call_command("migrate", interactive=False, verbosity=0)
        if settings.DEMO_LOGIN:
            call_command("create_demo_user")
        elif demo_login.close_demo_login():
            sys.stdout.write("The demo login is switched off.\n")
        if not User.objects.filter(is_active=True).exists():
            call_command("setup_link")
    except (ImproperlyConfigured, SystemCheckError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    except OperationalError as problem:
        sys.stderr.write(f"The database does not answer: {str(problem).strip()}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
