"""The database has everything that the models declare, whatever the migrations did (T2)."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection

pytestmark = pytest.mark.django_db

OURS = ("copilot", "billing", "linking", "diagnostics")
MODELS = [model for model in apps.get_models() if model._meta.app_label in OURS]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_every_constraint_and_index_of_a_model_is_in_the_database(model):
    """T2: altering a column can drop the partial unique indexes on it without a word"""
    said = {rule.name for rule in (*model._meta.constraints, *model._meta.indexes)}
    with connection.cursor() as cursor:
        standing = connection.introspection.get_constraints(cursor, model._meta.db_table)
    assert said <= set(standing)
