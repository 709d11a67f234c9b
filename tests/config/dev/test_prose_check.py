"""The prose check finds words of the glossary's list where people read them, and nowhere else."""

from __future__ import annotations

import pytest

from config.dev import prose_check

RULES = prose_check.read_rules(
    """
## Words to avoid

| avoid | write | fine in |
|---|---|---|
| aside | side question | set aside |
| by the clock | on a schedule |  |
| purse, purses | budget |  |

## Something else

| model | what runs | |
"""
)


def found(name: str, text: str) -> list[tuple[int, str]]:
    return [(line, words) for line, words, _ in prose_check.find_problems(name, text, RULES)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("docs/a.md", "Fine.\nIt runs by the\nclock.\n", [(2, "by the clock")]),
        ("docs/a.md", "A question aside.\n\nMoney set aside.\n", [(1, "aside")]),
        ("docs/a.md", "`purse` and\n\n```\npurse\n```\n[a](purse.md)\n", []),
        ("a.py", '# A Purse.\npurse = "purse"\nraise E("no purses left")\n', [(1, "Purse"), (3, "purses")]),
        ("a.py", 'text = f"the purse of {purse}"\n', [(1, "purse")]),
        ("tests/a.py", 'say("the purse")\n\n\ndef f():\n    """Take a purse."""\n', [(5, "purse")]),
        ("tests/a.py", "\n\nasync def test_it_runs_by_the_clock(purse):\n    pass\n", [(3, "by the clock")]),
        ("a.html", '<p class="purse">{{ purse }}\nYour purse</p><aside>x</aside>', [(2, "purse")]),
        ("a.html", '<p>{% translate "Your purse" %}{% if purse %}x{% endif %}</p>', [(1, "purse")]),
        ("a.html", "{# the purse #}<a title=\"Open the purse\" href='/purse'>x</a>", [(1, "purse")]),
        ("a.js", 'const purse = _("Your purse"); // a purse\nopen("purse");', [(1, "purse")]),
        ("Makefile", "purse: ## open the purse\n\t@echo purse\n", [(1, "purse")]),
        ("a.lua", "-- the purse\nlocal purse = 1\n", [(1, "purse")]),
    ],
)
def test_words_are_found_where_people_read_them(name, text, expected):
    assert sorted(set(found(name, text))) == expected


def test_a_docstring_begins_with_a_verb_or_its_subject():
    text = '"""What it is."""\n\n\ndef run():\n    """How it runs."""\n\n\ndef stop():\n    """Stop it."""\n'
    assert found("a.py", text) == [(1, "What"), (5, "How")]


def test_a_log_call_names_an_event():
    text = 'log.info("lease_lost", id=1)\nlog.warning("the lease is lost")\nlog.error(\n    f"lost {id}"\n)\n'
    assert found("a.py", text) == [(2, "the lease is lost"), (4, "lost {id}")]
