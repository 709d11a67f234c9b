"""Check an installation and report, line by line, what is wrong and what to do next."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from django.core.management.base import BaseCommand, CommandParser

from diagnostics.probes import configuration, external_services, runner, servers

GROUPS: Mapping[str, Mapping[str, runner.Probe]] = {
    "config": configuration.CONFIGURATION_PROBES,
    "postgres": {
        "postgres": servers.probe_postgres,
        "postgres.writes": servers.probe_postgres_writes,
        "postgres.pooler": servers.probe_pooler,
    },
    "migrations": {"migrations": servers.probe_migrations},
    "redis": {"redis": servers.probe_redis, "redis.keys": servers.probe_redis_keys},
    "accounts": {"accounts.demo": servers.probe_demo_user},
    "broker": {"broker": servers.probe_broker},
    "channels": {"channels": servers.probe_channel_layer},
    "workers": {"workers": servers.probe_workers},
    "scheduler": {"scheduler": servers.probe_scheduler},
    "reaper": {"reaper": servers.probe_reaper},
    "storage": {"storage": servers.probe_storage},
    "mail": {"mail": servers.probe_mail},
    "providers": external_services.PROVIDER_PROBES,
    "payments": external_services.PAYMENT_PROBES,
    "platforms": external_services.PLATFORM_PROBES,
    "webhooks": {**external_services.PAYMENT_WEBHOOK_PROBES, **external_services.PLATFORM_WEBHOOK_PROBES},
    "tools": configuration.TOOL_PROBES,
    "clock": {"clock": servers.probe_clock},
}
NETWORK = ("mail", "providers", "payments", "platforms", "webhooks")


class Command(BaseCommand):
    help = "Check settings, servers, workers, storage and providers. Exit code 0: all is well; 1: something failed."
    requires_system_checks: list[str] = []  # a broken setting is a line of the report, not a traceback

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument("--only", action="append", choices=sorted(GROUPS), help="check only these groups")
        parser.add_argument(
            "--skip", action="append", choices=sorted(GROUPS), default=[], help="skip these groups"
        )
        parser.add_argument(
            "--timeout", type=_positive, default=5.0, help="longest time for a check, in seconds"
        )
        parser.add_argument("--offline", action="store_true", help="contact only our own servers")
        parser.add_argument("--strict", action="store_true", help="treat warnings as failures")

    def handle(self, *args: object, **options: object) -> None:
        chosen = _chosen(
            options["only"], [*_words(options["skip"]), *(NETWORK if options["offline"] else ())]
        )
        probes = {name: probe for group in chosen for name, probe in GROUPS[group].items()}
        results = runner.skip_dependents(
            runner.run_probes(probes, longest_seconds=_number(options["timeout"]))
        )
        if options["json"]:
            self.stdout.write(json.dumps({"checks": [asdict(result) for result in results]}, indent=2))
        else:
            for result in results:
                self.stdout.write(line(result))
        bad = {"fail", "warn"} if options["strict"] else {"fail"}
        if any(result.status in bad for result in results):
            sys.exit(1)


def line(result: runner.ProbeResult) -> str:
    what = f"{result.detail}. {result.next_step}" if result.next_step else result.detail
    return f"{result.status:<5} {result.name:<20} {result.latency_ms:>5} ms  {what}"


def _chosen(only: object, skipped: Iterable[str]) -> list[str]:
    wanted = _words(only) or list(GROUPS)
    return [group for group in GROUPS if group in wanted and group not in set(skipped)]


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 60:
        raise argparse.ArgumentTypeError("must be a number of seconds from 0 to 60")
    return number
