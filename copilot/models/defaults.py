"""Share database defaults between the models. They let a statement name only the columns it sets."""

from __future__ import annotations

from django.db import models

EMPTY_LIST = models.Value([], output_field=models.JSONField())
EMPTY_OBJECT = models.Value({}, output_field=models.JSONField())
