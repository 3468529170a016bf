"""The protocol's methods: sessions, and their prompts, which run one at a time.

In: requests, checked by the SDK. Out: answers; a thread of its own carries out the prompts, in the
order in which they came. A session belongs to one folder, and nothing outside of that is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, helpers, schema
from acp.connection import Connection

from tgr_local.code.acp import blocks
from tgr_local.code.acp.editor import Editor
from tgr_local.code.acp.turn import PromptRun, available_commands
from tgr_local.code.session import CodeSession
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Method
from tgr_local.options.config import CodeConfig
from tgr_local.system.errors import CancelledError
from tgr_local.system.versions import __version__

ASK, ACCEPT = "ask", "accept"
"""Modes: ask before every edit; accept an edit that passes the tests without asking."""
MAX_SESSIONS = 32
"""Open sessions at most; a further one closes the session that was used least recently."""
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


@dataclass
class OpenSession:
    """An open session."""

    id: str
    cwd: str
    workplace: Workplace
    mode: str
    code: CodeSession | None = None
    """Session of the assistant; set from the first prompt on."""
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
                prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
            ),
        )

    # ---- sessions ----

    async def new_session(
        self, cwd: str, mcp_servers: Any = None, additional_directories: Any = None, **_: Any
    ) -> schema.NewSessionResponse:
        session = await self._open_session(cwd)
        self._greet(session, mcp_servers, additional_directories)
        return schema.NewSessionResponse(session_id=session.id, modes=_modes(session))

    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> schema.SetSessionModeResponse:
        session = self._session(session_id)
        if mode_id not in (ASK, ACCEPT):
            raise ValueError(f"mode_id is {mode_id!r:.80}, but must be {ASK!r} or {ACCEPT!r}")
        session.mode = mode_id
        return schema.SetSessionModeResponse()

    async def _open_session(self, cwd: str) -> OpenSession:
        if not os.path.isabs(cwd):
            raise ValueError(f"cwd is {cwd!r:.200}, but must be an absolute path")
        workplace = await asyncio.to_thread(Workplace, Path(cwd), self._settings.code)
        mode = self._settings.mode
        session = OpenSession(uuid.uuid4().hex, os.path.normpath(cwd), workplace, mode)
        idle = [opened for opened in self._sessions.values() if opened.job is None]
        if len(self._sessions) >= MAX_SESSIONS:
            if not idle:
                raise ValueError(f"{MAX_SESSIONS} sessions are open; end a prompt of one")
            del self._sessions[idle[0].id]
        self._sessions[session.id] = session
        if not self._prefetches and not self._end.is_set():
            self._prefetches = True
            self._worker.submit(self._prefetch)
        return session

    def _session(self, session_id: str) -> OpenSession:
        if session_id not in self._sessions:
            raise ValueError(f"there is no open session {session_id!r:.80}; begin a new one")
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
        code = session.code = session.code or self._code_session(session, cancel)
        editor = Editor(self.connection, self._loop, session.id, cancel)
        for note in (*session.notes, *task.notes):
            editor.say(note)
        session.notes = []
        return PromptRun(code, editor, session.cwd, lambda: session.mode == ACCEPT).run(task)

    def _code_session(self, session: OpenSession, cancel: Cancel) -> CodeSession:
        settings = self._settings
        if recovered := session.workplace.recover():
            session.notes.append(recovered)
        return CodeSession(
            self._load_engine(cancel), settings.user_options, settings.method, settings.code,
            session.workplace, on_stdout=False,
        )  # fmt: skip

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


def _check_free(session: OpenSession) -> None:
    if session.job is not None:
        raise ValueError("a prompt of this session is under way; cancel it first")


def _modes(session: OpenSession) -> schema.SessionModeState:
    return schema.SessionModeState(current_mode_id=session.mode, available_modes=_MODES)
