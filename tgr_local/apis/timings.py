"""``timings`` and ``prompt_progress`` as llama-server has them."""

from __future__ import annotations

from tgr_local.apis.events import JsonObject
from tgr_local.engine import Engine
from tgr_local.generation import Progress, Reply


def timings(engine: Engine, reply: Reply | None, n_prompt: int) -> JsonObject:
    """How long reading the prompt took, without what was in the cache, and writing the reply."""
    tokens = reply.tokens if reply else []
    n_predicted = len(tokens) - bool(tokens and tokens[-1] in engine.end_tokens)
    n_cached = reply.steps[0].counts.reused if reply and reply.steps else 0
    reading = reply.reading_seconds if reply else 0.0
    writing = reply.seconds - reading if reply else 0.0
    return {
        "cache_n": n_cached,
        **_rate("prompt", n_prompt - n_cached, reading),
        **_rate("predicted", n_predicted, writing),
    }


def prompt_progress(progress: Progress, seconds: float) -> JsonObject:
    """How much of a prompt is in the cache after that many seconds; what was there before is known
    once all is."""
    return {
        "total": progress.n_query,
        "cache": progress.n_reused,
        "processed": progress.n_read,
        "time_ms": round(1000 * seconds),
    }


def _rate(name: str, n: int, seconds: float) -> JsonObject:
    """How long `n` tokens took."""
    ms = 1000 * seconds
    return {
        f"{name}_n": n,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": round(ms / n, 3) if n else 0.0,
        f"{name}_per_second": round(n / seconds, 3) if seconds > 0 else 0.0,
    }
