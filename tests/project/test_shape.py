"""The code keeps the shape that its rules ask for: short functions, clean cores, errors caught where they have a name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.suite_parts import IN_BROWSER, WITHOUT_BROWSER

APPS = ("config", "copilot", "billing", "linking", "diagnostics")
CORE = ("copilot/agent", "copilot/providers", "copilot/tools")
FRAMEWORKS = {"django", "celery", "channels", "redis"}
CLEAN = (
    *(f"copilot.agent.{name}" for name in ("loop", "model_stream", "guards", "retry_policy", "interfaces")),
    *(f"copilot.providers.{name}" for name in ("base", "failures", "catalogue", "scripted")),
    *(f"copilot.providers.{name}" for name in ("openai_chat", "openai_responses", "anthropic")),
    *(f"copilot.tools.{name}" for name in ("base", "calls")),
    *(f"copilot.chat.{name}" for name in ("turn_context", "permissions")),
    *(f"config.core.{name}" for name in ("redaction", "url_safety")),
)
# Besides the entry points (tasks, consumers): code that many turns of a process share, which one turn's error must not end.
SHARED = {
    "copilot/worker/recovery.py",
    "copilot/worker/turn_worker.py",
    "config/core/batching.py",
    "copilot/realtime/publisher.py",
    "copilot/realtime/fanout.py",
    "copilot/accounts/deletion.py",  # closes what other apps hold: a failing one stops no other
    # One text or row of a conversation must not take its page down; each failure is logged and counted.
    "copilot/web/markdown.py",
    "copilot/web/share_page.py",
    "copilot/templatetags/rows.py",
    "copilot/web/transcript.py",
}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_bytes())


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in {"Exception", "BaseException"})
        for one in caught
    )


def test_no_function_of_the_core_is_longer_than_sixty_lines():
    """A33.c7"""
    long = [
        f"{path} {node.name}"
        for path, tree in modules(*CORE)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


def test_broad_excepts_are_only_at_entry_points_and_in_code_that_turns_share():
    """A33.c7"""
    broad = {
        path
        for path, tree in modules("copilot")
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    }
    assert broad - SHARED <= {"copilot/tasks.py", "copilot/realtime/consumer.py"}


def test_the_clean_modules_load_no_framework():
    """A33.c7, A0.6: importing them, and all that they import"""
    code = f"import sys, {', '.join(CLEAN)}; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not FRAMEWORKS & {name.partition(".")[0] for name in loaded.stdout.split()}


def test_no_tool_reads_who_it_works_for_from_its_process():
    """A9.11, A31.1: neither the environment, nor thread-locals; the turn's context alone says it"""
    for path, tree in modules("copilot/tools", "copilot/agent", "copilot/providers"):
        read = {f"{node.value.id}.{node.attr}" for node in ast.walk(tree) if is_attribute_of_a_name(node)}
        assert not read & {"os.environ", "os.getenv", "threading.local"}, path


def is_attribute_of_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def test_there_is_no_synchronous_twin():
    """A1.1: no synchronous client of a vendor or of the web, and no blocking sleep; Django itself refuses its ORM on a loop"""
    blocking = {
        "time.sleep",
        "openai.OpenAI",
        "anthropic.Anthropic",
        "httpx.Client",
        "httpx.get",
        "httpx.post",
    }
    for path, tree in modules(*CORE):
        if path == "copilot/providers/catalogue_store.py":  # it sleeps in a thread of its own
            blocking = blocking - {"time.sleep"}
        assert not blocking & {
            ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
        }, path


def test_browser_tests_are_in_one_folder_and_all_of_them_are_run():
    """The two parts of `make test` do not read each other's files: a test in the wrong one would never be run."""
    marked = {
        path
        for path, tree in modules("tests")
        if any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.browser"
            for node in ast.walk(tree)
        )
    }
    in_folder = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "browser").glob("test_*.py")}
    assert marked == in_folder
    makefile = (ROOT / "Makefile").read_text()
    assert all(f'-m "{part}"' in makefile for part in (WITHOUT_BROWSER, IN_BROWSER))


# --- tests ------------------------------------------------------------------------------------------


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def fixture_names(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_tests_lie_in_folders_that_mirror_the_product():
    assert {path.name for path in (ROOT / "tests").glob("*.py")} == {"__init__.py", "conftest.py"}
    for app in APPS:
        folders = [path for path in (ROOT / "tests" / app).rglob("*") if path.is_dir()]
        mirrored = [path.relative_to(ROOT / "tests") for path in folders if path.name != "__pycache__"]
        assert [str(path) for path in mirrored if not (ROOT / path).is_dir()] == []


def test_fixtures_come_from_conftest_and_helpers_from_support():
    """A test module that imports another runs that one's fixtures and breaks when it is renamed."""
    for path, tree in modules("tests"):
        may_define = Path(path).name == "conftest.py" or Path(path).name.startswith("test_")
        assert may_define or not fixture_names(tree), f"{path} defines fixtures: move them to a conftest.py"
        for module, name in imported_names(tree):
            parts = [*module.split("."), name]
            taken = [part for part in parts if part.startswith("test_") or part == "conftest"]
            assert parts[0] != "tests" or not taken, f"{path} imports {module}.{name}"


# --- names and words ---------------------------------------------------------------------------------

FIELD_WORDS = {
    "billing",
    "linking",
    "logging",
    "pricing",
    "routing",
    "tracing",
    "polling",
    "throttling",
    "parsing",
}
HEADLESS = re.compile(r"(What|Who|Whose|Whether|How|Where|Which|Why)\b")
RULE_ID = re.compile(r"\b(?:A-)?[ABDELSTWP]\d{1,2}\.c?\d{1,2}\b")


def product() -> Iterator[tuple[str, ast.Module]]:
    return ((path, tree) for path, tree in modules(*APPS) if "/migrations/" not in path)


def test_modules_are_named_by_nouns():
    names = [Path(path).stem for path, _ in product() if not path.endswith("__init__.py")]
    gerunds = [name for name in names if name.endswith("ing") and name.rpartition("_")[2] not in FIELD_WORDS]
    assert len(gerunds) <= len(names) * 0.04, gerunds


def test_no_public_class_name_occurs_twice_in_an_app():
    found: dict[tuple[str, str], list[str]] = {}
    for path, tree in product():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Command":
                found.setdefault((path.partition("/")[0], node.name), []).append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_product_code_cites_no_rules():
    """Their text is in docs/spec, and the tests name them: code explains itself."""
    citing = {
        path: sorted(set(RULE_ID.findall((ROOT / path).read_text())))
        for path, _ in product()
        if RULE_ID.search((ROOT / path).read_text())
    }
    assert citing == {}


def test_docstrings_begin_with_a_subject_or_a_verb():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        (path, text)
        for path, tree in product()
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]
    headless = [f"{path}: {text.splitlines()[0]}" for path, text in docstrings if HEADLESS.match(text)]
    assert headless == []


# --- modules -----------------------------------------------------------------------------------------

# Kinds of modules that Django, Celery or our own conventions look for under a name or in a folder of their own.
CONVENTIONAL_NAMES = {
    *("__init__", "admin", "apps", "asgi", "celery", "checks", "forms", "metrics", "middleware"),
    *("models", "routing", "settings", "signals", "tasks", "urls"),
}
CONVENTIONAL_FOLDERS = {"admin", "builtin", "commands", "models", "templatetags"}
MIN_LINES = 60
SMALL_ON_PURPOSE = {
    "billing/redirects.py",  # what browsers may be sent to: pages, REST and mails ask
    "config/beat_schedule.py",  # read by the settings, so it imports no app
    "config/bootstrap.py",  # a program
    "config/core/emails.py",  # every app sends mails
    "config/error_views.py",  # named by the URL configuration
    "config/tracing.py",  # imports OpenTelemetry only where traces are wanted
    "copilot/agent/image_files.py",
    "copilot/chat/message_rows.py",  # a value without Django, for the agent's core
    "copilot/realtime/side_question_state.py",  # read by the agent and by chat
    "diagnostics/work_ages.py",
}
MAX_SINGLE_IMPORTERS = 37


def is_conventional(path: str) -> bool:
    place = Path(path)
    return place.stem in CONVENTIONAL_NAMES or place.parent.name in CONVENTIONAL_FOLDERS


def test_small_modules_have_a_reason():
    """A module that says less than a screenful belongs into the one that reads it."""
    small = {
        path
        for path, _ in product()
        if not is_conventional(path) and len((ROOT / path).read_text().splitlines()) < MIN_LINES
    }
    assert small - SMALL_ON_PURPOSE == set()
    assert SMALL_ON_PURPOSE - small == set(), "no longer small, or gone: take them off the list"


def test_modules_with_a_single_importer_become_no_more():
    """Views that a URL configuration names and modules that settings name are not counted: nothing else imports them."""
    trees = dict(product())
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in trees}
    importers: dict[str, set[str]] = {name: set() for name in names}
    for path, tree in trees.items():
        for module, imported in imported_names(tree):
            found = f"{module}.{imported}" if f"{module}.{imported}" in names else module
            if found in names:
                importers[found].add(path)
    single = sorted(
        names[name]
        for name, found in importers.items()
        if len(found) == 1
        and not is_conventional(names[name])
        and Path(next(iter(found))).stem not in {"asgi", "settings", "urls"}
    )
    assert len(single) <= MAX_SINGLE_IMPORTERS, single
