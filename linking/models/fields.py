"""Values shared by linking's tables: platforms, platform ids and display names."""

from __future__ import annotations

import re
import unicodedata

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
    """Return a field for an id that a platform assigned; constraints of the table check its form."""
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


MAX_DISPLAY_CHARACTERS = 80
# Marks that change the reading direction. With them a name could rearrange the sentence around it.
_BIDI_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_INVISIBLE_CATEGORIES = {"Cc", "Cs", "Co", "Cn"}


def clean_name(name: str, most: int = MAX_DISPLAY_CHARACTERS) -> str:
    """Return a name that a platform's user chose, safe to show: one line, nothing invisible, at most `most` characters."""
    straight = _BIDI_MARKS.sub("", name[: 4 * most + 1000])
    visible = "".join(" " if unicodedata.category(one) in _INVISIBLE_CATEGORIES else one for one in straight)
    words = " ".join(visible.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"
