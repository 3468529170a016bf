"""All options: meaning, default, bounds; `groups` has those of a reply that only some methods use.
No other module holds the default of an option.

Frozen dataclasses: `EngineConfig` for loading a model, `SearchConfig` for generating a reply,
`ChatConfig` for the conversation in a terminal, `CodeConfig` for the code assistant, `ServerConfig`
for the server and its limits.
Command line flags, settings files, a model file's ``tgr.*`` metadata and the documentation derive
from the fields.
"""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, InitVar, dataclass

from tgr_local.options import groups
from tgr_local.options.fields import check_unicode, notes_given, option, validate

DEFAULT_METHOD = "base"
"""Plain sampling with the whole context."""
TERMINAL_METHOD = "tgr-think"
"""The default of run and chat: as `DEFAULT_METHOD`, but thinking is searched."""
RANDOM_SEED = -1
"""Stands for a seed that is drawn."""
AUTO_LAYERS = -2
"""Stands for as many layers on the GPU as fit (`EngineConfig.n_gpu_layers`)."""
CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2,
}  # fmt: skip
"""Number types of the KV cache, with their values in ggml's enum ``ggml_type``."""
PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")
"""Cache types without scales, which attention reads as they are."""


def drawn_seed() -> int:
    """A random seed of at most nine digits, which a user can type again."""
    return secrets.randbelow(10**9)


@dataclass(frozen=True)
class EngineConfig:
    """How a model is loaded. Names follow llama-cpp-python where it has the option."""

    n_ctx: int = option(0, "cells of the KV cache; 0 = as many as the method needs", low=0)
    n_batch: int = option(512, "maximum tokens decoded in one call", low=1, high=16384)
    n_ubatch: int = option(512, "maximum tokens in one micro-batch", low=1, high=16384)
    n_seq_max: int = option(
        0, "maximum sequences at a time; 0 = 256 for a small vocabulary, else 96", low=0, high=256
    )
    prefix_cells: int = option(
        16384,
        "cells that earlier requests may hold, the longest aside; 0 = every request is read again",
        low=0,
    )
    reproducible: bool = option(
        False,
        "the same request with the same seed gives the same text, whatever is remembered and "
        "whatever runs at the same time; on a CPU. Dense models in Q4_0 to Q8_0 or K-quants do so "
        "anyway on x86; others become slower",
    )
    step_seconds: float = option(
        0.6, "seconds that one step may spend on prompts while other texts are written", low=0.001
    )
    n_threads: int = option(
        0,
        "CPU threads; 0 = one for each physical core within the CPU quota (one for a model under "
        "64 MiB), and on Linux fewer while other programs use the cores, if that is faster",
        low=0,
        high=512,
    )
    n_gpu_layers: int = option(
        AUTO_LAYERS,
        "layers put on the GPU; auto or -2 = as many as fit beside the cache, all or -1, 0 = none",
        low=-2,
        words={"auto": AUTO_LAYERS, "all": -1},
    )
    n_cpu_moe: int = option(
        0,
        "layers, from the first one on, whose experts stay in RAM; 0 = those that do not fit where "
        "n_gpu_layers is auto, else none",
        low=0,
        high=1000,
    )
    device: str = option(
        "",
        "where the model is: cpu, or one GPU by its name or number in doctor, such as vulkan0 or "
        "1; empty = split over all GPUs",
        longest=64,
    )
    tensor_split: tuple[float, ...] = option(
        (), "share of the model on each RPC server, then on each GPU, such as 3,1", low=0
    )
    rpc: str = option(
        "",
        "RPC servers that hold a part of the model, HOST:PORT,HOST:PORT; they come before the GPUs",
        longest=4096,
    )
    flash_attn: str = option("auto", "flash attention", choices=("auto", "on", "off"))
    type_k: str = option("f16", "type of the K cache", choices=tuple(CACHE_TYPES))
    type_v: str = option("f16", "type of the V cache", choices=tuple(CACHE_TYPES))
    chat_template: str = option(
        "",
        "chat template: plain, chatml, or a file with Jinja; empty = that of the model file, or "
        "plain if it has none",
        longest=4096,
    )
    lora: tuple[str, ...] = option(
        (),
        "LoRA adapter that is added to the model, FILE or FILE:SCALE; may be given several times",
        longest=4096,
        most=16,
        is_path=True,
    )
    use_mmap: bool = option(True, "map the model file into memory instead of reading it")
    use_mlock: bool = option(False, "keep the model in physical memory")

    def __post_init__(self) -> None:
        validate(self)
        if self.n_ubatch > self.n_batch:
            raise ValueError(
                f"n_ubatch is {self.n_ubatch}, but cannot exceed n_batch, which is {self.n_batch}; "
                "lower n_ubatch or raise n_batch"
            )
        if self.flash_attn == "off" and self.type_v not in PLAIN_CACHE_TYPES:
            raise ValueError(
                f"type_v is {self.type_v}, which needs flash attention, but flash_attn is off; set "
                "flash_attn to auto, or type_v to f16"
            )
        if self.device and self.tensor_split:
            raise ValueError(
                f"tensor_split splits the model, but device is {self.device!r}, which puts it in "
                "one place; leave one of them out"
            )
        if self.device.lower() == "cpu":
            if self.n_gpu_layers not in (AUTO_LAYERS, 0):
                raise ValueError(
                    f"device is {self.device!r}, but n_gpu_layers is {self.n_gpu_layers}; leave "
                    "one of them out"
                )
            object.__setattr__(self, "n_gpu_layers", 0)


@notes_given
@dataclass(frozen=True)
class SearchConfig(  # the fields of the last class are the first
    groups.HardGeometryOptions,
    groups.TreeOptions,
    groups.PowerOptions,
    groups.VoteOptions,
    groups.SampleOptions,
    groups.FullOptions,
    groups.ResetOptions,
    groups.SteeringOptions,
    groups.AnchorOptions,
    groups.RolloutOptions,
    groups.BoundaryOptions,
):
    """How a reply is generated: what every method uses, and all groups of what some methods use.
    The symbols are those of docs/method.md.

    Where a model is at hand, a field that is not given has the value that the model file advises,
    else the default.
    """

    chunk_len: int = option(512, "maximum tokens of a chunk (S)", low=1)
    max_chunks: int = option(24, "maximum number of chunks (L)", low=1)
    temperature: float = option(
        0.6, "sampling temperature (T); 0 = always the likeliest token", low=0
    )
    top_k: int = option(0, "sample from the k likeliest tokens; 0 = all", low=0)
    top_p: float = option(
        1.0, "sample from the likeliest tokens with this total probability", low=0, high=1
    )
    min_p: float = option(
        0.0, "drop tokens below this share of the likeliest token's probability", low=0, high=1
    )
    top_n_sigma: float = option(
        0.0,
        "drop tokens whose logit is more than n standard deviations of all logits below the "
        "largest one; 0 = off",
        low=0,
        high=1e30,
    )
    typical_p: float = option(
        1.0,
        "sample from the tokens with this total probability whose log-probability is nearest to "
        "its mean; 1 = off",
        low=0,
        high=1,
    )
    dynatemp_range: float = option(
        0.0,
        "how far below and above T the temperature of a token lies, by the entropy; 0 = always T",
        low=0,
        high=1e30,
    )
    dynatemp_exponent: float = option(
        1.0,
        "the temperature rises with this power of the entropy's share of its maximum",
        low=0,
        high=1e30,
    )
    repeat_penalty: float = option(1.0, "divide the logits of recent tokens; 1 = off", low=0.01)
    frequency_penalty: float = option(0.0, "subtract for each recent occurrence", low=-2, high=2)
    presence_penalty: float = option(0.0, "subtract for any recent occurrence", low=-2, high=2)
    repeat_last_n: int = option(
        64, "newest tokens that these three penalties look at; 0 = off, -1 = all", low=-1
    )
    dry_multiplier: float = option(
        0.0,
        "DRY: subtract this times dry_base^(n - dry_allowed_length) from the logit of a token that "
        "goes on with a repetition of n tokens; 0 = off",
        low=0,
        high=1e30,
    )
    dry_base: float = option(
        1.75, "DRY: growth with each token of the repetition", low=1, high=1e30
    )
    dry_allowed_length: int = option(
        2, "DRY: tokens that a repetition must have to cost something", low=0
    )
    dry_penalty_last_n: int = option(
        64, "DRY: newest tokens that are searched for a repetition; 0 = off, -1 = all", low=-1
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"),
        "DRY: text at which a repetition ends; may be given several times; none = there is none",
        longest=40,
        most=64,
    )
    xtc_probability: float = option(
        0.0,
        "XTC: how often the likeliest tokens are left out, but for one; 0 = never",
        low=0,
        high=1,
    )
    xtc_threshold: float = option(
        0.1,
        "XTC: of the tokens with at least this probability the least likely stays; above 0.5 = off",
        low=0,
        high=1,
    )
    seed: int = option(42, "seed of every random choice; -1 = draw one", low=-1, high=2**63 - 1)
    draft_lookup: str = option(
        "off",
        "also decode guesses at the next tokens of a plain text, found in the prompt and the text; "
        "auto = where enough of them were right before",
        choices=("auto", "off"),
    )
    max_tokens: int = option(
        0,
        "maximum new tokens; 0 = max_chunks chunks, -1 = up to the length that the model was "
        "trained for",
        low=-2,
    )
    max_forward_tokens: int = option(
        0, "maximum decoded positions, all kinds together; 0 = no limit", low=0
    )
    max_seconds: float = option(0.0, "maximum seconds; 0 = no limit", low=0)
    stop: tuple[str, ...] = option((), "text that ends the reply", longest=1024, most=64)
    thinking: bool = option(True, "let the chat template open a thinking block")
    thinking_budget: int = option(
        0, "maximum thinking tokens, after which the answer begins; 0 = no limit", low=0
    )
    loop_guard: int = option(
        0,
        "end the thinking, or the reply, after n repetitions of a part, of n² tokens together at "
        "least, or fewer of a long part; 0 = off",
        low=0,
    )
    grammar: str = option("", "GBNF that the answer must follow; empty = none", longest=1 << 18)
    top_logprobs: int = option(0, "likeliest alternatives reported for each token", low=0, high=128)

    _: KW_ONLY
    given: InitVar[frozenset[str] | None] = None
    """The names of the fields that were given; no option."""

    def __post_init__(self, given: frozenset[str] | None) -> None:
        validate(self)
        check_unicode(self)
        if self.seed == RANDOM_SEED:
            object.__setattr__(self, "seed", drawn_seed())
        if self.dry_sequence_breakers == ("none",):
            object.__setattr__(self, "dry_sequence_breakers", ())
        if self.loop_guard == 1:
            raise ValueError("loop_guard is 1, but must be 0, for off, or at least 2")

    @property
    def token_limit(self) -> int:
        """Maximum new tokens: L·S, or ``max_tokens`` if that is less."""
        horizon = self.chunk_len * self.max_chunks
        return min(horizon, self.max_tokens) if self.max_tokens > 0 else horizon


@dataclass(frozen=True)
class ChatConfig:
    """The conversation in a terminal."""

    keys: str = option("emacs", "key bindings of the line editor", choices=("emacs", "vi"))
    show_thinking: bool = option(True, "show the thinking, dimmed, above the answer")
    markdown: bool = option(True, "format Markdown in answers, on a terminal with colours")
    save: bool = option(True, "save conversations and typed lines in the user's state folder")
    prefix_mib: int = option(
        2048,
        "MiB of files with what the model has read of saved conversations; 0 = it is read again",
        low=0,
        high=1 << 30,
    )

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class CodeConfig:
    """The code assistant."""

    test: str = option(
        "",
        'command that runs the project\'s tests, such as "pytest -q"; without one the code is only '
        "parsed and imported",
        longest=4096,
    )
    candidates: int = option(8, "edits that the model writes at a time (k)", low=1, high=64)
    rounds: int = option(
        3,
        "rounds at most, each of about as many new tokens as k whole answers",
        low=1,
        high=100,
    )
    budget: int = option(
        0, "forward tokens at most, of all rounds and candidates together; 0 = no limit", low=0
    )
    edit_format: str = option(
        "auto",
        "what an answer has: whole files, or whole functions",
        choices=("auto", "file", "function"),
    )
    constrained: bool = option(
        True, "hold a model to the form of edits that its file says it has learnt"
    )
    context_tokens: int = option(
        0,
        "tokens of files and outlines in the prompt; 0 = half of the length that the model was "
        "trained for, at most 6144",
        low=0,
    )
    test_seconds: float = option(120.0, "seconds that one run of the tests may take", low=0.1)
    test_memory: int = option(
        4096, "MiB of memory that the processes of one run of the tests may take", low=64
    )
    test_disk: int = option(1024, "MiB that one run of the tests may write", low=1)
    test_processes: int = option(512, "processes and threads of one run of the tests", low=1)
    test_jobs: int = option(2, "runs of the tests at a time", low=1, high=64)
    sandbox: str = option(
        "auto",
        "what keeps the tests from the network and the rest of the machine; auto = the strongest "
        "that works here, never none: that runs them with your rights, on your files and network",
        choices=("auto", "bwrap", "unshare", "limits", "none"),
    )

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class ServerConfig:
    """The server's address and its limits."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 = all addresses of this machine")
    port: int = option(8080, "port to listen on; 0 = any free one", low=0, high=65535)
    models_dir: str = option(
        "",
        "folder of models, from which serve loads those that requests name; set for good, also the "
        "one of models, run and chat; empty = the one of --model alone",
    )
    models_max: int = option(1, "maximum models of models_dir in memory at a time", low=1, high=64)
    idle_seconds: float = option(
        0.0, "seconds without a request until a model is unloaded; 0 = never", low=0
    )
    alias: tuple[str, ...] = option(
        (),
        "name of the model of --model for clients; NAME=MODEL = a further name of a model of "
        "models_dir, where * stands for any text; may be given several times",
        longest=512,
        most=64,
    )
    api_key: tuple[str, ...] = option((), "key that clients must send; may be given several times")
    api_key_file: str = option("", "file with API keys, one on each line")
    allow_origin: tuple[str, ...] = option(
        (),
        "origin whose pages may use the server, such as app://obsidian.md or vscode-webview://*; "
        "may be given several times",
    )
    stored_responses: int = option(
        256, "maximum responses of /v1/responses that can be continued; 0 = none", low=0
    )
    stored_mib: int = option(64, "maximum MiB of these responses together", low=1, high=1 << 20)
    max_running: int = option(8, "maximum requests that run at a time", low=1, high=256)
    max_queue: int = option(64, "maximum requests in the queue; more are refused", low=0)
    max_choices: int = option(32, "maximum replies of one request", low=1, high=256)
    max_reply_tokens: int = option(65536, "maximum new tokens of one reply; 0 = no limit", low=0)
    request_memory: int = option(
        0,
        "MiB for all running requests of a model, besides it and its cache; 0 = half of the "
        "model's size, but at least 256",
        low=0,
    )
    max_body: int = option(4 << 20, "maximum bytes of a request", low=1024)
    request_seconds: float = option(600.0, "maximum seconds of one request; 0 = no limit", low=0)
    device_seconds: float = option(
        120.0,
        "seconds that a GPU or RPC server may compute without a result, before the requests of its "
        "model are refused; 0 = no limit",
        low=0,
    )
    shutdown_seconds: float = option(
        10.0, "seconds for running requests to finish when the server stops", low=0
    )
    exit_on_eof: bool = option(
        False,
        "stop when stdin is closed, as it is once the program that started the server has ended",
    )
    ping_seconds: float = option(5.0, "seconds without data before a ping", low=0.05)
    prompt_cache: str = option(
        "",
        "folder in which prompts that were read are kept, so that they are not read again after a "
        "restart; empty = none",
        longest=4096,
    )
    prompt_cache_mib: int = option(
        8192, "maximum MiB of the files in prompt_cache together", low=1, high=1 << 30
    )
    share_cache: bool = option(
        False,
        "all API keys reuse what requests have read, and see from the counts what that was",
    )
    log_file: str = option("", "log file, with a JSON line for each request; empty = stderr")
    log_prompts: bool = option(False, "log requests and replies in full")

    def __post_init__(self) -> None:
        validate(self)
