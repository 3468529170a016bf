"""Fetches a GGUF from the Hugging Face hub, only ever on an explicit request.

huggingface_hub answers what a repository holds and who may read it. The file comes by Range
requests into a ``.part`` beside its place, so that a broken download goes on where it stopped; it
gets its name only when its sha256 is right. The library's own download is not used: it checks no
sha256, takes more than was promised, waits for a drip, and writes over what is there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from tgr_local.console.progress import ProgressLine
from tgr_local.errors import InstallError, TgrError
from tgr_local.models import library
from tgr_local.system.paths import private

TRIES = 5  # in a row that bring too little
TIMEOUT = 30.0  # seconds without a byte, or for a connection
LEAST, WINDOW = 1 << 16, 60.0  # bytes that a request brings in so many seconds, or it is given up
_BLOCK = 1 << 20
_SHOWN = 20  # file names in a message
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

Tell = Callable[[int, int], None]
"""Hears how many bytes are there, and how many of them just came."""


@dataclass(frozen=True)
class Remote:
    """A file of a repository, at one commit."""

    repo: str
    name: str
    url: str
    size: int
    sha256: str


def files(name: str) -> list[Remote]:
    """The files that ``OWNER/REPO``, ``OWNER/REPO:QUANTIZATION`` or ``OWNER/REPO/FILE.gguf`` names:
    one, or the parts of one model.

    ValueError for a name of another shape or one that leaves a choice, TgrError when the hub does
    not answer or has no such thing.
    """
    match = re.fullmatch(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+)|/([\w./-]+\.gguf))?", name)
    if match is None:
        raise ValueError(
            f"{name!r} names no model; write OWNER/REPO:QUANTIZATION, such as "
            "Qwen/Qwen3-0.6B-GGUF:Q8_0"
        )
    repo, quantization, file = match.groups()
    there = _listed(repo)
    if not there:
        raise TgrError(f"{repo} holds no GGUF file; look for one with GGUF in its name")
    found = [r for r in there if _is(r.name, quantization, file)]
    if len({_PART.sub("", r.name) for r in found}) != 1:
        names = [_PART.sub(".gguf", r.name) for r in there if not _is_later(r.name)]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        what = "several models" if found else f"no {quantization or file}"
        raise ValueError(
            f"{repo} has {what}; name one of its files as {repo}/FILE: "
            f"{', '.join(names[:_SHOWN])}{more}"
        )
    _check_listing(found, file)
    return found


def _check_listing(found: list[Remote], file: str | None) -> None:
    """TgrError unless the hub lists all that must be known of these files, and every part."""
    for remote in found:
        sized = isinstance(remote.size, int) and remote.size > 0
        if not sized or not re.fullmatch("[0-9a-f]{64}", remote.sha256):
            raise TgrError(
                f"{remote.repo} does not give size and sha256 of {remote.name}, so what comes "
                "could not be checked; fetch it by other means"
            )
    parts = sorted((int(p[1]), int(p[2])) for r in found if (p := _PART.search(r.name)))
    wanted = [(number, len(parts)) for number in range(1, len(parts) + 1)]
    if parts != wanted and file not in {remote.name for remote in found}:
        first = found[0]
        raise TgrError(
            f"{first.repo} has {len(parts)} parts of {_PART.sub('.gguf', first.name)}, which are "
            "not all of it; name another file"
        )


def pull(name: str, to: str | None = None) -> list[dict[str, Any]]:
    """Fetches what `name` names to the folder `to`, else to that of the models, and says on stderr
    how far it is. Returns path, size and sha256 of each file; errors as `files` and `fetch`."""
    done = []
    for remote in files(name):
        folder = library.folder() / remote.repo if to is None else Path(to).expanduser()
        target = folder / Path(remote.name).name
        _fetch_aloud(remote, target)
        done.append({"path": str(target), "bytes": remote.size, "sha256": remote.sha256})
    return done


def _fetch_aloud(remote: Remote, target: Path) -> None:
    start, n_bytes = time.monotonic(), 0

    def tell(have: int, fresh: int) -> None:
        nonlocal n_bytes
        n_bytes += fresh
        speed = n_bytes / max(time.monotonic() - start, 1e-3)
        status.line = (
            f"{target.name}: {have / remote.size:.0%} of {library.size(remote.size)}, "
            f"{library.size(int(speed))}/s"
        )

    doing = "checking what is there" if target.exists() else "asking"
    with ProgressLine(f"{target.name}: {doing}") as status:
        fetch(remote, target, tell)


def _is(name: str, quantization: str | None, file: str | None) -> bool:
    if file is not None:
        return name == file or _PART.sub(".gguf", name) == file
    if quantization is None:
        return True
    wanted = re.escape(quantization)
    return re.search(rf"(?<![A-Za-z0-9]){wanted}(?![A-Za-z0-9_])", name, re.I) is not None


def _is_later(name: str) -> bool:
    part = _PART.search(name)
    return part is not None and int(part[1]) > 1


def _listed(repo: str) -> list[Remote]:
    hub = _hub()
    api = hub.HfApi()
    try:
        info = api.model_info(repo, files_metadata=True, timeout=TIMEOUT)
        return [
            Remote(
                repo,
                one.rfilename,
                hub.hf_hub_url(repo, one.rfilename, revision=info.sha),
                one.size,
                str(one.lfs.sha256).lower() if one.lfs else "",
            )
            for one in info.siblings or ()
            if _is_model(one.rfilename)
        ]
    except Exception as error:
        raise _failure(error, f"{api.endpoint}/{repo}") from None


def _is_model(name: str) -> bool:
    """Whether a file of a repository is a model, under a name that can be written and shown."""
    parts = name.split("/")
    plain = name.isprintable() and not any(part.startswith(".") for part in parts)
    return plain and name.endswith(".gguf") and "mmproj" not in name


def fetch(remote: Remote, target: Path, tell: Tell = lambda have, fresh: None) -> bool:
    """Fetches a file, or the rest of it, to `target`; False if it is there already.

    TgrError when another file is there, the disk is full, the connection stays broken, or what came
    is not what was promised.
    """
    if os.path.lexists(target):
        _check_same(remote, target)
        return False
    # the name says which version it is a part of
    part = private(target).with_name(f"{target.name}.{remote.sha256[:12]}.part")
    with _opened(part) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TgrError(f"{part} is being fetched by another process; wait for it") from None
        if file.tell() > remote.size:
            _empty(file)
        _check_room(remote, target, file.tell())
        _fill(remote, file, tell)
        os.fsync(file.fileno())
        if _sha256(part) != remote.sha256:
            part.unlink()
            raise TgrError(f"{remote.url} came with a wrong sha256 and was deleted; try again")
        os.replace(part, target)
    return True


def _check_same(remote: Remote, target: Path) -> None:
    """TgrError unless what lies at `target`, which is the user's, is what the hub has."""
    if not target.is_file():
        found, wanted = "it is no file", "one"
    elif (size := target.stat().st_size) != remote.size:
        found, wanted = f"it has {size} bytes", str(remote.size)
    elif (sha256 := _sha256(target)) != remote.sha256:
        found, wanted = f"its sha256 is {sha256}", remote.sha256
    else:
        return
    raise TgrError(
        f"{target} is there, but {found}, not {wanted} as {remote.repo} says; move it away, or "
        "name another folder with --to"
    )


def _opened(part: Path) -> FileIO:
    """The file for what comes, at its end. TgrError for a link, a pipe or a device: what is written
    there would go elsewhere."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = FileIO(part, "a", opener=lambda name, _: os.open(name, flags, 0o666))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise TgrError(f"{part} is no file of its own; remove it") from None
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        file.close()
        raise TgrError(f"{part} is no file of its own; remove it")
    return file


def _check_room(remote: Remote, target: Path, have: int) -> None:
    needed, free = remote.size - have, shutil.disk_usage(target.parent).free
    if needed > free:
        raise TgrError(
            f"{target.name} needs {library.size(needed)} more, but {target.parent} has "
            f"{library.size(free)} free; make room or name another folder with --to"
        )


def _fill(remote: Remote, file: FileIO, tell: Tell) -> None:
    """Appends what is missing, with a new request whenever the connection breaks or stalls."""
    tries = 0
    while (have := file.tell()) < remote.size:
        reason = "too little came"
        try:
            _request(remote, file, tell)
        except _http_errors() as error:
            if not _may_pass(error):
                raise _failure(error, remote.url) from None
            reason = str(error) or type(error).__name__
        tries = 0 if file.tell() - have >= LEAST else tries + 1
        if tries == TRIES and file.tell() < remote.size:
            raise TgrError(
                f"the connection to {remote.url} broke at {file.tell()} of {remote.size} bytes: "
                f"{reason}; the same command goes on from there"
            )
        if tries:
            time.sleep(0.2 * 2**tries)


def _request(remote: Remote, file: FileIO, tell: Tell) -> None:
    """Appends what one request brings, until it brings too little."""
    hub, have = _hub(), file.tell()
    headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with hub.get_session().stream(
        "GET", remote.url, headers=headers, follow_redirects=True, timeout=TIMEOUT
    ) as response:
        if response.status_code == 416:  # it has less than it promised, or another file
            _empty(file)
            return
        hub.utils.hf_raise_for_status(response)
        there = response.headers.get("Content-Range", "")
        if response.status_code == 206 and not there.startswith(f"bytes {have}-"):
            raise TgrError(f"{remote.url} answers for other bytes than were asked for; try again")
        if have and response.status_code != 206:  # it cannot go on: from the beginning
            _empty(file)
        mark, since = file.tell(), time.monotonic()
        for block in response.iter_bytes():
            if file.tell() + len(block) > remote.size:
                _empty(file)
                raise TgrError(f"{remote.url} sent more than its {remote.size} bytes; try again")
            _write(file, block)
            tell(file.tell(), len(block))
            if time.monotonic() - since > WINDOW:
                if file.tell() - mark < LEAST:
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
            f"{file.name} cannot be written at {file.tell()} bytes: {error.strerror}; make room, "
            "and the same command goes on from there"
        ) from None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _hub() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InstallError(
            "fetching a model needs huggingface_hub; run: pip install 'tgr-local[hub]'"
        ) from None
    return huggingface_hub


def _http() -> Any:
    """The library that the hub's client is of."""
    return importlib.import_module(type(_hub().get_session()).__module__.partition(".")[0])


def _http_errors() -> tuple[type[Exception], ...]:
    http = _http()
    return (_hub().errors.HfHubHTTPError, http.HTTPError, http.StreamError, http.InvalidURL)


def _may_pass(error: Exception) -> bool:
    """Whether another request may not meet this error."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    broken = isinstance(error, _http().TransportError | _http().StreamError)
    return broken or status in (408, 429) or status >= 500


def _failure(error: Exception, url: str) -> TgrError:
    """What the hub's refusal means for a person."""
    errors = _hub().errors
    if isinstance(error, errors.GatedRepoError):
        text = "is open only to those who accepted its terms: accept them there, and set HF_TOKEN"
    elif isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        text = "does not exist, or is private: then set HF_TOKEN"
    elif isinstance(error, errors.OfflineModeIsEnabled):
        text = "is out of reach: HF_HUB_OFFLINE is set"
    else:
        why = next(iter(str(error).splitlines()), "") if isinstance(error, _http_errors()) else ""
        text = f"cannot be read: {why or repr(error)}; try again later"
    return TgrError(f"{url} {text}")
