"""The input line of a session: the chat's, with the commands of the assistant."""

from __future__ import annotations

from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.enums import EditingMode

from tgr_local import methods
from tgr_local.chat.input_line import CommandCompleter, make_prompt, words
from tgr_local.chat.pastes import Pastes
from tgr_local.code.repl_commands import ALIASES, COMMANDS
from tgr_local.code.session import CodeSession
from tgr_local.options.config import ChatConfig


class InputLine:
    """Reads lines that the person types."""

    def __init__(self, session: CodeSession, config: ChatConfig) -> None:
        paths = WordCompleter(lambda: list(session.workplace.paths()), WORD=True)
        named = WordCompleter(lambda: list(session.named), WORD=True)
        settable = words(session.options())
        arguments: dict[str, Completer] = {
            "/add": paths, "/drop": named, "/method": words(methods.METHODS), "/set": settable,
        }  # fmt: skip
        self._pastes = Pastes()
        completer = CommandCompleter((*COMMANDS, *ALIASES), arguments)
        self._prompt = make_prompt(self._pastes, config.save, completer, "code_history")
        self._prompt.editing_mode = EditingMode.VI if config.keys == "vi" else EditingMode.EMACS

    def read(self, prompt: str) -> str:
        """A line. EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return self._pastes.expanded(self._prompt.prompt(prompt))
