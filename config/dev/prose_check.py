"""Look for words that the glossary advises against, in documentation, pages, messages and comments (make check)."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = "docs/glossary.md"
AVOIDED_WORDS_HEADING = "## Words to avoid"
TABLE_ROW = re.compile(r"\| (?P<words>.+?) \| (?P<better>.+?) \| (?P<fine>.*?) ?\|")
# Other people's text, and records of the past that are not rewritten.
SKIPPED = re.compile(
    r"static/vendor/|docs/spec/|requirements/|(.+/)?migrations/|tests/(?!.+\.py$)|tests/config/dev/test_prose_check|LICENSE"
)
COMMENT_MARKS = {
    ".css": r"/\*.*?\*/",
    ".js": r"/\*.*?\*/|(?<!:)//[^\n]*|([\"'`])(?:\\.|(?!\1)[^\\\n])* (?:\\.|(?!\1)[^\\\n])*\1",
    ".lua": r"--[^\n]*",
    ".sql": r"--[^\n]*",
    ".html": r"{#.*?#}|>[^<>]*<|{% (?:blocktrans|translate).*?%}|{% comment %}.*?{% endcomment %}"
    r"|(?:aria-label|title|placeholder|alt|content|data-\w+)=\"[^\"<>]*\"",
    ".txt": r".+",
}
TEST_NAME = re.compile(r"^(?:async )?def test_(\w+)", re.M)
HASH_COMMENTS = r"(?:^|\s)#[^\n]*"  # Makefile, shell, TOML, YAML, systemd, nginx
CODE_IN_MARKDOWN = re.compile(r"^( *)(```|~~~).*?^\1\2|`[^`\n]+`|\]\([^)\s]*\)|<[^>\n]+>", re.S | re.M)
CODE_IN_TEMPLATE = re.compile(r"{{.*?}}|{% (?!blocktrans|translate)[^%]*%}", re.S)
HEADLESS = re.compile(
    r"^ *(?:async )?(?:class|def)\b.*:\n *\"\"\"(?P<one>(?:What|Who|Whose|Whether|How|Which|Where|Why)\b)"
    r"|\A\"\"\"(?P<two>(?:What|Who|Whose|Whether|How|Which|Where|Why)\b)",
    re.M,
)
LOG_SENTENCE = re.compile(
    r"\b_?log(?:ger)?\.(?:debug|info|warning|error|exception|critical)\(\s*f?\"(?P<one>[^\"]*[^\"a-z0-9_.][^\"]*)\""
)


class Rule(NamedTuple):
    words: list[str]
    pattern: re.Pattern[str]
    better: str

    def may_match(self, lowered: str) -> bool:
        """Tell quickly whether a file needs a closer look; a phrase may be broken over two lines."""
        return any(word.partition(" ")[0] in lowered for word in self.words)


class Problem(NamedTuple):
    line: int
    words: str
    better: str


def read_rules(glossary: str) -> list[Rule]:
    """Parse the glossary's table of words to avoid: the words, better ones, and phrases in which they are fine."""
    section = glossary.partition(AVOIDED_WORDS_HEADING)[2].partition("\n## ")[0]
    rules = []
    for row in TABLE_ROW.finditer(section):
        words = row["words"].lower().split(", ")
        if words != ["avoid"]:
            rules.append(Rule(words, _match_words(words, row["fine"].split(", ")), row["better"]))
    return rules


def _match_words(words: list[str], fine: list[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"[\s#*]+") for word in words)
    skip = rf"(?P<fine>\b(?:{'|'.join(map(re.escape, fine))})\b)|" if fine != [""] else ""
    return re.compile(rf"{skip}(?<![\w./-])(?:{alternatives})(?![\w/(=-]|\.\w)", re.I)


def find_problems(name: str, text: str, rules: list[Rule]) -> list[Problem]:
    lowered = text.lower()
    is_test = name.startswith("tests/")  # their names have underscores instead of spaces
    suspects = [rule for rule in rules if rule.may_match(lowered) and (is_test or rule.pattern.search(text))]
    found = list(_find_patterns(text)) if name.endswith(".py") and not is_test else []
    if suspects:
        for offset, prose in list_prose(name, text):
            for rule in suspects:
                for hit in rule.pattern.finditer(prose):
                    if not hit.groupdict().get("fine"):
                        line = text.count("\n", 0, offset + hit.start()) + 1
                        found.append(Problem(line, " ".join(hit.group().split()), rule.better))
    return sorted(set(found))


def _find_patterns(text: str) -> Iterator[Problem]:
    for pattern, better in (
        (HEADLESS, "begin the docstring with a verb or its subject"),
        (LOG_SENTENCE, 'log an event name with fields: log.warning("lease_lost", session_id=…)'),
    ):
        for hit in pattern.finditer(text):
            words = hit["one"] or hit["two"]
            yield Problem(text.count("\n", 0, hit.start(hit.lastgroup or 0)) + 1, words, better)


def list_prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of a file that people read, each with its offset in the text."""
    suffix = Path(name).suffix
    if suffix == ".md":
        end = text.find(AVOIDED_WORDS_HEADING) if name == GLOSSARY else None
        yield 0, CODE_IN_MARKDOWN.sub(_blank_out, text[:end])
    elif suffix == ".py":
        is_test = name.startswith("tests/")
        yield from _list_python_prose(text, is_test=is_test)
        if is_test:
            yield from ((hit.start(1), hit[1].replace("_", " ")) for hit in TEST_NAME.finditer(text))
    else:
        if suffix in (".html", ".txt"):
            text = CODE_IN_TEMPLATE.sub(_blank_out, text)
        for part in re.finditer(COMMENT_MARKS.get(suffix, HASH_COMMENTS), text, re.S | re.M):
            yield part.start(), part.group()


def _blank_out(code: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\x00", code.group())


def _list_python_prose(text: str, *, is_test: bool) -> Iterator[tuple[int, str]]:
    """Yield comments and strings with a space in them; of tests, whose strings are data, only comments and docstrings."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        is_string = kind in ("STRING", "FSTRING_MIDDLE") and " " in token.string
        if kind == "COMMENT" or (is_string and (not is_test or token.string.startswith('"""'))):
            yield starts[token.start[0] - 1] + token.start[1], token.string


def main() -> int:
    rules = read_rules((ROOT / GLOSSARY).read_text())
    listed = ["git", "ls-files", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    count = 0
    for name in names:
        path = ROOT / name
        if not name or SKIPPED.match(name) or not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # a picture
            continue
        for line, words, better in find_problems(name, text, rules):
            count += 1
            sys.stdout.write(f"{name}:{line}: {words!r}: {better}\n")
    sys.stdout.write(f"prose    {count} problems; {GLOSSARY} has the rules\n" if count else "prose    ok\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
