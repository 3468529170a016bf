"""Runs the cases of llama.cpp's tests/test-chat.cpp through this project: how many are equal?

    python bench/chat_cases.py [--source LLAMA_CPP] [--template NAME] [--show]

The cases are inputs of parsers, with the message that each must give. They are C++ in the source
that the build has fetched: this compiles them with another `test_peg_parser`, which writes each
case as a line of JSON instead of testing it. Every case then goes the way of a request: the
template is applied in the confined process, and a `ReplyReader` gets the text in pieces as a
stream, and at once. Prints for every template how many cases give the expected text, thinking and
calls; "calls" counts those that have tools alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tgr_local.apis import calls
from tgr_local.apis.events import ApiEvent, CallArguments, CallBegun, NewText
from tgr_local.generation.request import ReplyFormat
from tgr_local.system import confined

ROOT = Path(__file__).resolve().parents[1]
DUMP = r"""
static void test_peg_parser(common_chat_templates * tmpls,
                            const std::function<void(peg_test_case &)> & init, bool) {
    peg_test_case tc;
    init(tc);
    if (tc.params.messages.empty()) {
        tc.params.messages = { message_user };
    }
    json calls = json::array();
    for (const auto & call : tc.expect.tool_calls) {
        calls.push_back({ { "id", call.id }, { "name", call.name },
                          { "arguments", call.arguments } });
    }
    const char * choices[] = { "auto", "required", "none" };
    json request = {
        { "messages", common_chat_msgs_to_json_oaicompat(tc.params.messages) },
        { "tools", common_chat_tools_to_json_oaicompat(tc.params.tools) },
        { "tool_choice", choices[tc.params.tool_choice] },
        { "parallel", tc.params.parallel_tool_calls },
        { "thinking", tc.params.enable_thinking },
        { "json_schema", tc.params.json_schema },
        { "reasoning_format", common_reasoning_format_name(tc.params.reasoning_format) },
    };
    json line = {
        { "name", g_template_filter },
        { "template", common_chat_templates_source(tmpls) },
        { "request", request },
        { "continues", tc.params.continue_final_message != COMMON_CHAT_CONTINUATION_NONE },
        { "input", tc.input },
        { "partial", tc.is_partial },
        { "content", tc.expect.render_content() },
        { "thinking", tc.expect.reasoning_content },
        { "calls", calls },
    };
    std::cout << line.dump_safe() << "\n";
}
"""
MAIN = """
// what the tests that were left out would call
void common_log_flush(struct common_log *) {}
std::string string_strip(const std::string & text) {
    return text;
}
int main() {
    test_template_output_peg_parsers(false);
    return 0;
}
"""


def source_of_cases(text: str) -> str:
    """test-chat.cpp without what needs the server and the models, and with a main of our own."""

    def without(text: str, begin: str, end: str) -> str:
        at = text.index(begin)
        return text[:at] + text[text.index(end, at) :]

    text = re.sub(r'#include "\.\./.*\n', "", text)
    text = without(
        text,
        "static std::unique_ptr<llama_grammar> build_grammar",
        "static std::string renormalize_json",
    )
    text = without(text, "static void test_peg_parser(", "// Fluent builder for PEG parser tests")
    text = text.replace("// Fluent builder for PEG parser tests", DUMP, 1)
    text = text.replace(
        "        // Check template filter\n",
        "        g_template_filter = tester_.template_path();\n        if (false) {\n",
        1,
    )
    text = text.replace("if (!g_template_filter.empty()) {", "", 1)
    text = without(
        text, "static void test_msgs_oaicompat_json_conversion()", "static void test_lfm2_parser("
    )
    text = text[: text.index("static void test_template_generation_prompt()")]
    return "#include <iostream>\n#include <regex>\n" + text + MAIN


def cases_of(source: Path) -> list[dict[str, Any]]:
    """Compiles the cases with the library that the build made, and reads them."""
    (library,) = sorted(ROOT.glob("build/*/libchat.a"))[:1] or [None]
    if library is None:
        sys.exit("there is no build/*/libchat.a; build the project here first")
    headers = [source / name for name in ("common", "vendor", "include")]
    headers += [library.parent / name for name in ("ggml-include", "llama.cpp-plain/ggml/include")]
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "cases.cpp"
        code.write_text(
            source_of_cases((source / "tests" / "test-chat.cpp").read_text(encoding="utf-8"))
        )
        program = Path(folder) / "cases"
        command = ["g++", "-std=c++17", "-O0", "-w", *(f"-I{path}" for path in headers)]
        subprocess.run([*command, str(code), str(library), "-o", str(program)], check=True)
        ended = subprocess.run([program], cwd=source, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"the cases end with {ended.returncode}: {ended.stderr[-500:]}")
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def read(form: ReplyFormat, case: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    """The message in the pieces of a reply."""
    reader = calls.ReplyReader(form, 0, streams=len(pieces) > 1, least=0.0, share=0.0)
    events: list[ApiEvent] = []
    for piece in pieces:
        events += reader.feed(piece)
    events += reader.end(complete=not case["partial"])
    message: dict[str, Any] = {"content": "", "thinking": "", "calls": []}
    for event in events:
        if isinstance(event, NewText):
            message["thinking" if event.kind == "thinking" else "content"] += event.text
        elif isinstance(event, CallBegun):
            message["calls"].append({"id": event.id, "name": event.name, "arguments": ""})
        elif isinstance(event, CallArguments):
            message["calls"][event.call]["arguments"] += event.text
    return message


def plain(message: dict[str, Any], *, partial: bool) -> dict[str, Any]:
    """A message as llama.cpp's test compares it, but for ids: a stream names a call before the
    model has written one."""

    def arguments(text: str) -> Any:
        try:
            return json.loads(text or ("" if partial else "{}"))
        except ValueError:
            return None  # not complete

    calls = [(call["name"], arguments(call["arguments"])) for call in message["calls"]]
    return {
        "content": message["content"].strip(),
        "thinking": message["thinking"].strip(),
        "calls": calls,
    }


def failure(case: dict[str, Any]) -> str:
    """What differs; empty = nothing."""
    request = {key: value for key, value in case["request"].items() if value is not None}
    try:
        applied = confined.apply_template(case["template"], "", "", request)
        form = ReplyFormat(applied["generation_prompt"], applied["parser"], applied["format"])
        wanted = plain(case, partial=case["partial"])
        for pieces in ([case["input"]], [*case["input"], ""]):
            actual = plain(read(form, case, pieces), partial=case["partial"])
            if actual != wanted:
                way = "whole" if len(pieces) == 1 else "streamed"
                return f"{way}: {actual} instead of {wanted}"
    except confined.ConfinedError as error:
        return f"error: {error}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="a llama.cpp tree; else that of the build")
    parser.add_argument("--template", default="", help="only templates with this in their name")
    parser.add_argument("--show", action="store_true", help="print what differs")
    args = parser.parse_args()
    source = args.source or next(iter(sorted(ROOT.glob("build/*/llama.cpp"))), None)
    if source is None:
        sys.exit("name llama.cpp's source with --source, or build the project here")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    skipped = 0
    for case in cases_of(source):
        name = Path(case["name"]).stem
        if args.template not in name:
            continue
        if case["continues"]:  # a message that the client began: no request of ours has one
            skipped += 1
            continue
        why = failure(case)
        has_tools = bool(case["request"]["tools"])
        for key in (name, "all"):
            counts[key]["cases"] += 1
            counts[key]["equal"] += not why
            counts[key]["calls"] += has_tools
            counts[key]["calls equal"] += has_tools and not why
        if why and args.show:
            print(f"{name}: {case['input']!r:.200}\n    {why}")
    for name, count in sorted(counts.items()):
        equal = f"{count['equal']:4}/{count['cases']:<4}"
        print(f"{name:60} {equal} calls {count['calls equal']:4}/{count['calls']}")
    print(f"{skipped} cases that continue a message of the assistant are left out")


if __name__ == "__main__":
    main()
