"""Downloads a model file from the Hugging Face hub.

The file comes by Range requests into a ``.part`` file next to its destination, so that an
interrupted download can be resumed, and gets its name only after its sha256 is verified.

Why not `hf_hub_download`: version 2.4 deletes a partial file on every failure, so the same command
starts from zero; it checks the size but no sha256, and that only after the whole stream is written;
it waits for a connection that sends a byte now and then, and it replaces a file that is there.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from tgr_local.commands import hub
from tgr_local.commands.hub import Remote
from tgr_local.options import model_files
from tgr_local.system import file_hash, files
from tgr_local.system.errors import TgrError
from tgr_local.system.paths import expanded, private
from tgr_local.system.progress import ProgressLine

TRIES = 5  # requests in a row that each bring fewer than MIN_BYTES
MIN_BYTES, WINDOW = 1 << 16, 60.0  # a request that brings fewer bytes in that many seconds is ended

OnProgress = Callable[[int, int], None]
"""Function that is called with the bytes of the file so far, and those of them that are new."""


def pull(name: str, to: str | None = None) -> list[dict[str, Any]]:
    """Downloads the files of `name` to the folder `to`, by default that of the models, with a
    progress line on stderr.

    Returns path, size and sha256 of each file. Raises as `hub.files` and `fetch` do.
    """
    downloaded = []
    for remote in hub.files(name):
        folder = model_files.folder() / remote.repo if to is None else expanded("to", to)
        target = folder / Path(remote.name).name
        _fetch_with_progress(remote, target)
        downloaded.append({"path": str(target), "bytes": remote.size, "sha256": remote.sha256})
    return downloaded


def _fetch_with_progress(remote: Remote, target: Path) -> None:
    start, n_bytes = time.monotonic(), 0

    def on_progress(have: int, new: int) -> None:
        nonlocal n_bytes
        n_bytes += new
        speed = n_bytes / max(time.monotonic() - start, 1e-3)
        progress.line = (
            f"{target.name}: {have / remote.size:.0%} of {model_files.size(remote.size)}, "
            f"{model_files.size(int(speed))}/s"
        )

    doing = "verifying the file" if target.exists() else "connecting"
    with ProgressLine(f"{target.name}: {doing}") as progress:
        fetch(remote, target, on_progress)


def fetch(remote: Remote, target: Path, on_progress: OnProgress = lambda have, new: None) -> bool:
    """Downloads a file, or the rest of it, to `target`; False if the same file is there already.

    Raises TgrError if another file is there, the disk is full, the connection stays broken, or the
    download differs from what the hub lists.
    """
    if os.path.lexists(target):
        _check_same(remote, target)
        return False
    # the name has the version, so that parts of two versions do not mix
    part = private(target).with_name(f"{target.name}.{remote.sha256[:12]}.part")
    with _open(part) as file:
        try:
            files.lock(file.fileno())
        except BlockingIOError:
            raise TgrError(f"{part} is being downloaded by another process; wait for it") from None
        if file.tell() > remote.size:
            _empty(file)
        _check_space(remote, target, file.tell())
        _fill(remote, file, on_progress)
        os.fsync(file.fileno())
        if os.name == "nt":  # which neither renames nor removes an open file
            file.close()
        if file_hash.read(part) != remote.sha256:
            part.unlink()
            raise TgrError(f"{remote.url} has a wrong sha256 and was deleted; try again")
        os.replace(part, target)
    return True


def _check_same(remote: Remote, target: Path) -> None:
    """Raises TgrError unless the file at `target`, which may be the user's own, is the hub's."""
    if not target.is_file():
        actual, wanted = "it is not a file", "one"
    elif (size := target.stat().st_size) != remote.size:
        actual, wanted = f"it has {size} bytes", str(remote.size)
    elif (sha256 := file_hash.read(target)) != remote.sha256:
        actual, wanted = f"its sha256 is {sha256}", remote.sha256
    else:
        return
    raise TgrError(
        f"{target} exists, but {actual}, not {wanted} as {remote.repo} says; move it away, or "
        "name another folder with --to"
    )


def _open(part: Path) -> FileIO:
    """The partial file, open for appending. Raises TgrError for a link, a pipe or a device, since
    writing to it would change something else."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | files.NOFOLLOW | files.NONBLOCK
    try:
        file = FileIO(part, "a", opener=lambda name, _: os.open(name, flags, 0o666))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise TgrError(f"{part} is not a plain file; remove it") from None
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        file.close()
        raise TgrError(f"{part} is not a plain file; remove it")
    return file


def _check_space(remote: Remote, target: Path, have: int) -> None:
    needed, free = remote.size - have, shutil.disk_usage(target.parent).free
    if needed > free:
        raise TgrError(
            f"{target.name} needs {model_files.size(needed)} more, but {target.parent} has "
            f"{model_files.size(free)} free; free some space or name another folder with --to"
        )


def _fill(remote: Remote, file: FileIO, on_progress: OnProgress) -> None:
    """Appends the missing bytes, with a new request whenever the connection breaks or stalls."""
    tries = 0
    while (have := file.tell()) < remote.size:
        reason = "too few bytes came"
        try:
            _request(remote, file, on_progress)
        except hub.http_errors() as error:
            if not hub.is_transient(error):
                raise hub.failure(error, remote.url) from None
            reason = str(error) or type(error).__name__
        tries = 0 if file.tell() - have >= MIN_BYTES else tries + 1
        if tries == TRIES and file.tell() < remote.size:
            raise TgrError(
                f"the connection to {remote.url} broke at {file.tell()} of {remote.size} bytes: "
                f"{reason}; the same command resumes from there"
            )
        if tries:
            time.sleep(0.2 * 2**tries)


def _request(remote: Remote, file: FileIO, on_progress: OnProgress) -> None:
    """Appends the bytes of one request; ends it early if they come too slowly."""
    client, have = hub.client(), file.tell()
    headers = {**client.utils.build_hf_headers(), "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.get_session().stream(
        "GET", remote.url, headers=headers, follow_redirects=True, timeout=hub.TIMEOUT
    ) as response:
        if response.status_code == 416:  # the file is shorter than listed, or another one
            _empty(file)
            return
        client.utils.hf_raise_for_status(response)
        range_sent = response.headers.get("Content-Range", "")
        if response.status_code == 206 and not range_sent.startswith(f"bytes {have}-"):
            raise TgrError(f"{remote.url} sent other bytes than requested; try again")
        if have and response.status_code != 206:  # no support for ranges: from the beginning
            _empty(file)
        mark, since = file.tell(), time.monotonic()
        for block in response.iter_bytes():
            if file.tell() + len(block) > remote.size:
                _empty(file)
                raise TgrError(f"{remote.url} sent more than its {remote.size} bytes; try again")
            _write(file, block)
            on_progress(file.tell(), len(block))
            if time.monotonic() - since > WINDOW:
                if file.tell() - mark < MIN_BYTES:
                    return
                mark, since = file.tell(), time.monotonic()


def _empty(file: FileIO) -> None:
    file.truncate(0)
    file.seek(0)


def _write(file: FileIO, block: bytes) -> None:
    try:
        while block:
            block = block[file.write(block) :]
    except OSError as error:
        raise TgrError(
            f"{file.name} cannot be written at {file.tell()} bytes: {error.strerror}; free some "
            "space, and the same command resumes from there"
        ) from None
