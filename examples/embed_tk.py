"""A window in Tk: a reply is shown while it is written, Stop ends it, all windows share one engine.

python examples/embed_tk.py [model.gguf]
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from tgr_local import (
    Cancel,
    Engine,
    EngineConfig,
    Progress,
    SearchConfig,
    TextDelta,
    freeze_support,
    stream,
)
from tgr_local.options.model_files import embedded_model

try:
    import tkinter as tk
except ImportError as error:  # Debian has it in a package of its own
    sys.exit(f"{error}; this program needs tkinter; run: apt install python3-tk")

windows, pool, leave = [], ThreadPoolExecutor(64), Cancel()
cache, config = EngineConfig(n_ctx=8192), SearchConfig(max_tokens=1800)  # four replies at a time


def write(engine, question, cancel, put):
    """Puts pieces of a reply and its progress; runs in a thread, so it knows no window."""
    n_tokens = 0
    try:
        for event in stream(engine.result(), question, config, cancel=cancel):
            if isinstance(event, TextDelta):  # of event.kind "thinking" or "answer"
                put((event.text, f"{n_tokens} tokens"))
            elif isinstance(event, Progress):
                n_tokens += len(event.tokens)
        put(("\n", f"{n_tokens} tokens in {event.seconds:.1f} s"))  # the last one is the Reply
    except Exception as error:  # CancelledError after Stop; of the model, that it cannot be loaded
        put(("\n", f"{n_tokens} tokens; {error}"))


class Window(tk.Toplevel):
    """`engine` is a future, so that the window is there before the model."""

    def __init__(self, root, engine):
        super().__init__(root)
        self.title("tgr-local in Tk")
        self.engine, self.reply, self.cancel, self.pieces = engine, None, Cancel(), SimpleQueue()
        self.text = tk.Text(self, width=64, height=16, wrap="word", state="disabled")
        self.status, self.input = tk.Label(self, anchor="w"), tk.Entry(self)
        for part in (self.text, self.status, self.input):
            part.pack(fill="both", expand=part is self.text, padx=6, pady=3)
        for name, call in (("Stop", self.stop), ("New window", lambda: open_window(root, engine))):
            tk.Button(self, text=name, command=call).pack(side="left", padx=6, pady=6)
        self.input.bind("<Return>", lambda event: self.ask())
        self.protocol("WM_DELETE_WINDOW", self.close)
        self.input.focus()

    def ask(self):
        question = self.input.get().strip()
        if question and (not self.reply or self.reply.done()):
            self.input.delete(0, "end")
            self.pieces.put((f"> {question}\n", "…"))
            self.cancel = Cancel(leave)  # which ends when `leave` does
            self.reply = pool.submit(write, self.engine, question, self.cancel, self.pieces.put)

    def stop(self):
        self.cancel.cancel()

    def look(self):
        """Draws at once what has come: piece by piece, a fast model would keep the window busy."""
        if pieces := [self.pieces.get() for _ in range(self.pieces.qsize())]:
            self.text["state"] = "normal"
            self.text.insert("end", "".join(text for text, _ in pieces))
            self.text["state"] = "disabled"
            self.text.see("end")
            self.status["text"] = pieces[-1][1]

    def close(self):
        self.stop()
        windows.remove(self)
        self.destroy()
        if not windows:
            self.master.destroy()  # which ends mainloop


def open_window(root, engine):
    windows.append(Window(root, engine))


def look(root):
    for window in windows:
        window.look()
    root.after(16, look, root)  # ms


def main():
    root = tk.Tk()
    root.withdraw()  # the conversations are windows of their own
    path = sys.argv[1] if sys.argv[1:] else embedded_model()
    open_window(root, pool.submit(Engine, path, cache, cancel=leave))
    look(root)
    root.mainloop()
    leave.cancel()  # ends the replies, and the loading of the model
    pool.shutdown()


if __name__ == "__main__":
    freeze_support()
    main()
