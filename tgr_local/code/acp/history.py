"""What was said in a session, as it can be said again.

In: the updates of a prompt. Out: the same, each thing once, in its last state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Update = dict[str, Any]

_CHUNKS = ("agent_message_chunk", "agent_thought_chunk")
MAX_THOUGHT = 32 << 10  # characters
MAX_DIFF = 128 << 10  # characters of a file


@dataclass
class Entry:
    """A prompt and what was said to it."""

    prompt: str
    updates: list[Update] = field(default_factory=list)

    def add(self, update: Update) -> None:
        """Takes an update in: texts grow, a plan and a tool call have their last state."""
        kind = update["sessionUpdate"]
        if kind in _CHUNKS:
            self._add_chunk(kind, update["content"]["text"])
        elif kind == "plan":
            self._replace(update, lambda one: one["sessionUpdate"] == kind)
        elif kind in ("tool_call", "tool_call_update"):
            update = {**update, "content": [_short(one) for one in update.get("content", [])]}
            if not update["content"]:
                del update["content"]
            number = update["toolCallId"]
            self._replace(update, lambda one: one.get("toolCallId") == number)

    def _add_chunk(self, kind: str, text: str) -> None:
        last = self.updates[-1] if self.updates else {}
        if last.get("sessionUpdate") != kind:
            self.updates.append({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
        elif len(last["content"]["text"]) < MAX_THOUGHT:
            last["content"]["text"] += text

    def _replace(self, update: Update, is_same: Any) -> None:
        for one in self.updates:
            if is_same(one):
                one.update(update, sessionUpdate=one["sessionUpdate"])
                return
        self.updates.append(update)


def _short(content: Update) -> Update:
    """A tool call's content; a note in place of a long diff."""
    if content["type"] != "diff":
        return content
    if len(content["newText"]) + len(content.get("oldText", "")) <= MAX_DIFF:
        return content
    note = f"{content['path']} was changed; the file is too long to be kept here"
    return {"type": "content", "content": {"type": "text", "text": note}}
