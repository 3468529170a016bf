"""The protocol's methods: sessions, and their prompts, which run one at a time.

In: requests, checked by the SDK. Out: answers; a thread of its own carries out the prompts, in the
order in which they came. A session belongs to one folder, and nothing outside of that is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, helpers, schema
from acp.connection import Connection

from tgr_local.code.acp import blocks, store
from tgr_local.code.acp.editor import Editor
from tgr_local.code.acp.store import PromptEntry
from tgr_local.code.acp.turn import PromptRun, available_commands
from tgr_local.code.session import CodeSession
from tgr_local.code.workplace import Workplace
from tgr_local.console.command_table import is_command
from tgr_local.console.wrap import shortened
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Method
from tgr_local.options.config import CodeConfig
from tgr_local.system.errors import CancelledError, describe
from tgr_local.system.versions import __version__

ASK, ACCEPT = "ask", "accept"
"""Modes: ask before every edit; accept an edit that passes the tests without asking."""
MAX_SESSIONS = 32
"""Open sessions at most; a further one closes the session that was used least recently."""
_TITLE = 80  # characters
_MODES = [
    schema.SessionMode(id=ASK, name="Ask", description="asks before it changes files"),
    schema.SessionMode(
        id=ACCEPT, name="Accept", description="makes an edit that passes the tests by itself"
    ),
]


@dataclass(frozen=True)
class AgentSettings:
    """Settings from the command line."""

    load: Callable[[Cancel], Engine]
    """Loads the model."""
    user_options: dict[str, Any]
    method: Method
    code: CodeConfig
    mode: str
    saves: bool


@dataclass
class OpenSession:
    """An open session."""

    id: str
    cwd: str
    workplace: Workplace
    mode: str
    code: CodeSession | None = None
    """Session of the assistant; set from the first prompt on."""
    test: str = ""
    named_paths: tuple[str, ...] = ()
    title: str = ""
    model: str = ""
    entries: list[PromptEntry] = field(default_factory=list)
    n_kept: int = 0
    """Number of first entries that its file has."""
    notes: list[str] = field(default_factory=list)
    """Notes to send with the next prompt."""
    cancel: Cancel | None = None
    """Cancellation of the prompt under way."""
    job: Future[schema.StopReason] | None = None


class Agent:
    """All sessions of one client; give it a connection before the first message."""

    connection: Connection

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, OpenSession] = {}
        self._worker = ThreadPoolExecutor(1, "prompts")
        self._engine: Engine | None = None
        self._prefetches = False
        self._end = Cancel()
        self._greetings: set[asyncio.Task[None]] = set()

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(
                name="tgr-local", title="tgr-local", version=__version__
            ),
            agent_capabilities=schema.AgentCapabilities(
                load_session=self._settings.saves,
                prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities() if self._settings.saves else None
                ),
            ),
        )

    # ---- sessions ----

    async def new_session(
        self, cwd: str, mcp_servers: Any = None, additional_directories: Any = None, **_: Any
    ) -> schema.NewSessionResponse:
        session = await self._open_session(store.new_id(), cwd, self._settings.mode)
        session.test = self._settings.code.test
        self._greet(session, mcp_servers, additional_directories)
        return schema.NewSessionResponse(session_id=session.id, modes=_modes(session))

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Any = None,
        additional_directories: Any = None,
        **_: Any,
    ) -> schema.LoadSessionResponse:
        if not self._settings.saves:
            raise ValueError("sessions are not kept here: --no-save")
        header, entries = await asyncio.to_thread(store.load, session_id, cwd)
        mode = header.mode if header.mode in (ASK, ACCEPT) else self._settings.mode
        session = await self._open_session(session_id, cwd, mode)
        session.test = header.test or self._settings.code.test
        session.title, session.model = header.title, header.model
        session.entries, session.n_kept = entries, len(entries)
        for path in header.named:
            with contextlib.suppress(Exception):  # it may have gone since
                session.named_paths += session.workplace.named_paths([path])
        for entry in entries:
            await self._update(session, helpers.update_user_message_text(entry.prompt))
            for update in entry.updates:
                params = {"sessionId": session.id, "update": update}
                await self.connection.send_notification("session/update", params)
        self._greet(session, mcp_servers, additional_directories)
        return schema.LoadSessionResponse(modes=_modes(session))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        sessions = await asyncio.to_thread(store.listed, cwd) if self._settings.saves else []
        return schema.ListSessionsResponse(sessions=sessions)

    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> schema.SetSessionModeResponse:
        session = self._session(session_id)
        if mode_id not in (ASK, ACCEPT):
            raise ValueError(f"mode_id is {mode_id!r:.80}, but must be {ASK!r} or {ACCEPT!r}")
        session.mode = mode_id
        return schema.SetSessionModeResponse()

    async def _open_session(self, session_id: str, cwd: str, mode: str) -> OpenSession:
        if not os.path.isabs(cwd):
            raise ValueError(f"cwd is {cwd!r:.200}, but must be an absolute path")
        workplace = await asyncio.to_thread(Workplace, Path(cwd), self._settings.code)
        session = OpenSession(session_id, os.path.normpath(cwd), workplace, mode)
        if session_id in self._sessions:
            _check_free(self._sessions[session_id])
            del self._sessions[session_id]
        idle = [opened for opened in self._sessions.values() if opened.job is None]
        if len(self._sessions) >= MAX_SESSIONS:
            if not idle:
                raise ValueError(f"{MAX_SESSIONS} sessions are open; end a prompt of one")
            del self._sessions[idle[0].id]
        self._sessions[session_id] = session
        if not self._prefetches and not self._end.is_set():
            self._prefetches = True
            self._worker.submit(self._prefetch)
        return session

    def _session(self, session_id: str) -> OpenSession:
        if session_id not in self._sessions:
            text = f"there is no open session {session_id!r:.80}; session/load opens a saved one"
            raise ValueError(text)
        session = self._sessions[session_id] = self._sessions.pop(session_id)  # now the latest
        return session

    def _greet(self, session: OpenSession, servers: Any, folders: Any) -> None:
        """Says which commands there are, after the answer to the request that opens a session."""
        if servers:
            session.notes.append("MCP servers are ignored: the assistant runs your tests alone.")
        if folders:
            session.notes.append(f"Further folders are ignored; the project is {session.cwd}.")
        update = helpers.update_available_commands(available_commands())
        task = asyncio.create_task(self._update(session, update))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _update(self, session: OpenSession, update: Any) -> None:
        value = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        params = {"sessionId": session.id, "update": value}
        with contextlib.suppress(ConnectionError):
            await self.connection.send_notification("session/update", params)

    # ---- prompts ----

    async def prompt(self, session_id: str, prompt: Any, **_: Any) -> schema.PromptResponse:
        session = self._session(session_id)
        _check_free(session)
        if self._end.is_set():
            return schema.PromptResponse(stop_reason="cancelled")
        is_busy = any(opened.job for opened in self._sessions.values())
        session.cancel = Cancel(self._end)
        session.job = self._worker.submit(self._carry_out, session, session.cancel, prompt)
        try:
            if is_busy:
                text = "Another session's prompt is under way; this one waits for it.\n\n"
                await self._update(session, helpers.update_agent_thought_text(text))
            reason = await asyncio.wrap_future(session.job)
        except (asyncio.CancelledError, CancelledError):  # before it began
            if not session.cancel.is_set():
                raise
            reason = "cancelled"
        finally:
            session.cancel = session.job = None
        return schema.PromptResponse(stop_reason=reason)

    async def cancel(self, session_id: str, **_: Any) -> None:
        session = self._sessions.get(session_id)
        if session and session.cancel and session.job:
            session.cancel.cancel()
            session.job.cancel()

    def _carry_out(self, session: OpenSession, cancel: Cancel, prompt: Any) -> schema.StopReason:
        task = blocks.read(prompt, session.cwd, session.workplace)
        code = session.code or self._code_session(session, cancel)
        entry = PromptEntry(task.text)
        editor = Editor(self.connection, self._loop, session.id, entry, cancel)
        for note in (*session.notes, *task.notes):
            editor.say(note)
        session.notes = []
        try:
            return PromptRun(code, editor, session.cwd, lambda: session.mode == ACCEPT).run(task)
        finally:
            session.test, session.named_paths = code.code.test, code.named_paths
            if not session.title and not is_command(task.text):
                session.title = shortened(task.text, _TITLE)
            if self._settings.saves:
                session.entries.append(entry)
                _save(session)

    def _code_session(self, session: OpenSession, cancel: Cancel) -> CodeSession:
        settings = self._settings
        if recovered := session.workplace.recover():
            session.notes.append(recovered)
        engine = self._load_engine(cancel)
        if session.model not in ("", str(engine.path)):
            last, now = Path(session.model).name, engine.path.name
            session.notes.append(f"Until now this session was with {last}; {now} goes on.")
        session.model = str(engine.path)
        code = CodeSession(
            engine, settings.user_options, settings.method, settings.code,
            session.workplace, session.named_paths, on_stdout=False,
        )  # fmt: skip
        if session.test != settings.code.test:
            code.set_option("test", session.test or "none")
        session.code = code
        return code

    # ---- the model ----

    def _prefetch(self) -> None:
        with contextlib.suppress(Exception):  # the first prompt tries again, and says why
            self._load_engine(self._end)

    def _load_engine(self, cancel: Cancel) -> Engine:
        if self._engine is None:
            self._engine = self._settings.load(cancel)
        return self._engine

    async def close(self) -> None:
        """Stops what is under way, and frees the model."""
        self._end.cancel()
        await asyncio.to_thread(self._worker.shutdown, cancel_futures=True)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)


def _save(session: OpenSession) -> None:
    header = store.SessionHeader(
        session.cwd, session.mode, session.test, session.named_paths, session.title, session.model
    )
    try:
        session.entries = store.save(session.id, header, session.entries, session.n_kept)
        session.n_kept = len(session.entries)
    except OSError as error:  # which costs nothing but the history
        print(f"tgr-local: the session is not kept: {describe(error)}", file=sys.stderr)


def _check_free(session: OpenSession) -> None:
    if session.job is not None:
        raise ValueError("a prompt of this session is under way; cancel it first")


def _modes(session: OpenSession) -> schema.SessionModeState:
    return schema.SessionModeState(current_mode_id=session.mode, available_modes=_MODES)
