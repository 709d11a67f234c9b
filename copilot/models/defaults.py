from __future__ import annotations

from django.db import models

# A turn writes its session, its own row and its messages several times, and every index on them again each time:
# a foreign key has one of its own only where no other begins with it, and of rows that have it at all.

# Database defaults let a statement name only the columns it sets.
EMPTY_LIST = models.Value([], output_field=models.JSONField())
EMPTY_OBJECT = models.Value({}, output_field=models.JSONField())
