"""The file of a conversation, written whole after every turn, and copies of it under other names.

Several chats may be open at once: each writes files of its own, and replaces no content that
another one wrote. What cannot be written stays in memory and is written as soon as there is room.
"""

from __future__ import annotations

from pathlib import Path

from tgr_local.chat import store
from tgr_local.chat.conversation import Conversation
from tgr_local.console.dialog import print_note
from tgr_local.system.errors import describe
from tgr_local.system.files import OwnedFile


class Autosave:
    """The file that a conversation is saved to, if any."""

    def __init__(self) -> None:
        self.file: OwnedFile | None = None
        """The file that is written after every turn; None = none."""
        self.copies: dict[Path, bytes | None] = {}
        """Other files of this conversation, with the digest of what they had when it was loaded
        from them or saved to them."""
        self._behind: dict[OwnedFile, bytes] = {}  # what could not be written yet
        self._is_told = False  # that something could not

    @property
    def is_behind(self) -> bool:
        """Whether there are turns that could not be written yet."""
        return self.file in self._behind

    def go_on_in(self, file: OwnedFile | None) -> None:
        """Saves from now on to this file."""
        if self.file is not None and self.file not in self._behind:
            self.file.release()
        self.file = file

    def start_new(self) -> None:
        """Saves from now on to a new file, if conversations are saved at all."""
        self.copies.clear()
        if self.file is not None:
            self.go_on_in(OwnedFile(store.new_path()))

    def save(self, conversation: Conversation) -> None:
        """Writes the conversation to its file, if it has one, and to those that could not be
        written before. Prints once that this fails, and once that it works again."""
        if self.file is not None:
            if conversation.turns or self.file.path.exists():
                self._behind[self.file] = store.encoded(conversation)
            else:  # every turn was removed before one was written
                self._behind.pop(self.file, None)
        self._catch_up("; every turn tries again, and /save FILE writes it elsewhere")

    def _catch_up(self, hint: str) -> None:
        failure: OSError | None = None
        for file, data in list(self._behind.items()):
            try:
                new_file = self._write(file, data)
            except OSError as error:
                failure = error
                continue
            del self._behind[file]
            if file is self.file:
                self.file = new_file
            else:
                new_file.release()
        if failure is not None and not self._is_told:
            print_note(f"the conversation is not saved: {describe(failure)}{hint}")
        elif failure is None and self._is_told:
            print_note("the conversation is saved again")
        self._is_told = failure is not None

    def _write(self, file: OwnedFile, data: bytes) -> OwnedFile:
        """Writes to a file, or to a new one if somebody else has written to it; the one."""
        with store.errors_of(file.path):
            while not ((file.is_owned or file.create()) and file.write(data)):
                was_changed, old = file.is_owned, file
                file.release()
                file = OwnedFile(store.new_path())
                if was_changed:
                    print_note(
                        f"{old.path.stem} was changed by another program; this conversation goes "
                        f"on in {file.path.stem}"
                    )
        return file

    def save_as(self, path: Path, conversation: Conversation) -> Path:
        """Writes the conversation to a file that is new, or still has this conversation's last
        content; returns the path. Raises ValueError for any other file, and OSError."""
        data = store.encoded(conversation)
        if self.file is not None and path == self.file.path:
            old_file, self.file = self.file, self._write(self.file, data)
            self._behind.pop(old_file, None)
            return self.file.path
        is_new = path not in self.copies
        if is_new and path.exists():
            if store.is_conversation(path):
                raise ValueError(
                    f"{path} holds another conversation; name another file, or remove it"
                )
            raise ValueError(f"{path} exists and is not a conversation; name another file")
        file = OwnedFile(path)
        try:
            with store.errors_of(path):
                if not (file.create() if is_new else file.take()):
                    raise ValueError(f"another chat is writing {path}; name another file")
                if not is_new and file.last_digest not in (None, self.copies[path]):
                    raise ValueError(
                        f"{path} was changed since this chat read or wrote it; name another file"
                    )
                file.write(data)
            self.copies[path] = file.last_digest
        finally:
            file.release()
        return path

    def close(self) -> None:
        """Tries once more to write what could not be written, and lets other chats have the
        file."""
        self._is_told = False
        self._catch_up(", and its last turns are lost")
        if self.file is not None:
            self.file.release()
