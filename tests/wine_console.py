"""Runs on Windows: a program on a console of its own, which has no window.

``python wine_console.py CODE_PAGE UNTIL WORDS...`` presses Ctrl-C once the console shows what fits
the pattern (empty = never), prints what it shows at the end, and ends with the program's exit code.
"""

from __future__ import annotations

import ctypes
import msvcrt
import os
import re
import subprocess
import sys
import time
from ctypes import wintypes

HANG = 100
INSIDE = "TGR_TEST_INSIDE"  # set for the process that has the console
KERNEL = ctypes.WinDLL("kernel32")


class Screen(ctypes.Structure):
    """CONSOLE_SCREEN_BUFFER_INFO."""

    _fields_ = (
        ("size", wintypes._COORD), ("cursor", wintypes._COORD), ("attributes", wintypes.WORD),
        ("window", wintypes.SMALL_RECT), ("largest", wintypes._COORD),
    )  # fmt: skip


def shown(handle: wintypes.HANDLE) -> str:
    """The lines down to the cursor."""
    screen, n = Screen(), wintypes.DWORD()
    KERNEL.GetConsoleScreenBufferInfo(handle, ctypes.byref(screen))
    lines = []
    for row in range(screen.cursor.Y + 1):
        line = ctypes.create_unicode_buffer(screen.size.X + 1)
        place = wintypes._COORD(0, row)
        KERNEL.ReadConsoleOutputCharacterW(handle, line, screen.size.X, place, ctypes.byref(n))
        lines.append(line.value)
    # a full line goes on in the next one
    whole = (line if line[-1] != " " else f"{line.rstrip()}\n" for line in lines if line.strip())
    return "".join(whole)


def main(code_page: str, until: str, *words: str) -> None:
    KERNEL.SetConsoleCP(int(code_page))
    KERNEL.SetConsoleOutputCP(int(code_page))
    keyboard, screen = (os.open(name, os.O_RDWR | os.O_BINARY) for name in ("CONIN$", "CONOUT$"))
    process = subprocess.Popen(words, stdin=keyboard, stdout=screen, stderr=screen)
    KERNEL.SetConsoleCtrlHandler(None, True)  # Ctrl-C is for the program alone
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(screen))
    while until and process.poll() is None:
        if re.search(until, shown(handle)):
            KERNEL.GenerateConsoleCtrlEvent(0, 0)
            break
        time.sleep(0.1)
    try:
        process.wait(HANG)
    finally:
        process.kill()
    sys.stdout.buffer.write(shown(handle).encode())
    sys.exit(process.returncode)


if __name__ == "__main__":
    if INSIDE in os.environ:
        main(*sys.argv[1:])
    else:
        flags, quiet = subprocess.CREATE_NO_WINDOW, subprocess.DEVNULL
        os.environ[INSIDE] = "1"
        done = subprocess.run(
            [sys.executable, *sys.argv], creationflags=flags, stdin=quiet, capture_output=True
        )
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        sys.exit(done.returncode)
