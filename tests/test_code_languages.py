"""Projects in other languages than Python: which tests are shown, what they import, and which
functions their failures reach."""

from __future__ import annotations

import pytest
from code_folders import needs_tree_sitter

from tgr_local.code.edits import FileText
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading import evidence, reach
from tgr_local.code.reading.context import Wish, make_context
from tgr_local.code.reading.evidence import Paths

JAVA = {
    "src/Row.java": "class Row {\n    int take(int n) { return n; }\n    int free() { return 0; }\n"
    "}\n",
    "src/Hall.java": "class Hall {\n    Row row;\n    int book(int n) { return row.take(n); }\n}\n",
    "src/Other.java": "class Other {\n    int x() { return 1; }\n}\n",
    "test/HallTest.java": """\
class HallTest {
    static void testRow() {
        check("row takes seats", 1,
              new Row().take(2));
    }

    static void testFree() {
        check("row has seats left", 2, new Row().free());
    }

    public static void main(String[] arguments) {
        testRow();
        testFree();
    }
}
""",
}  # fmt: skip
C = {
    "fields.h": "int count(const char *line);\nint size(const char *line);\n",
    "fields.c": '#include "fields.h"\n\nint count(const char *line)\n{\n    return 0;\n}\n\n'
    "int size(const char *line)\n{\n    return 0;\n}\n",
    "t/fields.c": '#include "fields.h"\n\nint main(void)\n{\n    ok(count("a,b") == 2,\n'
    '       "counts commas");\n    ok(size("a") == 1, "has a size");\n    return 0;\n}\n',
}
RUST = {
    "src/lib.rs": "pub mod order;\npub mod stock;\n",
    "src/order.rs": "pub enum Order { Add }\n",
    "src/stock.rs": "use crate::order::Order;\n\npub fn carry_out(order: Order) {}\n",
    "src/unused.rs": "pub fn nothing() {}\n",
    "tests/stock.rs": "use depot::stock::carry_out;\n\n#[test]\nfn adds_up() { carry_out(1); }\n",
}
GO = {
    "calc.go": "package calc\n\nfunc Add(a, b int) int { return a - b }\n",
    "more.go": "package calc\n\nfunc More() int { return 1 }\n",
    "calc_test.go": "package calc\n\nfunc TestAdd(t *testing.T) { Add(1, 2) }\n",
    "cmd/main.go": "package main\n",
}


def documents(files: dict[str, str]) -> dict[str, FileText]:
    return {path: FileText(path, text) for path, text in files.items()}


@pytest.mark.parametrize(
    ("files", "path", "imports"),
    [
        (JAVA, "test/HallTest.java", {"src/Row.java"}),
        (JAVA, "src/Hall.java", {"src/Row.java"}),
        (RUST, "tests/stock.rs", {"src/stock.rs", "src/lib.rs"}),
        (RUST, "src/stock.rs", {"src/order.rs"}),
        (RUST, "src/lib.rs", {"src/order.rs", "src/stock.rs"}),
        (GO, "calc_test.go", {"calc.go", "more.go"}),
        (C, "t/fields.c", {"fields.h", "fields.c"}),
    ],
)
def test_what_a_file_imports(files: dict[str, str], path: str, imports: set[str]):
    document = FileText(path, files[path])
    assert set(evidence.imported_files(document, Paths(list(files)))) == imports


def test_tests_by_their_folders():
    assert evidence.is_test("t/fields.c") and evidence.is_test("t/deep/a.pl")
    assert not evidence.is_test("src/t/a.c") and not evidence.is_test("t.c")


def shown(files: dict[str, str], output: str, failures: list[Failure]) -> dict[str, str]:
    """How each file is shown, and whether it may be changed."""
    wish = Wish("Make the failing tests pass.", output, failures=tuple(failures))
    context = make_context(list(files), documents(files).get, wish, 4000, len)
    return {s.path: "changeable" if s.changeable else " ".join(s.functions) for s in context.shown}


def test_a_name_that_stands_everywhere_is_none_of_a_check():
    test = FileText("t.c", 'ok(1, "total");\n' * 8)
    assert reach.checks([Failure("total")], [test]) == [("t.c", n) for n in range(1, 9)]
    assert reach.checks([Failure("total")], [test, FileText("u.c", "total")]) == []
    assert reach.checks([Failure("total", "t.c", 3)], [test]) == []
    assert reach.checks([Failure("sum")], [FileText("u.c", "sum")]) == []  # too short


@needs_tree_sitter
def test_a_check_that_is_known_by_its_name_alone_is_shown():
    found = shown(JAVA, "FAIL row takes seats: expected 1\n", [Failure("row takes seats")])
    assert found["test/HallTest.java"] == "HallTest.testRow"
    assert found["src/Row.java"] == "changeable"
    found = shown(C, "not ok 1 - counts commas\n", [Failure("group > counts commas (2)")])
    assert found["t/fields.c"] == "main" and found["fields.c"] == "changeable"


@pytest.mark.parametrize(
    "message",
    ["undefined reference to `total'", "[E0425]: cannot find function `sum` in this scope",
     "cannot find symbol", "undefined: More", "plan.at is not a function",
     "no method named `at` found for struct `Plan` in the current scope",
     "TS2339: Property 'at' does not exist on type 'Plan'."],
)  # fmt: skip
def test_names_that_tests_lack(message: str):
    assert evidence.lack_names([Failure("a", "tests/a.x", 1, message)])
    assert not evidence.lack_names([Failure("a", "src/a.x", 1, message)])
    assert not evidence.lack_names([Failure("a", "tests/a.x", 1, message, 3, "src/a.x")])
    assert not evidence.lack_names([Failure("a", "tests/a.x", 1, "1 !== 2")])


@needs_tree_sitter
def test_what_failing_checks_reach():
    for name, lines in (("row takes seats", (3, 3)), ("row has seats left", (2, 2))):
        texts = documents(JAVA)
        away = reach.out_of_reach(
            [Failure(name)], [texts["test/HallTest.java"]], [texts["src/Row.java"]]
        )
        assert away == {"src/Row.java": (lines,)}
    texts = documents(C)
    for failure in (Failure("counts commas"), Failure("x", "t/fields.c", 6)):
        away = reach.out_of_reach([failure], [texts["t/fields.c"]], [texts["fields.c"]])
        assert away == {"fields.c": ((8, 11),)}
    stop = Failure("t/fields.c", "t/fields.c", 7, "Assertion failed", 7, "t/fields.c")
    away = reach.out_of_reach([stop], [texts["t/fields.c"]], [texts["fields.c"]])
    assert away == {"fields.c": ((3, 6),)}
    broken = Failure("t/fields.c", "t/fields.c", 1)
    assert reach.out_of_reach([broken], [texts["t/fields.c"]], [texts["fields.c"]]) == {}
