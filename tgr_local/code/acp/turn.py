"""One prompt of a session: a command, or a task whose edit the person allows.

In: a session of the assistant, a prompt. Out: what is said and asked through an `Editor`, changes
of the folder that the person allows, and the reason why the turn ended.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from acp import helpers, schema

from tgr_local.code import table
from tgr_local.code.acp.blocks import EditorTask
from tgr_local.code.acp.editor import Editor
from tgr_local.code.acp.follower import Follower, fenced, output
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.repl_commands import COMMANDS as OF_SESSION
from tgr_local.code.repl_commands import candidate_number
from tgr_local.code.session import CodeSession
from tgr_local.console.command_table import Command, is_command, run_command
from tgr_local.system.errors import CancelledError, InstallError, ModelError, TgrError, describe
from tgr_local.system.sanitize import visible

_HERE = ("/test", "/add", "/drop", "/files", "/table", "/show", "/accept", "/undo", "/method",
         "/set")  # fmt: skip
_LONGEST = 64 << 10  # characters of what a command says


def _diff(session: CodeSession, argument: str) -> Iterator[str]:
    changes = session.candidate(candidate_number(argument)).changes
    yield from visible(table.diff(changes)).split("\n")
    yield from table.unseen(changes)


COMMANDS: dict[str, Command[CodeSession]] = {
    **{name: OF_SESSION[name] for name in _HERE},
    "/diff": Command(_diff, "N", OF_SESSION["/diff"].help),
}
"""Commands that answer with text; `/run` and `/again` carry out a task."""
WORKING = ("/run", "/again")


def available_commands() -> list[schema.AvailableCommand]:
    """The commands, for the client's completion."""
    commands = []
    for name in (*COMMANDS, *WORKING):
        about = OF_SESSION[name]
        hint = schema.UnstructuredCommandInput(hint=about.argument) if about.argument else None
        commands.append(
            schema.AvailableCommand(
                name=name[1:],
                description=about.help,
                input=schema.AvailableCommandInput(root=hint) if hint else None,
            )
        )
    return commands


@dataclass(frozen=True)
class PromptRun:
    """A prompt to be carried out."""

    session: CodeSession
    editor: Editor
    cwd: str
    accepts: Callable[[], bool]
    """Whether an edit that passes is made without a question."""

    def run(self, task: EditorTask) -> schema.StopReason:
        """Carries out a task or a command. Raises ModelError and InstallError; every other error is
        shown."""
        self.session.say = self.editor.say
        try:
            if is_command(task.text):
                return self._command(task.text)
            return self._task(task.text, task.named_paths)
        except CancelledError:
            self.editor.say("Stopped; the folder is unchanged.")
            return "cancelled"
        except (ModelError, InstallError):
            raise
        except (ValueError, TgrError, OSError) as error:
            self.editor.say(describe(error))
            return "end_turn"

    def _command(self, text: str) -> schema.StopReason:
        name = text.split(maxsplit=1)[0]
        if text == "/again":
            return self._task(self.session.last_task(), ())
        if name == "/run":
            self._run_tests()
            return "end_turn"
        known = {**COMMANDS, **{command: OF_SESSION[command] for command in WORKING}}
        lines = "\n".join(run_command(self.session, text, known, {}))[:_LONGEST]
        if "\n" in lines or name == "/diff":
            lines = fenced(lines)
        self.editor.say(lines)
        return "end_turn"

    def _run_tests(self) -> None:
        number, command = uuid.uuid4().hex, self.session.code.test
        start = helpers.start_tool_call(
            number, command or "no tests", kind="execute", status="in_progress",
            raw_input={"command": command},
        )  # fmt: skip
        with self._tool_call(start) as said:
            verdict = self.session.run_tests(self.editor.cancel)
            said.append(output(verdict))

    def _task(self, text: str, named_paths: tuple[str, ...]) -> schema.StopReason:
        code = self.session.code
        follower = Follower(self.editor, code, self.cwd, uuid.uuid4().hex)
        with follower:
            outcome = self.session.carry_out(text, self.editor.cancel, follower, named_paths)
            passes = outcome.best is not None and outcome.best.passes
            follower.finished(passes)
        self.session.explain(shows_output=False)
        if outcome.best is None:
            self.editor.say("No candidate has an edit; /again tries other seeds.")
        elif outcome.offered is None:
            self.editor.say("No edit gains anything; the folder is unchanged.")
        else:
            self._propose(outcome.offered)
        return "max_tokens" if outcome.ended and not passes else "end_turn"

    def _propose(self, best: Candidate) -> None:
        """Shows an edit, and makes it if the person allows it, or said so before.

        The journal of the assistant writes it, not the client: it changes all files or none, in
        their own encodings, and /undo restores them; editors read files again that have changed.
        """
        places = [str(PurePath(self.cwd, change.path)) for change in best.changes]
        how = table.result(best) if best.passes else f"{table.result(best)}; it does not pass"
        for line in (unseen := table.unseen(best.changes)):
            self.editor.say(line)
        how += "; it has characters that are not seen" if unseen else ""
        diffs = [
            helpers.tool_diff_content(place, change.after, change.before or None)
            for place, change in zip(places, best.changes, strict=True)
        ]
        call = helpers.start_tool_call(
            uuid.uuid4().hex,
            f"Candidate {best.number}: {how}",
            kind="edit",
            status="pending",
            content=diffs,
            locations=[schema.ToolCallLocation(path=place) for place in places],
        )
        with self._tool_call(call) as said:
            if not (best.passes and self.accepts()):
                about = call.model_dump(exclude={"session_update"})
                if not self.editor.allows(schema.ToolCallUpdate.model_validate(about)):
                    said.append("")
                    self.editor.say("The folder is unchanged; /accept takes the edit still.")
                    return
            self.editor.cancel.check("cancelled before the edit was made")
            self.editor.say(f"{self.session.accept(best.number)}; /undo restores it")

    @contextlib.contextmanager
    def _tool_call(self, start: schema.ToolCallStart) -> Iterator[list[str]]:
        """Inside, a tool call is under way. A text in the list is its content; an empty one says
        that it was not allowed."""
        said: list[str] = []
        self.editor.send(start)
        status: schema.ToolCallStatus = "failed"
        try:
            yield said
            status = "failed" if said == [""] else "completed"
        finally:
            self.editor.update_call(start.tool_call_id, "".join(said), status)
