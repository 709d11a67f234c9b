"""Raw statements give rows with names, and a column in the wrong place is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from config.core.db import fetch_all, fetch_one

pytestmark = pytest.mark.django_db


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Total:
    amount: int


def test_rows_are_named_tuples_or_dataclasses():
    assert fetch_all(Pair, "SELECT 1 AS left, 'a' AS right UNION ALL SELECT 2, 'b' ORDER BY 1") == [
        Pair(1, "a"),
        Pair(2, "b"),
    ]
    assert fetch_one(Total, "SELECT %(one)s::int + 1 AS amount", {"one": 1}) == Total(2)
    assert fetch_one(Total, "SELECT 1 AS amount WHERE false") is None


@pytest.mark.parametrize(
    "columns",
    ["'a' AS right, 1 AS left", "1 AS left", "1 AS left, 'a' AS right, 2 AS more", "1, 'a' AS right"],
)
def test_columns_in_another_order_or_number_are_refused(columns):
    for _ in range(2):  # not only the first time
        with pytest.raises(TypeError, match="Pair has the fields"):
            fetch_one(Pair, f"SELECT {columns}")
