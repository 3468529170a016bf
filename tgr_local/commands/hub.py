"""The files of a repository on the Hugging Face hub, and the errors of its client in one sentence.

`huggingface_hub` is imported on use, so that nothing here connects unless a download is asked for.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.options import model_files, model_names
from tgr_local.options.model_parts import is_later_part
from tgr_local.system.errors import InstallError, TgrError

TIMEOUT = 30.0  # seconds to connect, and between two bytes
_MAX_NAMES = 20  # file names in a message
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class Remote:
    """A file of a repository at one commit."""

    repo: str
    name: str
    url: str
    size: int
    sha256: str


def files(name: str) -> list[Remote]:
    """The files that ``OWNER/REPO``, ``OWNER/REPO:QUANTIZATION`` or ``OWNER/REPO/FILE.gguf`` names,
    or the address of a page or a file: one, or the parts of one model.

    Raises ValueError for a malformed or ambiguous name, TgrError if the hub does not answer or does
    not have the model.
    """
    named = model_names.at_hub(name)
    if named is None:
        meant = model_names.pull_name(name)
        example = meant if " " not in meant else "Qwen/Qwen3-0.6B-GGUF:Q8_0"
        raise ValueError(
            f"{name!r} is not the name of a model; write OWNER/REPO:QUANTIZATION, such as {example}"
        )
    repo, quantization, file = named.repo, named.quantization, named.file
    listed = _list_files(repo)
    if not listed:
        raise TgrError(f"{repo} has no GGUF file; look for a repository with GGUF in its name")
    matching = [remote for remote in listed if _matches(remote.name, quantization, file)]
    if len({_PART.sub("", r.name) for r in matching}) != 1:
        names = [_PART.sub(".gguf", r.name) for r in listed if not is_later_part(Path(r.name))]
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        problem = "several models" if matching else f"no {quantization or file}"
        raise ValueError(
            f"{repo} has {problem}; name one of its files as {repo}/FILE: "
            f"{', '.join(names[:_MAX_NAMES])}{more}"
        )
    _check_listing(matching, file)
    return matching


def _check_listing(files: list[Remote], file: str | None) -> None:
    """Raises TgrError unless the hub lists size and sha256 of each file, and every part."""
    for remote in files:
        sized = isinstance(remote.size, int) and remote.size > 0
        if not sized or not re.fullmatch("[0-9a-f]{64}", remote.sha256):
            raise TgrError(
                f"{remote.repo} does not give size and sha256 of {remote.name}, so the download "
                "could not be verified; download it by other means"
            )
    parts = sorted((int(p[1]), int(p[2])) for r in files if (p := _PART.search(r.name)))
    wanted = [(number, len(parts)) for number in range(1, len(parts) + 1)]
    if parts != wanted and file not in {remote.name for remote in files}:
        first = files[0]
        raise TgrError(
            f"{first.repo} has {len(parts)} parts of {_PART.sub('.gguf', first.name)}, but some "
            "are missing; name another file"
        )


def _matches(name: str, quantization: str | None, file: str | None) -> bool:
    if file is not None:
        return name == file or _PART.sub(".gguf", name) == file
    return model_files.has_quantization(name, quantization)


def _list_files(repo: str) -> list[Remote]:
    hub = client()
    api = hub.HfApi()
    try:
        info = api.model_info(repo, files_metadata=True, timeout=TIMEOUT)
        return [
            Remote(
                repo,
                file.rfilename,
                hub.hf_hub_url(repo, file.rfilename, revision=info.sha),
                file.size,
                str(file.lfs.sha256).lower() if file.lfs else "",
            )
            for file in info.siblings or ()
            if _is_model(file.rfilename)
        ]
    except Exception as error:
        raise failure(error, f"{api.endpoint}/{repo}") from None


def _is_model(name: str) -> bool:
    """Whether a file of a repository is a model with a printable, visible name."""
    parts = name.split("/")
    plain = name.isprintable() and not any(part.startswith(".") for part in parts)
    return plain and name.lower().endswith(".gguf") and "mmproj" not in name


def client() -> Any:
    """The package huggingface_hub. Raises InstallError if it is not installed."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InstallError(
            "downloading a model needs huggingface_hub; run: pip install 'tgr-local[hub]'"
        ) from None
    return huggingface_hub


def _http() -> Any:
    """The HTTP library that huggingface_hub uses."""
    return importlib.import_module(type(client().get_session()).__module__.partition(".")[0])


def http_errors() -> tuple[type[Exception], ...]:
    """Errors that a request can raise."""
    http = _http()
    return (client().errors.HfHubHTTPError, http.HTTPError, http.StreamError, http.InvalidURL)


def is_transient(error: Exception) -> bool:
    """Whether another request may succeed."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    broken = isinstance(error, _http().TransportError | _http().StreamError)
    return broken or status in (408, 429) or status >= 500


def failure(error: Exception, url: str) -> TgrError:
    """The error for a refusal of the hub."""
    errors = client().errors
    if isinstance(error, errors.GatedRepoError):
        text = "requires that you accept its terms: accept them there, and set HF_TOKEN"
    elif isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        text = "does not exist, or is private; for a private one set HF_TOKEN"
    elif isinstance(error, errors.OfflineModeIsEnabled):
        text = "cannot be reached: HF_HUB_OFFLINE is set"
    else:
        why = next(iter(str(error).splitlines()), "") if isinstance(error, http_errors()) else ""
        why = re.sub(r"^\[Errno -?\d+\] ", "", why).rstrip(".") or repr(error)
        mirror = ", or correct HF_ENDPOINT" if os.environ.get("HF_ENDPOINT") else ""
        text = f"cannot be read: {why}; try again later{mirror}"
        if isinstance(error, _http().ConnectError | _http().ConnectTimeout):
            text = f"cannot be reached: {why}; check the network, or try again later{mirror}"
    return TgrError(f"{url} {text}")
