"""Model fields shared by linking's tables: platforms and platform ids."""

from __future__ import annotations

from django.db import models
from django.db.models import CheckConstraint, Q

PLATFORM_ID_PATTERN = r"^[A-Za-z0-9_:.\-]{1,64}$"  # opaque: a snowflake as a number would lose digits


class Platform(models.TextChoices):
    TELEGRAM = "telegram"
    DISCORD = "discord"
    SLACK = "slack"
    SCRIPTED = "scripted"  # tests and development only


PLATFORMS: tuple[str, ...] = tuple(Platform.values)


def platform_field() -> models.CharField[str, str]:
    return models.CharField(max_length=16, choices=Platform.choices)


def platform_id_field(
    *, blank: bool = False, default: str | None = None, help_text: str = ""
) -> models.CharField[str, str]:
    """An id that a platform gave; the table's checks say what it may look like."""
    if default is None:
        return models.CharField(max_length=64, blank=blank, help_text=help_text)
    return models.CharField(
        max_length=64, blank=blank, default=default, db_default=default, help_text=help_text
    )


def known_platform_constraint(whose: str) -> CheckConstraint:
    return CheckConstraint(condition=Q(platform__in=PLATFORMS), name=f"{whose}_has_a_known_platform")


def platform_id_constraint(field: str, *, or_nothing: bool = False) -> CheckConstraint:
    well_formed = Q(**{f"{field}__regex": PLATFORM_ID_PATTERN})
    condition = well_formed | Q(**{field: ""}) if or_nothing else well_formed
    return CheckConstraint(condition=condition, name=f"%(class)s_{field}_is_opaque")
