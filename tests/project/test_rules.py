"""Every rule that must hold is carried by a test that says so.

A list in tests/rules/ names the rules of one specification, an id a line. A test carries a rule by beginning its
docstring with the id, or with several (`A9.10, A33.c6`), or by its name (`…_a5_c1`). Words after an id in a list say why no test carries it; a
new specification is one more file.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
LISTS = sorted((TESTS / "rules").glob("*.txt"))
RULE = r"[A-Z](?:-[A-Z])?\d+(?:\.c?\d+)?"  # A21.3, B9.c2, A-S8.4, T10
HEAD = re.compile(rf"{RULE}(?:(?:,| and|;)\s{RULE})*(?!\w|\.\w)")


NAMED = re.compile(r"_(a_)?([a-z]\d+)_(c?\d+)(?![a-z\d])")


def rules_at_the_head_of(docstring: str) -> set[str]:
    head = HEAD.match(docstring)
    return set(re.findall(RULE, head[0])) if head else set()


def rules_in_the_name(name: str) -> set[str]:
    return {
        f"{'A-' if check else ''}{section.upper()}.{rule}" for check, section, rule in NAMED.findall(name)
    }


@cache
def carried() -> frozenset[str]:
    """The rules that some test names, read from the text: no test needs to be imported for it."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found |= rules_at_the_head_of(ast.get_docstring(node) or "") | rules_in_the_name(node.name)
    return frozenset(found)


def listed(path: Path) -> list[tuple[str, str]]:
    """Each id of a list, with its excuse or nothing."""
    lines = [line.partition(" ") for line in path.read_text().splitlines() if line.strip()]
    return [(rule, why.strip()) for rule, _, why in lines]


def test_every_rule_of_the_lists_is_carried_by_a_test_and_no_other_is_excused():
    """B20.c1, B20.8: an id without a test is named; all lists at once, for reading all tests takes seconds"""
    for path in LISTS:
        missing = [rule for rule, excuse in listed(path) if not excuse and rule not in carried()]
        assert not missing, f"{path.name}: no test's docstring begins with {', '.join(missing)}"
        stale = [rule for rule, excuse in listed(path) if excuse and rule in carried()]
        assert not stale, f"{path.name}: a test carries {', '.join(stale)} now; strike the excuse"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_names_ids_once(path):
    rules = [rule for rule, _ in listed(path)]
    assert [rule for rule in rules if not re.fullmatch(RULE, rule)] == []
    assert sorted({rule for rule in rules if rules.count(rule) > 1}) == []


@pytest.mark.parametrize(
    ("docstring", "rules"),
    [
        ("A9.10, A33.c6", {"A9.10", "A33.c6"}),
        ("A-S8.4: a link dies with its file", {"A-S8.4"}),
        ("T10 and E3: the waiter", {"T10", "E3"}),
        ("B9.c2; P12", {"B9.c2", "P12"}),
        ("A11.3. Nothing waits, see A11.4", {"A11.3"}),
        ("As A9.10 says", set()),
        ("A9.10x", set()),
    ],
)
def test_only_the_head_of_a_docstring_carries_rules(docstring, rules):
    assert rules_at_the_head_of(docstring) == rules


def test_a_name_carries_rules_too():
    assert rules_in_the_name("test_finish_reasons_are_ours_a5_3_a14_c3") == {"A5.3", "A14.c3"}
    assert rules_in_the_name("test_b5_2_a_dead_redis_is_one_line_a_d17_1") == {"B5.2", "A-D17.1"}
    assert rules_in_the_name("test_a_3_is_no_rule_and_http_2_neither_nor_b2_5x") == set()
