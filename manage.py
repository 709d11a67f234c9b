"""Django's command line for Pilothouse."""

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    from config import env

    var = os.environ.get("PILOTHOUSE_VAR") or Path(__file__).resolve().parent / "var"
    env.load_run_environment(Path(var) / "run.env")

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
