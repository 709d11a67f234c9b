"""Store the search index of messages, in a table of its own so that updates of messages stay cheap."""

from __future__ import annotations

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import F


class SearchEntry(models.Model):
    """The searchable words of one message. Only `copilot.chat.search` writes it. The database deletes it with the message."""

    message = models.OneToOneField(
        "Message",
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,  # the migration creates it, with ON DELETE CASCADE
        related_name="+",
    )
    owner_id = models.BigIntegerField()
    sent_at = models.DateTimeField()
    words = SearchVectorField(help_text="Each behind the number of its owner.")

    class Meta:
        indexes = [
            GinIndex(fields=["words"], fastupdate=False, name="words_of_messages"),
            models.Index(F("owner_id"), F("sent_at").desc(), name="newest_words_of_an_owner"),
        ]

    def __str__(self) -> str:
        return f"words of {self.message_id}"


class SearchProgress(models.Model):
    """The progress of the index: turns that ended up to this time are in it."""

    id = models.SmallAutoField(primary_key=True)
    through = models.DateTimeField()

    def __str__(self) -> str:
        return f"through {self.through}"
