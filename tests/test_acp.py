"""`tgr-local acp`: a client made with the protocol's own SDK drives the agent, whose model is the
double of the coder, in this process, or in one of its own where the process is what matters."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import fake_coder
import pytest
from command_line import run
from fake_coder import CALC, HALF, RIGHT, WAIT, Coder, answer, installed
from surroundings import HANG, environment

acp = pytest.importorskip("acp", reason="agent-client-protocol is not installed")
from acp import RequestError, schema, text_block  # noqa: E402

from tgr_local.code.acp import blocks, server  # noqa: E402
from tgr_local.code.acp.wire import MAX_REQUESTS, Wire  # noqa: E402
from tgr_local.code.workplace import Workplace  # noqa: E402
from tgr_local.engine import Cancel, installation  # noqa: E402
from tgr_local.options.config import CodeConfig  # noqa: E402
from tgr_local.system.errors import CancelledError, ModelError  # noqa: E402
from tgr_local.system.sandbox import commands  # noqa: E402

WRONG = CALC.replace("a - b", "a * b")
ARGUMENTS = ["acp", "--model", "coder.gguf", "--no-constrained", "-k", "2", "--test", "pytest"]
REPAIR = [text_block("Repair it.")]


class Client:
    """A client that remembers everything, and answers questions from a list."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.heard = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.heard.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self.heard.set()
        answer = self.answers.pop(0)
        if answer == "error":
            raise RequestError(-32000, "no window is open")
        if answer == "never":
            await asyncio.sleep(HANG)
        if answer == "no outcome":
            return {"outcome": "cancelled"}  # type: ignore[return-value]
        outcome: Any = schema.DeniedOutcome(outcome="cancelled")
        if answer != "cancelled":
            outcome = schema.AllowedOutcome(outcome="selected", option_id=answer)
        return schema.RequestPermissionResponse(outcome=outcome)

    def of(self, kind: str) -> list[Any]:
        return [one for one in self.updates if one.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one.content.text for one in self.of(kind))

    def calls(self) -> dict[str, dict[str, Any]]:
        """Each tool call as it is at the end, by its title."""
        found: dict[str, dict[str, Any]] = {}
        for one in (*self.of("tool_call"), *self.of("tool_call_update")):
            about = one.model_dump(exclude_none=True)
            found.setdefault(one.tool_call_id, {}).update(about)
        return {one["title"]: one for one in found.values()}

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                self.heard.clear()
                await self.heard.wait()

        await asyncio.wait_for(wait(), HANG)


class Driven:
    """An agent with its client."""

    def __init__(self, agent: Any, process: Any, client: Client, folder: Path) -> None:
        self.agent, self.process, self.client, self.folder = agent, process, client, folder
        self.session, self.about = "", None

    async def open(self, *servers: Any) -> Any:
        """Another session."""
        return await self.agent.new_session(cwd=str(self.folder), mcp_servers=list(servers))

    async def prompt(self, *blocks: Any) -> str:
        text = [text_block(one) if isinstance(one, str) else one for one in blocks]
        found = await self.agent.prompt(session_id=self.session, prompt=text)
        return str(found.stop_reason)

    def begin(self, *blocks: Any) -> asyncio.Task[str]:
        return asyncio.create_task(self.prompt(*blocks))

    @property
    def calc(self) -> str:
        return (self.folder / "calc.py").read_text()


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text(CALC)
    return folder


@contextlib.asynccontextmanager
async def driven(
    folder: Path,
    rounds: list[list[str]],
    answers: tuple[str, ...] = (),
    *more: str,
    before: Callable[[pytest.MonkeyPatch, Coder], None] | None = None,
) -> AsyncIterator[Driven]:
    """An agent in this process whose model answers with `rounds`, with an open session, and a
    client that answers with `answers`; `before` runs when the double is installed."""
    client, coder, made = Client(list(answers)), Coder(*rounds), []
    with pytest.MonkeyPatch.context() as patch:
        fake_coder.install(patch.setattr, coder)
        if before:
            before(patch, coder)
        patch.setattr(server, "run", lambda settings: made.append(settings) or 0)
        assert run(*ARGUMENTS, *more) == 0
        (source, asked), (answered, sink) = (
            (os.fdopen(end, "rb"), os.fdopen(other, "wb")) for end, other in (os.pipe(), os.pipe())
        )
        serving = asyncio.create_task(server.serve(made[0], Wire(source, sink)))
        agent = acp.connect_to_agent(client, Wire(answered, asked))
        try:
            yield await opened(agent, None, client, folder)
        finally:
            await agent.close()
            asked.close()
            await asyncio.wait_for(serving, HANG)
            for end in (sink, source, answered):
                end.close()


@contextlib.asynccontextmanager
async def started(
    folder: Path, rounds: list[list[str]], answers: tuple[str, ...] = ()
) -> AsyncIterator[Driven]:
    """The same in a process of its own."""
    client = Client(list(answers))
    async with acp.spawn_agent_process(
        client, sys.executable, "-c", program(rounds), env=environment(),
        transport_kwargs={"stderr": None},
    ) as (agent, process):  # fmt: skip
        yield await opened(agent, process, client, folder)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), HANG) == 0


async def opened(*of: Any) -> Driven:
    it = Driven(*of)
    it.about = await it.agent.initialize(protocol_version=1)
    it.session = (await it.open()).session_id
    return it


def program(rounds: list[list[str]]) -> str:
    start = f"{installed(*rounds)}; import sys; from tgr_local.commands.cli import main; "
    return f"{start}sys.exit(main({ARGUMENTS!r}))"


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine as a function that runs it, and fails where it hangs."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), HANG))

    return run


# ---- prompts ----


@asynchronous
async def test_an_edit_is_shown_allowed_written_and_undone(project: Path):
    async with started(project, [[answer(WRONG), answer(RIGHT)]], ("allow",)) as it:
        assert it.about.protocol_version == 1 and not it.about.agent_capabilities.load_session
        assert it.about.agent_capabilities.prompt_capabilities.embedded_context
        assert await it.prompt("Repair it.") == "end_turn"
        assert it.calc == RIGHT
        offered = it.client.of("available_commands_update")[0].available_commands
        assert {"test", "undo", "diff", "add", "drop"} <= {one.name for one in offered}
        ((tool_call, options),) = it.client.asked
        assert [one.kind for one in options] == ["allow_once", "reject_once"]
        (diff,) = tool_call.content
        assert (diff.path, diff.old_text, diff.new_text) == (
            str(project / "calc.py"), CALC, RIGHT
        )  # fmt: skip
        assert await it.prompt("/undo") == "end_turn"
        assert it.calc == CALC and "restored calc.py" in it.client.text()


@asynchronous
async def test_what_happens_is_a_plan_tool_calls_and_thoughts(project: Path):
    rounds = [[answer(WRONG), answer(HALF)], [answer(RIGHT), answer(WRONG)]]
    async with driven(project, rounds, ("reject",), "--rounds", "2") as it:
        assert await it.prompt("Repair it.") == "end_turn"
        assert it.calc == CALC
        plans = [[one.status for one in plan.entries] for plan in it.client.of("plan")]
        assert plans[0] == ["in_progress", "pending", "pending", "pending"]
        assert ["completed", "in_progress", "pending", "pending"] in plans
        assert ["completed", "completed", "completed", "in_progress"] in plans
        assert plans[-1] == ["completed"] * 4
        calls = it.client.calls()
        assert calls["pytest"]["kind"] == "execute"
        assert calls["pytest"]["raw_input"] == {"command": "pytest"}
        shown = calls["Round 1: 2 candidates"]["content"][0]["content"]["text"]
        assert ">  2  1 of 2 pass" in shown
        assert {one["status"] for one in calls.values()} == {"completed", "failed"}
        assert calls["Candidate 3: 2 of 2 pass"]["status"] == "failed"  # rejected
        thoughts = it.client.text("agent_thought_chunk")
        assert "Candidate 1:" in thoughts and "def add" in thoughts
        assert "4 candidates in 2 rounds" in it.client.text()
        assert "The folder is unchanged" in it.client.text()


@asynchronous
async def test_an_edit_that_gains_nothing_is_not_asked_for(project: Path):
    async with driven(project, [[answer(WRONG)]], (), "--rounds", "1") as it:
        assert await it.prompt("Repair it.") == "end_turn"
        assert it.calc == CALC and not it.client.asked
        assert "No edit gains anything; the folder is unchanged." in it.client.text()
        assert "what may help: /again, /set rounds 2" in it.client.text()
        plan = [one.status for one in it.client.of("plan")[-1].entries]
        assert plan == ["completed", "completed", "pending"]


@asynchronous
async def test_without_a_test_command_the_person_is_asked_and_nothing_is_under_way(
    project: Path,
):
    async with driven(project, [[answer(RIGHT)]], ("allow",)) as it:
        await it.prompt("/set test none")
        assert await it.prompt("Fix the failing tests.") == "end_turn"
        assert "no command runs them; name it: /test " in it.client.text()
        assert {one.status for one in it.client.of("plan")[-1].entries} == {"pending"}
        assert not it.client.asked and it.calc == CALC
        await it.prompt("/test pytest")
        await it.prompt("/again")
        assert it.calc == RIGHT
        await it.prompt("/table")
        assert "  2 of 2 pass  " in it.client.text().rpartition("undo restores")[2]


@asynchronous
async def test_files_that_are_mentioned_are_named_and_others_are_refused(project: Path):
    (project / "test_calc.py").write_text("import calc\n")
    (project / "other.py").write_text("x = 1\n")
    uri = (project / "calc.py").as_uri()

    async with driven(project, [[answer(RIGHT)]] * 10, ("reject",) * 10) as it:
        link = acp.resource_link_block("calc.py", uri)
        test = acp.resource_link_block("test_calc.py", (project / "test_calc.py").as_uri())
        await it.prompt("Repair ", link, " for ", test)
        read = next(one for title, one in it.client.calls().items() if "Read" in title)
        assert "calc.py: whole" in read["content"][0]["content"]["text"]
        assert "you named it" in read["content"][0]["content"]["text"]
        assert "test_calc.py is a test; it is read, not changed" in it.client.text()
        new = acp.embedded_text_resource((project / "new.py").as_uri(), "x = 1\n")
        await it.prompt("Repair ", link, " with ", acp.resource_block(new))
        assert "new.py is no text file on the disk; save it" in it.client.text()
        text = acp.resource_block(acp.embedded_text_resource(uri, "not saved"))
        await it.prompt("Repair it.", text)
        assert "calc.py is read from the disk, where it differs" in it.client.text()
        part = acp.resource_block(acp.embedded_text_resource(f"{uri}#L1:2", "def add(a, b):"))
        await it.prompt("Repair it.", part)
        assert len(it.client.asked) == 4
        elsewhere = (
            "https://e.org/x", "http://[x", "file:///etc/passwd", f"{project.as_uri()}/../x.py",
            "file://e.org/x",
        )  # fmt: skip
        for place in elsewhere:
            it.client.updates.clear()
            await it.prompt("Repair it, as in ", acp.resource_link_block("x", place))
            assert f"{place} is no file in {project}; it is not read" in it.client.text()


def test_a_text_from_elsewhere_is_quoted(project: Path):
    texts = [acp.resource_block(acp.embedded_text_resource(uri, "y = 1\n"))
             for uri in ("file:///x/y.py", "https://e.org/z")]  # fmt: skip
    asked = blocks.read(texts, str(project), Workplace(project, CodeConfig()))
    assert "file:///x/y.py:\n```\ny = 1\n" in asked.text and "https://e.org/z:\n" in asked.text
    assert not asked.named_paths and not asked.notes
    long = acp.resource_link_block("x", f"{project.as_uri()}/{'a' * 256}.py")
    asked = blocks.read([long], str(project), Workplace(project, CodeConfig()))
    assert not asked.named_paths and "cannot be named in an edit" in asked.notes[0]


@asynchronous
async def test_places_as_editors_write_them(tmp_path):
    """Some escape nothing, some know the folder by way of a link, some mention the folder itself;
    texts come with the file's line ends or with LF."""
    folder = tmp_path / "C# 100%41"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    for name in ("calc.py", "a%20b#c?.py"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + CALC.replace("\n", "\r\n").encode())
    read = (folder / "calc.py").read_bytes().decode()

    async with driven(tmp_path / "link", [[answer(HALF)]] * 15, ("reject",) * 5) as it:
        await it.prompt("/test true")
        for uri, path in [
            (f"file://{folder}/calc.py", "calc.py"),
            (f"file://{tmp_path}/link/calc.py", "calc.py"),
            ((folder / "a%20b#c?.py").as_uri(), "a%20b#c?.py"),
            (f"file://{folder}/a%20b#c?.py", "a%20b#c?.py"),
        ]:
            it.client.updates.clear()
            text = acp.resource_block(acp.embedded_text_resource(uri, read))
            await it.prompt("Repair ", text)
            (about,) = (one for title, one in it.client.calls().items() if "Read" in title)
            shown = about["content"][0]["content"]["text"]
            assert f"{path}: whole" in shown and "you named it" in shown
            assert "save it" not in it.client.text()
        whole = acp.resource_link_block("all", folder.as_uri())
        assert await it.prompt("Repair ", whole) == "end_turn"
        await it.prompt("/add other.py calc.py")
        assert "may be changed: other.py (new), calc.py\n" in it.client.text()


@asynchronous
async def test_an_edit_that_passes_is_accepted_by_itself_in_that_mode(project: Path):
    async with driven(project, [[answer(HALF)], [answer(RIGHT)]], ("reject",)) as it:
        await it.agent.set_session_mode(session_id=it.session, mode_id="accept")
        await it.prompt("/set rounds 1")
        await it.prompt("Repair it.")
        assert it.calc == CALC and len(it.client.asked) == 1  # it does not pass
        await it.prompt("/again")
        assert it.calc == RIGHT and len(it.client.asked) == 1
        with pytest.raises(RequestError, match="must be 'ask' or 'accept'"):
            await it.agent.set_session_mode(session_id=it.session, mode_id="god")


@asynchronous
async def test_commands_of_a_session(project: Path):
    async with driven(project, [[answer(HALF)]], ("reject",), "--rounds", "1") as it:
        said = {
            "/diff": "there is no edit yet",
            "/diff best": "the number of a candidate is 'best', but must be between 1 and 9999",
            "/add calc.py": "may be changed: calc.py",
            "/drop": "the files that the tests and the task point to",
            "/test make check": "tests: make check",
            "/undo": "there is nothing to undo",
            "/nothing": "unknown command /nothing",
            "/help": "unknown command /help; there are /test, /add,",
            "/add ../x.py": "lies outside of",
        }
        for command, text in said.items():
            before = len(it.client.text())
            assert await it.prompt(command) == "end_turn"
            assert text in it.client.text()[before:]
        await it.prompt("/run")
        assert it.client.calls()["make check"]["status"] == "completed"
        await it.prompt("Repair it.")
        await it.prompt("/diff")
        assert "-    return a - b\n+    return a + b\n" in it.client.text()
        await it.prompt("/accept 1")
        assert it.calc == HALF


@asynchronous
async def test_what_cannot_be_changed_may_be_mentioned(project: Path):
    (project / "data").mkdir()
    (project / "fixed.py").write_text("x = 1\n")
    (project / "fixed.py").chmod(0o444)
    names = ["data", "fixed.py", "new.py", "calc.py"]
    links = [acp.resource_link_block(name, (project / name).as_uri()) for name in names]

    async with driven(project, [[answer(HALF)]], ("reject",), "--rounds", "1") as it:
        await it.prompt("Repair ", *links)
        assert "fixed.py is read-only" in it.client.text()
        (read,) = (one for title, one in it.client.calls().items() if "Read" in title)
        text = read["content"][0]["content"]["text"]
        assert text.count("you named it") == 2 and text.count("not there yet") == 1
        assert "new.py: whole" in text


@asynchronous
async def test_a_budget_that_is_spent_is_a_reason_to_stop(project: Path):
    async with driven(project, [], (), "--budget", "50") as it:
        assert await it.prompt("Repair it.") == "max_tokens"
        assert "has no room for another candidate" in it.client.text()


@asynchronous
async def test_without_any_sandbox_a_prompt_says_how_to_go_on(project: Path):
    def before(patch: pytest.MonkeyPatch, coder: Coder) -> None:
        patch.setattr(commands, "defect", lambda kind: "" if kind == "none" else f"no {kind}")

    async with driven(project, [[answer(RIGHT)]], ("allow",), before=before) as it:
        with pytest.raises(RequestError, match="no sandbox works here") as raised:
            await it.prompt("Repair it.")
        assert "\n" not in str(raised.value) and "--sandbox none" in str(raised.value)
        await it.prompt("/set sandbox none")
        assert await it.prompt("Repair it.") == "end_turn"
        assert "with code of the model, run without a sandbox" in it.client.text()
        assert it.calc == RIGHT


# ---- cancel, end ----


@asynchronous
async def test_a_prompt_is_cancelled_while_the_model_writes(project: Path):
    rounds = [[answer(WRONG), WAIT], [answer(RIGHT)]]
    async with driven(project, rounds, ("allow",)) as it:
        prompt = it.begin("Repair it.")
        await it.client.until(lambda: "Candidate 1" in it.client.text("agent_thought_chunk"))
        with pytest.raises(RequestError, match="under way; cancel it first"):
            await it.prompt("Another.")
        await it.agent.cancel(session_id=it.session)
        assert await prompt == "cancelled"
        assert it.calc == CALC
        assert not [one for one in it.client.calls().values() if "progress" in one["status"]]
        assert await it.prompt("/again") == "end_turn"
        assert it.calc == RIGHT


@pytest.mark.parametrize("given", ["never", "cancelled"])
@asynchronous
async def test_a_prompt_is_cancelled_while_the_person_is_asked(project: Path, given: str):
    async with driven(project, [[answer(RIGHT)]], (given,)) as it:
        prompt = it.begin("Repair it.")
        await it.client.until(lambda: bool(it.client.asked))
        if given == "never":
            await it.agent.cancel(session_id=it.session)
        assert await prompt == "cancelled"
        assert it.calc == CALC
        await it.prompt("/accept")
        assert it.calc == RIGHT  # nothing is lost


@pytest.mark.parametrize(
    ("given", "why"), [("error", "no window is open"), ("no outcome", "its answer is no outcome")]
)
@asynchronous
async def test_a_client_that_cannot_ask_loses_nothing(project: Path, given: str, why: str):
    async with driven(project, [[answer(RIGHT)]], (given,)) as it:
        assert await it.prompt("Repair it.") == "end_turn"
        assert f"cannot ask: {why}; /accept takes the edit" in it.client.text()
        assert it.calc == CALC
        await it.prompt("/accept")
        assert it.calc == RIGHT


@asynchronous
async def test_another_session_waits_and_can_be_cancelled_meanwhile(project: Path):
    async with driven(project, [[WAIT], [answer(RIGHT)]], ("allow",)) as it:
        first = it.session
        running = it.begin("Repair it.")
        await it.client.until(lambda: bool(it.client.of("plan")))
        it.session = (await it.open()).session_id
        waiting = it.begin("Repair it, too.")
        await it.client.until(lambda: "waits for it" in it.client.text("agent_thought_chunk"))
        await it.agent.cancel(session_id=it.session)
        assert await waiting == "cancelled" and not running.done()
        waiting = it.begin("Repair it, too.")
        await it.agent.cancel(session_id=first)
        assert await running == "cancelled"
        assert await waiting == "end_turn" and it.calc == RIGHT


@pytest.mark.parametrize("how", ["stdin", "SIGTERM", "SIGINT"])
@asynchronous
async def test_the_process_ends_in_the_middle_of_a_prompt(project: Path, how: str):
    async with started(project, [[WAIT]]) as it:
        prompt = it.begin("Repair it.")
        await it.client.until(lambda: "Round 1: 2 candidates" in it.client.calls())
        if how == "stdin":
            it.process.stdin.close()
        else:
            it.process.send_signal(getattr(signal, how))
        assert await asyncio.wait_for(it.process.wait(), HANG) == 0
        assert await prompt == "cancelled" and it.calc == CALC


def test_the_process_ends_where_the_client_does_not_read(project: Path):
    """Its pipe is full, and stays so."""
    process = subprocess.Popen(
        [sys.executable, "-c", program([])],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout
    line = json.dumps({"jsonrpc": "2.0", "id": "x" * 60_000, "method": "nothing"}).encode() + b"\n"
    os.set_blocking(process.stdin.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(100):
            assert process.stdin.write(line) or True
            process.stdin.flush()
    with contextlib.suppress(BlockingIOError):
        process.stdin.close()
    assert process.wait(HANG) == 0
    process.stdout.close()


@asynchronous
async def test_a_model_that_is_not_loaded_is_loaded_with_the_next_prompt(project: Path):
    kinds, loading = ["damaged", "damaged", "slow"], asyncio.Event()

    def before(patch: pytest.MonkeyPatch, coder: Coder) -> None:
        def load(*_: Any, cancel: Cancel, **__: Any) -> Coder:
            kind = kinds.pop(0) if kinds else ""
            if kind == "damaged":
                raise ModelError("the file is damaged")
            if kind == "slow":
                stopped = threading.Event()
                with cancel.watched(stopped.set):
                    loop.call_soon_threadsafe(loading.set)
                    stopped.wait(HANG)
                raise CancelledError("cancelled")
            return coder

        patch.setattr(installation, "load_with_progress", load)

    loop = asyncio.get_running_loop()
    async with driven(project, [[answer(RIGHT)]], ("allow",), before=before) as it:
        with pytest.raises(RequestError, match="the file is damaged"):
            await it.prompt("Repair it.")
        prompt = it.begin("Repair it.")
        await loading.wait()
        await it.agent.cancel(session_id=it.session)
        assert await prompt == "cancelled"
        assert await it.prompt("Repair it.") == "end_turn"
        assert it.calc == RIGHT


@asynchronous
async def test_sessions_are_not_kept(project: Path, tmp_path):
    async with driven(project, [[answer(RIGHT)]], ("allow",)) as it:
        await it.prompt("Repair it.")
        with pytest.raises(RequestError, match="unknown method session/load"):
            await it.agent.load_session(cwd=str(project), session_id=it.session, mcp_servers=[])
    assert not [*(tmp_path / "state").rglob("*.jsonl")]
    async with driven(project, []) as it:  # the journal is kept
        assert await it.prompt("/undo") == "end_turn" and it.calc == CALC


# ---- input that is no good ----


def talk(*lines: bytes, rounds: Any = ()) -> list[Any]:
    """The messages of a process that reads these lines; it ends with 0 and prints nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", program([*rounds])],
        env=environment(), input=b"\n".join(lines) + b"\n", capture_output=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def request(method: Any, params: Any = None, number: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


NO_MESSAGES = [
    (b"{not json", -32700, "no JSON"),
    (b"\xff\xfe", -32700, "no JSON"),
    (b"[" * 200_000, -32700, "no JSON"),
    (b"9" * 10_000, -32700, "no JSON"),
    (b'{"id": 1, "method": "\\ud800"}', -32700, "no JSON"),
    (b"[]", -32600, "one JSON object"),
    (b'{"id": [1], "method": "initialize"}', -32600, "id must be"),
    (b'{"method": ["initialize"]}', -32600, "method must be"),
    (b'{"id": null, "error": "text"}', -32600, "must have a method"),
    (b'{"jsonrpc": "2.0"}', -32600, "must have a method"),
    (b'{"id": 1, "params": "' + b"y" * (9 << 20) + b'"}', -32600, "more than 8,388,608 bytes"),
]
NO_REQUESTS: list[tuple[str, Any, int, str]] = [
    ("session/kill", {}, -32601, "unknown method session/kill"),
    ("x" * 100_000, {}, -32601, "unknown method xxx"),
    ("session/new", [1], -32602, "session/new: Input should be"),
    ("session/new", {}, -32602, "session/new: cwd: Field required"),
    ("session/new", {"cwd": "here", "mcpServers": []}, -32602, "must be an absolute path"),
    ("session/new", {"cwd": "/", "mcpServers": []}, -32603, "the whole file system"),
    ("session/new", {"cwd": "/no/such\0", "mcpServers": []}, -32602, "null"),
    ("session/new", {"cwd": "/no/such", "mcpServers": []}, -32603, "is no folder"),
    ("session/prompt", {"sessionId": "x", "prompt": []}, -32602, "no open session 'x'"),
    ("session/load", {"sessionId": "x", "cwd": "/x", "mcpServers": []}, -32601, "session/load"),
]


def test_input_that_is_no_good_gets_one_sentence_and_the_rest_an_answer():
    requests = [request(method, params, i) for i, (method, params, _, _) in enumerate(NO_REQUESTS)]
    lines = [line for line, _, _ in NO_MESSAGES]
    unknown = b'{"jsonrpc": "2.0", "method": "session/nothing"}'
    good = request("initialize", {"protocolVersion": 1, "_meta": {"self": 1}}, "good")
    found = talk(*lines, unknown, b"", *requests, good)
    errors = {one["id"]: one["error"] for one in found if "error" in one}
    expected = [(code, text) for _, code, text in NO_MESSAGES]
    got = [one["error"] for one in found if one["id"] is None]
    for i, (_, _, code, text) in enumerate(NO_REQUESTS):
        expected.append((code, text))
        got.append(errors[i])
    for (code, text), error in zip(expected, got, strict=True):
        assert error["code"] == code and text in error["message"]
        assert len(error["message"]) < 1000
    assert [one["id"] for one in found if "result" in one] == ["good"]


@asynchronous
async def test_prompts_that_are_no_task_are_refused(project: Path):
    async with driven(project, []) as it:
        image = acp.image_block("aGk=", "image/png")
        for blocks, text in [
            ([" "], "the prompt is empty"),
            ([], "the prompt is empty"),
            (["x" * 300_000], "at most 262,144"),
            ([image], "images and sounds are not read"),
        ]:
            with pytest.raises(RequestError, match=text):
                await it.prompt(*blocks)


@asynchronous
async def test_more_requests_than_are_answered_are_refused():
    (source, sender), (receiver, sink) = os.pipe(), os.pipe()
    wire = Wire(os.fdopen(source, "rb"), os.fdopen(sink, "wb"))
    with os.fdopen(sender, "wb") as client, os.fdopen(receiver, "rb") as answers:
        for number in range(MAX_REQUESTS + 1):
            client.write(request("x", {}, number) + b"\n")
        client.write(b'{"jsonrpc": "2.0", "method": "session/cancel"}\n')
        client.flush()
        received = [await wire.receive() for _ in range(MAX_REQUESTS + 1)]
        assert [one["id"] for one in received[:-1]] == [*range(MAX_REQUESTS)]
        assert received[-1]["method"] == "session/cancel"
        refused = json.loads(await asyncio.to_thread(answers.readline))
        assert refused["id"] == MAX_REQUESTS and "are under way" in refused["error"]["message"]
        await wire.send({"jsonrpc": "2.0", "id": 0, "result": {}})
        client.write(request("x", {}, "again") + b"\n")
        client.flush()
        assert (await wire.receive())["id"] == "again"
        client.close()
        assert await wire.receive() is None
        await wire.close()


@asynchronous
async def test_sessions_are_bounded_and_foreign_servers_ignored(project: Path):
    server = schema.McpServerStdio(name="x", command="/bin/false", args=[], env=[])

    async with driven(project, [[WAIT]]) as it:
        it.session = (await it.open(server)).session_id
        await it.prompt("/test")
        assert "MCP servers are ignored" in it.client.text()
        running = it.begin("Repair it.")
        await it.client.until(lambda: bool(it.client.of("plan")))
        sessions = [(await it.open()).session_id for _ in range(40)]
        with pytest.raises(RequestError, match="no open session"):
            await it.agent.prompt(session_id=sessions[0], prompt=REPAIR)
        await it.agent.cancel(session_id=it.session)
        assert await running == "cancelled"


def test_without_the_sdk_one_line_says_what_to_install(project: Path):
    code = f"import sys; sys.modules['acp'] = None; {program([])}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, timeout=HANG
    )
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        "tgr-local: editors need agent-client-protocol; run: pip install 'tgr-local[code]'"
    ]
