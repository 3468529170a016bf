"""The promises of SECURITY.md: tests are named for each, and those without another place are here.

Who changes a sentence of the page changes its line here: its first words, and its tests.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from fake_user import make_session
from starlette.responses import Response
from starlette.testclient import TestClient
from surroundings import ROOT

from tgr_local.chat import terminal
from tgr_local.chat.session import Start
from tgr_local.commands import hub
from tgr_local.commands.cli import main
from tgr_local.console.input_line import HistoryFile
from tgr_local.console.pastes import Pastes
from tgr_local.lab.eval import ray_nodes
from tgr_local.options.config import ChatConfig, ServerConfig
from tgr_local.server import auth

HELD: list[tuple[str, str]] = [
    # what is done
    ("Its header is checked", "bad_files::a_damaged_file_is_refused"),
    ("What is known to make llama.cpp abort", "bad_files::foreign_models_are_refused"),
    ("read by Python code", "schemas::work_has_a_bound"),
    ("No regular expression", "schemas::work_has_a_bound"),
    ("The work is counted", "schemas::work_has_a_bound server_limits::a_greedy_request_is_refused"),
    ("Converted by llama.cpp's", "confined::a_template_of_a_model_is_confined"),
    ("It runs in a process of its own, with 2 s", "confined::a_template_of_a_model_is_confined "
     "confined::a_worker_that_does_not_read_is_given_up"),
    ("Tokenized as text", "prompt_text::no_message_has_a_control_token "
     "prompt_text::a_variable_of_the_template_has_no_control_token"),
    ("A prompt without them", "prompt_text::other_prompts_have_the_tokens_they_had"),
    ("Matched in bounded work", "server_limits::a_greedy_request_is_refused "
     "server_limits::a_grammar_that_turns_out_too_costly_is_the_requests_error"),
    ("Control characters are replaced", "sanitize::a_line_is_one_line_of_printable_characters "
     "markdown::no_control_character_reaches_the_terminal"),
    ("Made to HTML", "render::a_hostile_reply_does_nothing"),
    ("The page's policy", "render::the_second_wall_holds_alone "
     "render::the_page_needs_no_key_and_loads_nothing_from_elsewhere"),
    ("Nothing runs without that flag", "eval_grading::programs_run_only_when_allowed"),
    ("With it, it runs in bubblewrap", "sandbox::there_is_no_network "
     "sandbox::other_processes_cannot_be_seen_or_killed sandbox::files_outside_cannot_be_read "
     "sandbox::what_does_not_end_is_stopped sandbox::memory_and_files_are_bounded "
     "sandbox::the_number_of_processes_is_bounded"),
    ("What sockets and pipes may hold", "sandbox::memory_in_sockets_is_bounded"),
    ("Of sockets there are only", "sandbox::networks_beside_its_own_are_refused"),
    ("Where that does not work", "sandbox::no_backend_replaces_another"),
    ("Only the command line names", "checked::no_settings_file_names_a_check"),
    ("The answer is on its stdin", "checked::a_command_gets_the_answer_on_stdin"),
    ("Time and output are limited", "checked::where_no_text_passes_the_best_one_is_printed "
     "checked::a_check_ends_with_the_program"),
    ("Invisible characters in it", "code_table::what_is_not_seen_in_an_edit_is_said"),
    ("They are named before", "code_table::what_is_not_seen_in_an_edit_is_said"),
    ("Your tests run on a copy", "code_judge::nothing_outside_can_be_changed_or_read"),
    ("Your folder changes when you accept",
     "code_journal::killed_at_any_step_it_is_before_or_after "
     "code_session::without_a_terminal_and_without_yes_nothing_is_changed "
     "code_project::paths_that_are_none_are_refused"),
    ("No setting and no object", "code_repository::no_program_of_a_folder_runs"),
    ("Git lists the files", "code_repository::what_git_lists_is_as_ever"),
    ("Places outside of the folder",
     "code_repository::an_index_that_names_places_outside_of_the_folder_lists_none_of_them"),
    ("Links that lead out", "code_project::links_are_followed_inside_only "
     "code_project::lists_are_bounded code_project::hostile_patterns_do_not_keep_it"),
    ("Programs are sought", "code_repository::no_program_is_sought_in_the_folder"),
    ("A folder that the project's files name",
     "code_repository::a_setting_that_names_a_folder_shows_nothing "
     "code_judge::an_environment_cannot_name_a_folder_to_read"),
    ("The repository of a linked worktree", "code_repository::a_worktree_shows_its_repository "
     "code_repository::a_submodule_shows_its_repository "
     "code_repository::a_file_that_names_another_repository_shows_nothing"),
    ("Of the Python of a virtual", "code_judge::an_environment_shows_its_python_alone"),
    ("It listens on 127.0.0.1", "security_page::servers_listen_on_this_machine_alone"),
    ("Requests of foreign pages", "server::requests_of_foreign_pages_are_refused "
     "server::foreign_names_of_this_machine_are_refused "
     "server::what_foreign_pages_fetch_without_an_origin_is_refused"),
    ("Keys are compared", "security_page::every_key_is_compared_by_its_digest"),
    ("A key reuses only", "server_owners::a_key_cannot_guess_what_another_key_has_sent"),
    ("A request with two ends",
     "server_connections::a_request_whose_end_is_unclear_ends_the_connection"),
    ("Every body, wait and connection", "server_limits::a_body_of_a_million_lists_is_refused "
     "server_connections::a_body_that_stops_arriving_is_refused "
     "server_connections::a_reply_that_is_not_read_ends_the_connection"),
    ("The server listens on 127.0.0.1", "security_page::servers_listen_on_this_machine_alone"),
    ("One that hangs or is lost", "rpc::a_server_that_dies_ends_the_work_and_not_the_process "
     "rpc::a_server_that_hangs_counts_as_lost"),
    ("Header, sizes, types", "prefix_files::every_field_of_the_header_is_needed "
     "prefix_files::every_flipped_bit_is_noticed "
     "steering::a_control_vector_of_another_model_is_refused"),
    ("Nothing in them is code", "prefix_files::other_things_than_files_are_refused "
     "steering::a_bad_file_is_refused"),
    ("JSON lines", "trace::every_line_is_standard_json"),
    ("A damaged line", "trace::a_file_that_is_not_a_trace_is_refused_with_the_line "
     "chat_files::an_invalid_file_is_refused_with_the_line"),
    ("Control characters are not printed",
     "trace::control_characters_in_a_trace_file_are_not_printed"),
    ("LiveCodeBench's pickles", "eval_graders::livecodebench_runs_no_pickle"),
    ("Over TLS with", "security_page::what_others_measure_is_turned_off"),
    ("A file gets its name", "hub::a_file_with_a_wrong_sha256_is_deleted"),
    # the network
    ("tgr-local connects to nothing", "security_page::few_modules_can_connect"),
    ("Hugging Face", "hub::a_model_is_fetched_checked_and_found "
     "eval_tasks::a_failed_fetch_names_the_other_way"),
    ("a judge that you name", "eval_grading::a_judge_that_is_down_is_a_grader_that_failed"),
    ("the servers that you name", "rpc::without_layers_for_it_no_server_is_asked"),
    ("`serve`, `acp` and", "security_page::servers_listen_on_this_machine_alone"),
    ("There is no telemetry", "security_page::few_modules_can_connect "
     "security_page::what_others_measure_is_turned_off"),
    # what is written
    ("Conversations, the keys and values",
     "chat_files::every_turn_is_saved_and_the_latest_conversations_are_resumed"),
    ("They are readable by you alone", "prefix_files::only_the_owner_reads_it "
     "security_page::typed_lines_are_the_persons_alone"),
    ("`--no-save` keeps", "security_page::without_saving_a_chat_writes_nothing"),
    ("The server logs no prompts", "server_states::a_log_has_no_prompts_unless_it_is_asked_for"),
    ("Copies of a project", "code_copies::copies_are_removed"),
    ("Where the cache folder cannot be written",
     "code_copies::copies_lie_elsewhere_where_the_cache_folder_cannot_hold_them"),
    ("What is in memory", ""),  # of the system
]  # fmt: skip
"""The first words of a sentence, and the tests that hold it: tests/test_FILE.py::test_NAME."""


def promises() -> list[str]:
    """The sentences under "what is done", of the network, and of what is written."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\|$", page, re.MULTILINE)[1:]
    parts = [re.split(r"(?<!\\)\|", row)[2].strip() for row in rows]
    for heading in ("The network", "What is written"):
        text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        parts += [" ".join(part.split()) for part in re.split(r"\n\n|^- ", text, flags=re.M)]
    return [one for part in parts for one in re.split(r"(?<=\.)\s+(?=[A-Z`])", part) if one]


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / f"tests/test_{file}.py").read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_promise_has_tests():
    told = promises()
    for one in told:
        assert any(one.startswith(words) for words, _ in HELD), f"no tests are named for: {one}"
    for words, names in HELD:
        assert any(one.startswith(words) for one in told), f"no sentence begins with: {words}"
        for name in names.split():
            file, _, test = name.partition("::")
            assert f"test_{test}" in functions_of(file), name


def test_servers_listen_on_this_machine_alone(monkeypatch, capsys):
    assert ServerConfig().host == "127.0.0.1"
    serve = Mock()
    monkeypatch.setattr("tgr_local.engine.serve_devices", serve)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    assert main(["rpc-server", "--port", port]) == 1, "the double of the server ends at once"
    assert "warning" not in capsys.readouterr().err
    assert main(["rpc-server", "--port", port, "--host", "0.0.0.0"]) == 1
    assert f"warning: anybody who reaches 0.0.0.0:{port}" in capsys.readouterr().err
    assert [call.args[0] for call in serve.mock_calls] == [f"127.0.0.1:{port}", f"0.0.0.0:{port}"]


def test_every_key_is_compared_by_its_digest(monkeypatch):
    """Whichever is right, all are compared, and by what takes the same time for each."""
    compare = Mock(wraps=auth.hmac.compare_digest)
    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    guard = TestClient(auth.Auth(Response("fine"), ("first", "second", "third"), "127.0.0.1"))
    for key, status in (("first", 200), ("third", 200), ("firs", 401)):
        compare.reset_mock()
        headers = {"Host": "localhost", "X-Api-Key": key}
        assert guard.get("/props", headers=headers).status_code == status
        assert [len(text) for call in compare.mock_calls for text in call.args] == [32] * 12


CONNECTING = {"commands/hub.py", "engine/rpc.py", "lab/eval/ray_nodes.py",
              "lab/eval/tasks/writingbench.py"}  # fmt: skip
LISTENING = {"commands/rpc_server.py", "server/serve.py", "server/connection.py"}
NETWORKS = {
    *("aiohttp", "ftplib", "http", "httpx", "huggingface_hub", "ray", "requests", "smtplib"),
    *("socket", "socketserver", "ssl", "urllib3", "uvicorn", "websockets", "xmlrpc"),
}
CONNECTS = {"create_connection", "open_connection", "open_unix_connection", "urlopen"}


def reaches_a_network(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    roots = {name.partition(".")[0] for name in names}
    is_call = isinstance(node, ast.Attribute) and node.attr in CONNECTS
    return bool(roots & NETWORKS) or "urllib.request" in names or is_call


def test_few_modules_can_connect():
    package = ROOT / "tgr_local"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(map(reaches_a_network, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == CONNECTING | LISTENING


def test_what_others_measure_is_turned_off(monkeypatch):
    for name in ("HF_HUB_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    double: Any = ModuleType("huggingface_hub")
    for name in ("", ".errors", ".utils"):
        monkeypatch.setitem(sys.modules, f"huggingface_hub{name}", double)
    for name in ("", ".util", ".util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, f"ray{name}", double)
    assert hub.client() is double and os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert ray_nodes.import_ray() is double and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_typed_lines_are_the_persons_alone(tmp_path):
    path = tmp_path / "state" / "history"
    HistoryFile(path, Pastes()).store_string("secret")
    assert "secret" in path.read_text()
    assert path.stat().st_mode & 0o77 == path.parent.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("save", [True, False])
def test_without_saving_a_chat_writes_nothing(home: Path, monkeypatch, save: bool):
    conversation = make_session(monkeypatch).conversation
    conversation.chat_config = ChatConfig(save=save)
    typed = Mock(side_effect=["secret", "/bye", EOFError])
    monkeypatch.setattr(terminal.Terminal, "read_line", typed)
    assert terminal.run(conversation, Start()) == 0 and conversation.last.question == "secret"
    written = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert any(b"secret" in text for text in written) == save
