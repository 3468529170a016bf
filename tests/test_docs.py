"""The documentation: links, the API page, and the examples as they run."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from surroundings import HANG, ROOT, environment

import tgr_local

EXAMPLES = (
    "chat",
    "completion",
    "stream",
    "search",
    "control_vectors",
    "json_schema",
    "asynchronous",
)
RUNNER = ROOT / "docs" / "site" / "executed.py"

if not RUNNER.exists():
    pytest.skip("docs and examples are not next to the tests", allow_module_level=True)


def test_the_readme_counts_the_lines_of_the_patch():
    patch = (ROOT / "csrc" / "patches" / "llama.cpp.patch").read_text(encoding="utf-8")
    lines, files = len(re.findall(r"^\+", patch, re.M)), len(re.findall(r"^# file ", patch, re.M))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"inserts (\d+) lines into (\d+) of its files", readme) == [
        (str(lines), str(files))
    ]


def test_links_between_the_pages_lead_somewhere():
    folders = [ROOT, ROOT / "csrc", ROOT / "models"]
    pages = [page for folder in folders for page in folder.glob("*.md")]
    for page in [*pages, *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), f"{page}: {link}"


def headings(page: Path) -> set[str]:
    """Those of a page, as links name them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_a_heading_name_one_that_is_there():
    folders = [ROOT, ROOT / "docs", ROOT / "csrc"]
    for page in (page for folder in folders for page in folder.glob("*.md")):
        for file, anchor in re.findall(
            r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")
        ):
            target = page.parent / file if file else page
            if "://" not in file and target.suffix == ".md":
                assert anchor in headings(target), f"{page}: {file}#{anchor}"


def test_the_pages_of_the_methods_name_functions_that_are_there():
    modules: dict[str, str] = {}
    for path in (ROOT / "tgr_local").rglob("*.py"):
        modules[path.stem] = modules.get(path.stem, "") + path.read_text(encoding="utf-8")
    for page in ("method.md", "methods.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        named = [pair for pair in re.findall(r"`(\w+)\.(\w+)`", text) if pair[0] in modules]
        assert len(named) > 5
        for module, name in named:
            assert name == "py" or re.search(rf"\b{name}\b", modules[module]), (page, module, name)


def sentences(page: str) -> list[str]:
    """Those of paragraphs, items and cells; code within a line is one word."""
    page = re.sub(r"^( *)```.*?^\1```$|^    [^\n]*$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "C", page))
    parts = re.split(r"\n\s*\n|\n(?= *(?:[-*#>]|\d+\.) )|\|", page)
    end = r"(?<=[.!?])[)*\]\"”]*\s+(?=[A-Z0-9(*\[\"“])"
    return [" ".join(one.split()) for part in parts for one in re.split(end, part)]


def test_a_sentence_has_at_most_thirty_words():
    assert sentences("A `b c` d. *e* [f g](h). (I.)\n- J\n```\nk\n```\n| l | M |\n") == [
        "A C d.", "*e* [f g].", "(I.)", "- J", "", "l", "M", "",
    ]  # fmt: skip
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "models").rglob("*.md")]
    pages += [ROOT / "csrc" / "README.md", ROOT / "examples" / "desktop" / "README.md"]
    for page in {*pages} - {ROOT / "CHANGELOG.md", ROOT / "docs" / "log.md"}:
        for sentence in sentences(page.read_text(encoding="utf-8")):
            words = re.findall(r"\S*\w\S*", sentence)
            assert len(words) <= 30, f"{page}: {len(words)} words: {sentence}"


def test_the_walks_through_the_files_name_functions_that_are_there():
    """Those in C++; `test_walks.py` has those in Python."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(csrc/\S+)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) > 8
    for file, name in rows:
        assert re.search(rf"\b{name}\(", (ROOT / file).read_text(encoding="utf-8")), (file, name)


def test_every_public_name_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: tgr_local\.(\w+)$", page, re.MULTILINE))
    shown |= set(re.findall(r"^`(\w+)` is the union of ", page, re.MULTILINE))
    assert shown == set(tgr_local.__all__)


@pytest.fixture(scope="module")
def executed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("executed", RUNNER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_its_comment_says(
    name: str, executed: ModuleType, monkeypatch, capsys
):
    path = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr()
    comment = executed.COMMENT.search(path.read_text(encoding="utf-8"))
    assert comment and not printed.err
    got = executed.uncommented(executed.commented(printed.out))
    assert executed.agrees(executed.uncommented(comment[0]), got), got


@pytest.mark.parametrize(
    ("example", "package", "install"),
    [
        ("desktop/__main__.py", "PySide6", "'tgr-local[desktop]'"),
        ("server_openai.py", "openai", "openai"),
        ("control_vectors.py", "gguf", "'tgr-local[steer]'"),
    ],
)
def test_an_example_names_the_package_that_it_misses(example: str, package: str, install: str):
    code = f"import runpy, sys; sys.modules[{package!r}] = None; "
    path = str(ROOT / "examples" / example)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}runpy.run_path({path!r}, run_name='__main__')"],
        env=environment(), capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith(f" needs {package}; run: pip install {install}\n")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is absent")
def test_the_example_for_lm_eval_names_the_package_that_it_misses():
    script = ROOT / "examples" / "server_lm_eval.sh"
    done = subprocess.run(
        [str(shutil.which("bash")), str(script)],
        env={"PATH": ""}, capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    said = "this example needs lm-eval; run: pip install 'lm-eval[api]'\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("a 1.25 b\n", "a  1.31 b\n", True),
        ("a 1.25 b\n", "a 1.45 b\n", False),
        ("-0.0000\n", "0.0100\n", True),
        ("7 tokens\n", "8 tokens\n", False),
        ("took … s\n", "took 0.31 s\n", True),
        ("took … s\n", "took 0.31\ns\n", False),
        ("first\n…\nlast\n", "first\nsecond\nthird\nlast\n", True),
        ("first\n…\nlast\n", "first\nsecond\n", False),
        ("first\n", "first\nsecond\n", False),
    ],
)
def test_output_agrees_but_for_rounding_and_dots(
    executed: ModuleType, expected: str, got: str, same: bool
):
    assert executed.agrees(expected, got) is same


def test_the_examples_of_a_page_run_in_one_folder(executed: ModuleType):
    page = "```console run\n$ echo 1.5 > f; echo old\nold\n$ cat f\n1.5\n```\n"
    assert executed.difference(page) == ""
    program = "```python run\nprint(open('f').read())\n```\n\n```text\n1.5\n…\n```\n"
    assert executed.difference(page + program) == ""
    assert executed.checked(page.replace("\nold", "\nnew")) == page
    example = "print('a\\n\\nb')\n\n# With the embedded model this prints:\n# a\n#\n# b\n"
    assert executed.difference(example) == ""
    assert executed.checked(example.replace("# b", "# c")) == example


def test_every_recipe_of_a_result_is_there():
    named = {
        recipe
        for page in (ROOT / "docs" / "results").glob("*.md")
        for recipe in re.findall(r"--recipe (\S+\.toml)", page.read_text("utf-8"))
    }
    assert named and not [recipe for recipe in named if not (ROOT / recipe).is_file()]
