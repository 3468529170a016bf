"""The package as a whole: the law of imports, the public names, what an import loads."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from command_line import loaded
from surroundings import PACKAGE, ROOT

import tgr_local
from tgr_local.commands.cli import LABORATORY as COMMANDS
from tgr_local.commands.cli import build_parser
from tgr_local.engine import LLAMA_CPP_PYTHON
from tgr_local.methods import HOMES, METHODS

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
# Each row may import the rows above it; a folder or module may import nothing else in its row, and
# nothing of the laboratory.
LAYERS = [
    {"system"},
    {"options"},
    {"engine"},
    {"search"},
    {"methods"},
    {"generation"},
    {"console"},
    {"apis"},
    {"chat", "code", "server"},
    {"commands"},
    {"__main__"},
]
# … of the laboratory, which also imports the rows above the front ends.
LABORATORY = [{"lab.methods"}, {"lab.bench", "lab.eval"}]
# Parts that use less than their folder does: they import themselves and these folders.
PLAIN = "command_table dialog endings growing input_line markdown pastes region text_input wrap"
PARTS: list[tuple[list[str], set[str]]] = [
    (["generation.schemas"], {"system"}),
    (["system.answers", "system.think_tags"], set()),
    (["lab.methods"], {"system", "options", "engine", "search", "methods"}),
    ([f"console.{name}" for name in PLAIN.split()], {"system"}),
]
PURE = {
    "system.answers",
    "system.think_tags",
    "search.geometry",
    "search.scoring",
    "options.config",
    "options.fields",
    "options.resolve",
    "system.errors",
    "system.sanitize",
}


def text_of(page: str) -> str:
    """A file of the repository; skips the test where it is not next to the tests."""
    path = ROOT / page
    if not path.exists():
        pytest.skip(f"{page} is not next to the tests")
    return path.read_text(encoding="utf-8")


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(name: str, *, types: bool = True) -> frozenset[str]:
    """Every module that a module imports anywhere, functions included, and what it imports for
    `types` alone; tgr_local's without its name."""
    found = set()
    tree = syntax(MODULES[name])
    if not types:
        tree.body = [n for n in tree.body if not ast.unparse(n).startswith("if TYPE_CHECKING:")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            module = node.module or ""
            within = {f"{module}.{alias.name}" for alias in node.names}
            known = {m for m in within if m.removeprefix("tgr_local.") in {*MODULES, "_engine"}}
            found |= known or {module}
    return frozenset(module.removeprefix("tgr_local.") for module in found)


def folder(name: str) -> str:
    return ".".join(name.split(".")[: 2 if name.startswith("lab.") else 1])


def above(name: str) -> set[str]:
    """The folders and modules that a module may import, besides its own folder."""
    rows = LAYERS
    if name.startswith("lab."):
        rows = [*LAYERS[: LAYERS.index({"apis"})], *LABORATORY]
    height = next(i for i, row in enumerate(rows) if folder(name) in row)
    return {one for row in rows[:height] for one in row}


def within(name: str, *, types: bool = True) -> frozenset[str]:
    """The modules of this package that a module imports; a name of a folder stands for its
    ``__init__``."""
    return imports(name, types=types) & set(MODULES) - {"__init__", "tgr_local"}


def test_imports_point_downwards():
    for name in set(MODULES) - {"__init__", "tgr_local", "lab"}:
        assert {folder(other) for other in within(name)} - {folder(name)} <= above(name), name


@pytest.mark.parametrize(("part", "allowed"), PARTS, ids=[part[0] for part, _ in PARTS])
def test_a_part_imports_less_than_its_folder(part: list[str], allowed: set[str]):
    inside = {name for name in MODULES for one in part if f"{name}.".startswith(f"{one}.")}
    assert len(inside) >= len(part)
    found = {other for name in inside for other in within(name)} - inside
    assert {folder(other) for other in found} <= allowed


def test_the_layers_below_generation_import_neither_search_nor_methods():
    below = {one for row in LAYERS[LAYERS.index({"generation"}) + 1 :] for one in row}
    for name in MODULES:
        if folder(name) in below:
            assert not {"search", "methods"} & {folder(other) for other in within(name)}, name


def test_few_layers_import_each_other():
    rooms = {one for row in LAYERS for one in row} - {"__main__"}
    pairs = {(folder(name), folder(other)) for name in MODULES for other in within(name)}
    assert len({(one, other) for one, other in pairs if one != other and one in rooms}) <= 44


def test_a_method_is_understood_with_few_modules():
    known, new = set(), {"methods.markov"}
    while new:
        known |= new
        new = {other for name in new for other in within(name, types=False)} - known
    assert "search.trajectory" in known and len(known) <= 25


def test_a_stage_of_the_code_assistant_imports_those_above_it():
    """In the list of its folders; only the modules below the list import all of them."""
    listed = ast.get_docstring(syntax(MODULES["code"])) or ""
    *stages, last = re.findall(r"^ +(\w+)/ ", listed, re.MULTILINE)
    assert last == "acp" and len(stages) == 5
    for name in MODULES:
        used = {other.split(".")[1] for other in within(name) if other.startswith("code.")}
        own = f"{name}..".split(".")[1]
        if name.startswith("code.") and own in stages:
            assert used <= {*stages[: stages.index(own)], own}, name
        elif not name.startswith("code.acp") and name != "commands.cli":
            assert last not in used, name


def test_no_module_needs_itself():
    """No circle of imports, those inside functions included."""
    needs = {name: within(name) - {name} for name in MODULES}
    while free := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in free}
    assert not needs


def test_every_folder_and_module_is_in_one_layer():
    known = [name for names in [*LAYERS, *LABORATORY] for name in names]
    inside = {folder(name) for name in MODULES} - {"__init__", "tgr_local", "lab"}
    assert sorted(known) == sorted(inside)


def test_the_product_loads_nothing_of_the_laboratory():
    parts = ("commands.cli", "server.app", "chat.terminal", "code.command", "__main__")
    used = [f"tgr_local.{part}" for part in parts]
    found = loaded(
        f"import {', '.join(used)}; tgr_local.commands.cli.build_parser()\n"
        "from tgr_local.methods import METHODS, get; list(METHODS), get('tgr-think')"
    )
    assert found >= set(used)
    assert [name for name in found if name.startswith("tgr_local.lab")] == []


def test_commands_of_the_laboratory_are_complete_when_they_are_used():
    parser = build_parser()
    options = parser.all_options()
    # the folders that no other imports are commands
    assert {f"lab.{folder}" for folder, _ in COMMANDS.values()} == set().union(*LABORATORY[1:])
    for name in COMMANDS:
        command = parser.commands[name]
        assert "--help" in command.format_help() and not command.commands
        command.complete().complete()
        assert command.commands and command.all_options()
    # a settings file may set them before the laboratory is loaded
    assert parser.all_options() == options


def test_a_table_has_every_method():
    """Each is loaded under its own name, and no other module has one."""
    homes = {METHODS[name].name: home for name, home in HOMES.items()}
    assert homes == HOMES and list(METHODS) == list(HOMES)
    of_methods = {name for name in MODULES if name.startswith(("methods.", "lab.methods."))}
    texts = {name: MODULES[name].read_text(encoding="utf-8") for name in of_methods}
    assert sorted(HOMES.values()) == sorted(n for n in texts if "\nMETHOD = " in texts[n])


def test_the_guide_for_contributors_has_the_same_layers():
    table = text_of("CONTRIBUTING.md").partition("| layer |")[2].partition("\n\n")[0]
    rows = [set(re.findall(r"`([\w.]+)`", row.split("|")[1])) for row in table.splitlines()[2:]]
    assert rows == [*LAYERS, *LABORATORY]


def test_the_picture_of_the_architecture_is_true():
    picture = text_of("docs/architecture.md").partition("```text\n")[2].partition("```")[0]
    every = {name for names in [*LAYERS, *LABORATORY] for name in names}
    rows = [set(re.findall(r"[\w.]+", line)) & every for line in picture.splitlines()]
    height = {name: i for i, row in enumerate(rows) for name in row}
    assert sum(map(len, rows)) == len(height) == len(every)
    for name in set(MODULES) - {"__init__", "tgr_local", "lab"}:
        for other in {folder(other) for other in within(name)} - {folder(name)}:
            assert height[other] < height[folder(name)], f"{name} → {other}"


def test_only_the_engine_folder_imports_the_extension():
    assert {folder(name) for name in MODULES if "_engine" in imports(name, types=True)} == {
        "engine"
    }
    for name, path in MODULES.items():
        if folder(name) != "engine":
            assert not re.search(r"\._native\b", path.read_text(encoding="utf-8")), name


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_modules_import_only_numpy(name: str):
    foreign = {module.partition(".")[0] for module in imports(name, types=True) - set(MODULES)}
    assert foreign <= set(sys.stdlib_module_names) | {"numpy", "__future__"}
    assert not foreign & {"time", "threading", "os", "subprocess", "pathlib", "random"}


def test_every_public_name_is_there():
    assert len(tgr_local.__all__) == len(set(tgr_local.__all__)) < 25
    for name in tgr_local.__all__:
        assert getattr(tgr_local, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tgr_local.nothing  # noqa: B018
    # a module of the same name would hide a public function once it is imported
    assert not set(tgr_local.__all__) & {name.partition(".")[0] for name in MODULES}


def test_public_names_are_the_ones_that_type_checkers_see():
    tree = syntax(PACKAGE / "__init__.py")
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tgr_local.")
        for alias in node.names
    }
    assert seen == {*tgr_local.__all__, "__version__"}


OTHERS = {"llama_cpp", "gguf", "matplotlib", "pydantic", "fastapi"}
HEAVY = OTHERS | {"rich", "prompt_toolkit"}
INSTANT = HEAVY | {"numpy", "tomllib", "tgr_local.engine", "tgr_local.generation"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from tgr_local import SearchConfig", HEAVY | {"numpy"}),
        ("from tgr_local import generate, Engine", HEAVY),
    ],
)
def test_importing_loads_nothing_heavy(statement: str, absent: set[str]):
    assert not loaded(statement) & absent


@pytest.mark.parametrize(
    ("commands", "absent"),
    [
        ([["--help"], ["chat", "--help"], ["--version"]], INSTANT),
        ([["run", "--max-tokens", "2", "hi"], ["chat"]], OTHERS),
    ],
)
def test_commands_load_what_they_use(commands: list[list[str]], absent: set[str]):
    modules = loaded(
        f"from tgr_local.commands.cli import main\nfor command in {commands}:\n"
        "    try: main(command)\n    except SystemExit: pass"
    )
    assert not modules & absent
    assert [name for name in modules if name.startswith("tgr_local.lab")] == []


def test_everything_can_be_imported():
    for name in set(MODULES) - {"__main__"}:
        importlib.import_module(f"tgr_local.{name}".removesuffix(".__init__"))


SCRIPTS = sorted((ROOT / "bench").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_bench_uses_names_that_are_there(script: Path):
    used = list(ast.walk(syntax(script)))
    modules = {}
    for node in used:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tgr_local"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                if inside.removeprefix("tgr_local.") in MODULES:
                    modules[alias.asname or alias.name] = importlib.import_module(inside)
                else:
                    assert hasattr(module, alias.name), inside
    for node in used:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of = modules.get(node.value.id)
            assert of is None or hasattr(of, node.attr), f"{node.value.id}.{node.attr}"


def test_a_page_names_every_script_of_bench():
    elsewhere = ("csrc/README.md", "examples/desktop/README.md", "models/code/MODEL_CARD.md")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *map(ROOT.joinpath, elsewhere)]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    named = {name for text in texts for name in re.findall(r"bench/(\w+\.py)", text)}
    scripts = {path.name for path in SCRIPTS if "__main__" in path.read_text(encoding="utf-8")}
    assert scripts <= named <= {path.name for path in SCRIPTS}


def test_the_pinned_version_is_the_same_everywhere():
    for file, pin in (
        ("pyproject.toml", r"llama-cpp-python==([\d.]+)"),
        ("CMakeLists.txt", r"LLAMA_CPP_PYTHON_VERSION ([\d.]+)\)"),
        ("csrc/fetch_llama_cpp.py", r'^SHA256 = \{"([\d.]+)": "[0-9a-f]{64}"\}$'),
    ):
        assert re.findall(pin, text_of(file), re.MULTILINE) == [LLAMA_CPP_PYTHON]


def test_the_version_is_the_same_everywhere():
    assert f'\nversion = "{tgr_local.__version__}"\n' in text_of("pyproject.toml")


NOT_LISTED = {".pyc", ".so", ".pyd", ".gguf", ".typed"}


def tree(page: str, first: str) -> list[str]:
    """The paths in a page's tree whose first line begins with `first`; two spaces lead one level
    down."""
    block = re.search(rf"```text\n({first} .*?)```", text_of(page), re.DOTALL)
    assert block
    folders: list[str] = []
    paths = []
    for line in block[1].splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        folders[level:] = [line.split()[0]]
        paths.append("".join(folders))
    return paths


def files_below(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*.*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in files if path.suffix not in NOT_LISTED]


def test_the_readme_lists_every_folder_of_the_package_and_the_engine():
    listed = tree("README.md", "csrc/")
    assert [path for path in listed if not (ROOT / path).is_dir()] == []
    folders = {
        f"{top}/{path.rpartition('/')[0]}/".replace("//", "/")
        for top in ("csrc", "tgr_local")
        for path in files_below(ROOT / top)
    }
    inside = [path for path in listed if path.startswith(("csrc/", "tgr_local/"))]
    assert sorted(inside) == sorted(folders)
    # a folder stands below those that it imports
    layers = [path.split("/")[1] for path in inside if path.count("/") == 2 and path[0] == "t"]
    rows = [*LAYERS, {"lab"}]
    heights = [height for layer in layers for height, row in enumerate(rows) if layer in row]
    assert len(heights) == len(layers) and heights == sorted(heights)


def test_a_page_lists_every_file_of_the_engine():
    files = {file for file in files_below(ROOT / "csrc") if file != "README.md"}
    folders = {file.rpartition("/")[0] + "/" for file in files if "/" in file}
    assert sorted(tree("csrc/README.md", "base/")) == sorted(files | folders)


def test_a_room_of_the_engine_includes_only_what_stands_above_it():
    listed = tree("csrc/README.md", "base/")
    rooms = [path.partition("/")[0] for path in listed]  # of each file; its name at the top
    wrong = []
    for path in listed:
        if path.endswith((".h", ".cpp")) and not path.startswith("chat/"):
            text = (ROOT / "csrc" / path).read_text(encoding="utf-8")
            own = path.partition("/")[0]
            for included in re.findall(r'^#include "([\w/.]+)"', text, re.MULTILINE):
                room = included.partition("/")[0]
                if included in listed and rooms.index(room) > rooms.index(own):
                    wrong.append(f"{path} includes {included}")
                elif included not in listed and (ROOT / "csrc" / path).with_name(included).exists():
                    wrong.append(f"{path} names no room of {included}")
    assert wrong == []


LISTS = {path: path.parent for path in sorted(PACKAGE.rglob("__init__.py"))}
LISTS[PACKAGE / "server" / "page_files.py"] = PACKAGE / "server" / "page"


@pytest.mark.parametrize("module", LISTS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_docstring_that_lists_the_files_of_its_folder_lists_them_all(module: Path):
    """A line such as "report.py  the report" makes a list; `table_*.py` stands for several."""
    docstring = ast.get_docstring(syntax(module)) or ""
    listed = re.findall(r"[\w*]+\.(?:pyi?|csv|toml|jinja|js|html|css|svg)\b", docstring)
    if not listed:
        # which has folders alone, and whose tasks are listed by `tgr-local eval list`
        assert module.parent in (PACKAGE / "lab", PACKAGE / "lab" / "eval" / "tasks")
        return
    files = [file for file in files_below(LISTS[module]) if "/" not in file]
    unlisted = [file for file in files if not any(fnmatch(file, name) for name in listed)]
    assert sorted(unlisted) in ([], ["__init__.py"])
    assert [name for name in listed if not any(LISTS[module].rglob(name))] == []


FRAGMENT = re.compile(
    r"(Of|As|With|Without|For|In|Where|When|While|If|By|On|To|The same|Same|From|And|Also|That|"
    r"Which|What|Or|At|After|Before|Those|Not|Else|Under|Until|Among|Beside|It|Is|Its|Like)\b"
)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields those of a module, its classes, functions and documented names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        body = getattr(node, "body", None)
        for name, text in itertools.pairwise(body if isinstance(body, list) else []):
            if isinstance(name, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                yield str(getattr(text.value, "value", ""))


def test_names_say_what_they_hold_and_docstrings_stand_alone():
    """A docstring begins with a verb or with a noun phrase, a name is bound to one kind of thing,
    and a class has its name alone: an underscore before it makes no other name of it."""
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        tree, bound = syntax(path), set()
        assert [text for text in docstrings(tree) if FRAGMENT.match(text)] == [], name
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(name)
        assert bound & {"one", "found", "made", "it", "thing"} == set(), name
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
