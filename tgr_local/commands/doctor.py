"""Checks of the installation, the machine and the model.

`examine` tries each part and reports findings; it raises nothing: an error is a finding too.
"""

from __future__ import annotations

import collections
import dataclasses
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tgr_local.options import model_files, settings
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.system import cores
from tgr_local.system.errors import InstallError, TgrError, describe
from tgr_local.system.sanitize import printable_json, printable_line
from tgr_local.system.versions import instructions, versions

if TYPE_CHECKING:
    from tgr_local.engine import Engine

SAMPLE = "What is 3 + 14? Think, then answer.\n"
VECTORS = {"avx2": "AVX2", "avx512f": "AVX512"}  # Linux's name → ggml's


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    status: Literal["ok", "warning", "broken"]
    detail: str


def examine(model: str | None, config: EngineConfig) -> Iterator[Finding]:
    """Checks everything that a reply of this model needs, one finding at a time."""
    yield from _try("versions", _versions)
    yield from _try("settings", _settings)
    yield from _try("machine", lambda: _machine(config))
    yield from _try("sandbox", _sandbox)
    yield from _try("devices", _devices)
    yield from _try("model", lambda: _model(model, config))


def run(model: str | None, config: EngineConfig, as_json: bool) -> int:
    """Prints the findings as they come, warnings and failures marked, or as one JSON list; 1 if one
    prevents replies."""
    findings = []
    for finding in examine(model, config):
        findings.append(finding)
        if not as_json:
            mark = {"ok": "  ", "warning": "! ", "broken": "X "}[finding.status]
            label = "" if finding.status == "ok" else f"{finding.status.upper()}: "
            name, detail = printable_line(finding.name), printable_line(finding.detail)
            print(f"{mark}{name:16}  {label}{detail}", flush=True)
    if as_json:
        print(printable_json([dataclasses.asdict(finding) for finding in findings]))
    return int(any(finding.status == "broken" for finding in findings))


def _try(name: str, part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from part()
    except Exception as error:
        yield Finding(name, "broken", describe(error))


def _versions() -> Iterator[Finding]:
    for package, version in versions().items():
        missing = version == "not installed"
        yield Finding(package, "broken" if missing else "ok", version)


def _settings() -> Iterator[Finding]:
    read = ", ".join(map(str, settings.files()))
    none = f"no file at {settings.user_file()} or ./{settings.PROJECT_FILE}"
    yield Finding("settings", "ok", read or none)


def _machine(config: EngineConfig) -> Iterator[Finding]:
    yield Finding("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    from tgr_local.engine.installation import ggml_build, processor_features, products

    features = processor_features()
    yield Finding("cpu", "ok", f"{_cores()}; {', '.join(features)}")
    if warning := _unused_instructions(features):
        yield Finding("cpu", "warning", warning)
    yield from _vulkan(config)
    yield Finding("ggml", "ok", ggml_build())
    yield Finding("products", "ok", products())


def _vulkan(config: EngineConfig) -> Iterator[Finding]:
    from tgr_local.engine import vulkan

    if not vulkan.library().is_file():
        return
    if config.n_gpu_layers == 0:
        yield Finding("vulkan", "ok", "not asked: n_gpu_layers is 0")
        return
    vulkan.name(config.device)
    answer = vulkan.answer(again=True)
    vulkan.load()
    used = f"used: {' and '.join(answer.devices)}" if answer.devices else ""
    yield Finding("vulkan", "warning" if answer.is_broken else "ok", used or answer.reason)


def _cores() -> str:
    """``8 cores, of which a CPU quota gives the time of 1.5 (/sys/fs/cgroup/cpu.max)``."""
    n = len(cores.allowed())
    text = f"{n} core{'s' * (n != 1)}"
    limit = cores.quota()
    if limit is None or limit.cores >= n:
        return text
    return f"{text}, of which a CPU quota gives the time of {limit.cores:.3g} ({limit.file})"


def _unused_instructions(used: list[str]) -> str | None:
    """Names why ggml computes more slowly than this processor can; None if it does not."""
    from tgr_local.engine.installation import fits_every_processor, ggml_package, rebuild

    if fits_every_processor():
        return None
    unused = [name for flag, name in VECTORS.items() if flag in instructions() and name not in used]
    if not unused:
        return None
    return (
        f"this processor has {' and '.join(unused)}, but the installed {ggml_package()} is built "
        "without, so it computes more slowly; if it was built on another machine, or with "
        f"SOURCE_DATE_EPOCH set, build it here: {rebuild('GGML_NATIVE')}"
    )


def _sandbox() -> Iterator[Finding]:
    from tgr_local.system.sandbox import backends, commands

    try:
        backends.check_system("eval --allow-exec")
    except InstallError as error:
        yield Finding("sandbox", "warning", str(error))
        return
    best = backends.DEFAULT
    if not (why := commands.defect(best)):
        yield Finding(
            "sandbox", "ok", f"code and eval --allow-exec use {best}: {backends.ISOLATION[best]}"
        )
        return
    choices = " or ".join(
        f"--sandbox {kind}: {backends.ISOLATION[kind]}"
        for kind in backends.CHOICES
        if kind == backends.NONE or not commands.defect(kind)
    )
    detail = f"eval --allow-exec needs {best}, which does not work here ({why}); else {choices}"
    yield Finding("sandbox", "warning", detail)


def _devices() -> Iterator[Finding]:
    from tgr_local.engine import backend_devices

    n_seen: collections.Counter[str] = collections.Counter()
    for device in backend_devices():
        memory = f"{device.memory_free / 2**30:.1f} of {device.memory_total / 2**30:.1f} GiB free"
        kind = device.kind
        if kind in ("gpu", "igpu"):
            kind = f"{kind} {n_seen[kind]}"  # its number for --device
            n_seen[device.kind] += 1
        yield Finding(f"device {device.name}", "ok", f"{kind}, {device.description}, {memory}")


def _model(model: str | None, config: EngineConfig) -> Iterator[Finding]:
    from tgr_local.engine import Engine
    from tgr_local.engine.installation import gpu_devices, layers_in_ram, slow_cache, unused_gpu
    from tgr_local.engine.native import waiting

    path = model_files.model_file(model)
    with Engine(path, config) as engine:
        size = f"{engine.size_bytes / 2**20:.1f} MiB"
        yield Finding("model", "ok", f"{path}: {engine.description}, {size}")
        for adapter in engine.adapters:
            size = f"{adapter.path.stat().st_size / 2**20:.1f} MiB"
            yield Finding("adapter", "ok", f"{adapter.path}: scale {adapter.scale:g}, {size}")
        *layers, output = engine.devices()
        counts = collections.Counter(layers).items()
        where = ", ".join(f"{n} on {device}" for device, n in counts)
        why = "" if gpu_devices() else "; ggml sees no GPU"
        if note := layers_in_ram(engine):
            why = f"; {note}"
        if config.n_gpu_layers == 0:
            why = "; n_gpu_layers is 0"
        if config.device:
            why = f"; device is {config.device!r}"
        yield Finding("layers", "ok", f"{where}; output on {output}{why}")
        if warning := unused_gpu(engine):
            yield Finding("gpu", "warning", warning)
        if warning := slow_cache(engine):
            yield Finding("cache", "warning", warning)
        adapts = engine.n_threads > 1 and not engine.config.n_threads and sys.platform == "linux"
        fewer = ", fewer while other programs want the cores" if adapts else ""
        computing = f"{engine.n_threads} for computation{fewer}; waiting threads: {waiting()}"
        yield Finding("threads", "ok", computing)
        same = "the same seed repeats a text, whatever else runs"
        rounds = (
            "other texts of a batch may change how a text is rounded, and so the text; on a CPU "
            "--reproducible prevents it"
        )
        repeats = engine.repeats or config.reproducible
        yield Finding("repeats", "ok", same if repeats else rounds)
        cells = f"{config.n_ctx} cells" if config.n_ctx else "grows as needed"
        context = f"trained with {engine.n_ctx_train} tokens; cache: {cells}"
        yield Finding("context", "ok", f"{context}; {engine.n_seq_max} sequences at a time")
        if engine.pooling:
            kind = "scores of documents" if engine.pooling == "rank" else "embeddings"
            yield Finding("pooling", "ok", f"{engine.pooling}: it makes {kind}, and writes no text")
            yield from _try("tokenizer", lambda: _tokenizer(engine))
            return
        yield from _try("strength", lambda: _strength(engine))
        yield from _try("tokenizer", lambda: _tokenizer(engine))
        yield from _try("generation", lambda: _generation(engine))


def _strength(engine: Engine) -> Iterator[Finding]:
    from tgr_local.generation import advised, known_strength, needs_strength

    config = advised(engine)
    if needs_strength(config):
        measured = known_strength(engine, config)
        by = f"{measured}, measured for this model in {measured.seconds:.0f} s" if measured else ""
        yield Finding("strength", "ok", by or "not measured yet; the first search does it, once")


def _tokenizer(engine: Engine) -> Iterator[Finding]:
    tokens = engine.tokenize(SAMPLE)
    text = engine.detokenize(tokens).decode("utf-8", "replace")
    if text.strip() != SAMPLE.strip():
        raise TgrError(f"{SAMPLE!r} becomes {text!r} when it is tokenized and detokenized")
    detail = f"{engine.n_vocab} tokens; a sample of {len(tokens)} decodes to its own text"
    yield Finding("tokenizer", "ok", detail)


def _generation(engine: Engine) -> Iterator[Finding]:
    from tgr_local.generation import generate

    config = SearchConfig(max_tokens=32, temperature=0.0)
    reply = generate(engine, SAMPLE, config, method="base", raw=True)
    speed = (
        f"{reply.n_tokens} tokens in {reply.seconds:.2f} s, {reply.tokens_per_second:.1f} tokens/s"
    )
    yield Finding("generation", "ok", speed)
