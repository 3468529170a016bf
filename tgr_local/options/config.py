"""All options: meaning, default, bounds. No other module holds the default of one.

Frozen dataclasses: `EngineConfig` for loading a model, `SearchConfig` for generating a reply,
`ChatConfig` for the conversation in a terminal, `CodeConfig` for the code assistant, `ServerConfig`
for the server and its limits.
Command line flags, settings files, a model file's ``tgr.*`` metadata and the documentation derive
from the fields.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import KW_ONLY, InitVar, dataclass

from tgr_local.options.cache import CACHE_TYPES
from tgr_local.options.fields import check_unicode, notes_given, option, validate

DEFAULT_METHOD = "tgr-latent"
RANDOM_SEED = -1
"""Stands for a seed that is drawn."""
AUTO_LAYERS = -2
"""Stands for as many layers on the GPU as fit (`EngineConfig.n_gpu_layers`)."""


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
        "whatever runs at the same time; on a CPU, and slower",
    )
    step_seconds: float = option(
        0.6, "seconds that one step may spend on prompts while other texts are written", low=0.001
    )
    n_threads: int = option(
        0,
        "CPU threads; 0 = one for each physical core, or one for a model under 64 MiB, and fewer, "
        "on Linux, while other programs want the cores and that is faster",
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
    main_gpu: int = option(
        -1, "the only GPU to use, by its number in doctor; -1 = split over all GPUs", low=-1
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
    draft_model: str = option(
        "",
        "smaller GGUF file with the same vocabulary, or a name that tgr-local models lists, which "
        "guesses the next tokens of a plain text; empty = none",
        longest=4096,
        is_path=True,
    )
    draft_tokens: int = option(
        0, "tokens that the draft model guesses at a time; 0 = as many as pay", low=0, high=63
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
        if self.reproducible and self.draft_model:
            raise ValueError(
                "reproducible is set, but what draft_model guesses depends on the requests before; "
                "leave one of them out"
            )
        if self.main_gpu >= 0 and self.tensor_split:
            raise ValueError(
                f"tensor_split splits the model, but main_gpu is {self.main_gpu}, which puts it on "
                "one GPU; leave one of them out"
            )


@notes_given
@dataclass(frozen=True)
class SearchConfig:
    """How a reply is generated. The symbols are those of docs/method.md.

    Where a model is at hand, a field that is not given has the value that the model file advises,
    else the default.
    """

    # chunks
    chunk_len: int = option(512, "S: maximum tokens of a chunk", low=1)
    max_chunks: int = option(24, "L: maximum number of chunks", low=1)
    keep_head: int = option(
        0, "h: first generated tokens retained at every reset; Delethink uses 100", low=0
    )
    shift_cells: bool = option(
        False, "at a reset shift the cells of the chunk instead of decoding it again"
    )

    # search
    search_from: int = option(
        1,
        "first chunk that is searched or injected, counted from 0, so that short replies cost what "
        "plain ones do; 0 = all, as in the paper and by default in eval",
        low=0,
    )
    n_candidates: int = option(8, "K: candidate anchors tried at a boundary", low=1, high=255)
    rollout_len: int = option(32, "s: tokens in one rollout", low=1)
    n_mc: int = option(1, "N_MC: rollouts for each candidate", low=1, high=64)
    sigma: float = option(0.05, "σ: proposal radius", low=0)
    delta: float = option(
        0.2, "δ: cosine above which a candidate is too close to the last anchor", low=-1, high=1
    )
    foresight_weight: float = option(1.0, "weight of the foresight term V", low=0)
    lambda_b: float = option(0.5, "λ_b: weight of the bumpiness term", low=0)
    lambda_u: float = option(0.5, "λ_u: weight of the uniformity term", low=0)

    # extensions of the search
    reevaluate: int = option(
        0, "m: best candidates rolled out once more, at most K; 0 = none", low=0, high=255
    )
    reuse_winner: bool = option(False, "begin the chunk with the winner's rollout")

    # injection
    d_z: int = option(0, "width of an anchor; 0 = the width of the model", low=0, high=65536)
    rank: int = option(8, "r: rank of the injection", low=1, high=4096)
    eta: float = option(1.0, "η: injection scale", low=0)
    calibration: str = option(
        "divergence",
        "unit of the injection: what it does to the model, measured once for a model; a share of "
        "the median residual norm; or absolute",
        choices=("divergence", "residual", "absolute"),
    )
    divergence: float = option(
        0.01,
        "D: mean KL divergence of the next token between the plain model and the model under a "
        "random anchor, nats; with calibration divergence",
        low=1e-5,
        high=10,
    )
    injection_seed: int = option(
        42, "seed of the projection W and the maps A, B", low=0, high=2**63 - 1
    )
    relative_strength: float = option(
        0.05,
        "ζ: injection as a share of the median residual norm; with calibration residual",
        low=0,
    )
    guard: float = option(
        0.3,
        "nats a token by which the winner's rollout may be likelier under its injection than "
        "plainly; above it the chunk is written plainly; 0 = off",
        low=0,
    )
    eoc_token: str = option(
        "", "end-of-chunk delimiter, one token of the vocabulary; empty = automatic", longest=256
    )

    # sampling
    temperature: float = option(
        0.6, "T: sampling temperature; 0 = always the likeliest token", low=0
    )
    top_k: int = option(0, "sample from the k likeliest tokens; 0 = all", low=0)
    top_p: float = option(
        1.0, "sample from the likeliest tokens with this total probability", low=0, high=1
    )
    min_p: float = option(
        0.0, "drop tokens below this share of the likeliest token's probability", low=0, high=1
    )
    repeat_penalty: float = option(1.0, "divide the logits of recent tokens; 1 = off", low=0.01)
    frequency_penalty: float = option(0.0, "subtract for each recent occurrence", low=-2, high=2)
    presence_penalty: float = option(0.0, "subtract for any recent occurrence", low=-2, high=2)
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
    seed: int = option(
        42, "seed of every random choice; -1 = draw one", low=RANDOM_SEED, high=2**63 - 1
    )

    # speed
    draft_lookup: str = option(
        "off",
        "also decode guesses at the next tokens of a plain text, found in the prompt and the text; "
        "auto = where enough of them were right before",
        choices=("auto", "off"),
    )

    # best-of-n, self-consistency, vote
    n_samples: int = option(8, "n: samples generated; by vote at most", low=1, high=255)

    # vote
    vote_weight: str = option(
        "auto",
        "weight of a sample's vote: its chance to be right by the model's probe, its likelihood, "
        "or 1; auto = probe if the model has one, else likelihood",
        choices=("auto", "probe", "likelihood", "count"),
    )
    vote_bar: float = option(
        0.95,
        "stop once the leading answer has at least this chance; above 1 = never",
        low=0,
        high=2,
    )
    vote_wave: int = option(4, "samples started together", low=1, high=250)
    vote_keep: int = option(
        0, "samples of a wave that are written to their ends, the most promising; 0 = all", low=0
    )
    probe: str = option(
        "",
        "file of the model's probe; empty = the one next to the model file",
        longest=4096,
        is_path=True,
    )

    # power
    power_alpha: float = option(
        4.0,
        "α: sample from the α-th power of p; proposals have temperature 1/α",
        low=1,
        high=100,
    )
    power_blocks: int = option(16, "blocks that the new tokens are divided into", low=1)
    power_steps: int = option(10, "proposals for each block; 0 = none", low=0)

    # tot, got
    tree_breadth: int = option(2, "b: thoughts kept at a level", low=1, high=64)
    tree_proposals: int = option(4, "k: continuations of each kept thought", low=1, high=64)
    graph_merges: int = option(1, "merged thoughts tried at a level; 0 = none", low=0, high=64)
    graph_refines: int = option(1, "refined thoughts tried at a level; 0 = none", low=0, high=64)

    # early-exit
    exit_threshold: float = option(
        0.95,
        "confidence in a trial answer at which the thinking ends; over 1 = never",
        low=0,
        high=2,
    )
    exit_at: str = option(
        "line",
        "where trial answers are written: at the end of a line, a paragraph or a chunk",
        choices=("line", "paragraph", "chunk"),
    )
    exit_prefix: str = option("The answer is \\boxed{", "beginning of a trial answer", longest=1024)
    exit_tokens: int = option(20, "tokens that a trial answer is given at most", low=1)

    # hard-geometry
    kappa_max: float = option(1.6, "κ_max: maximum turn over mean step length", low=0)
    step_min: float = option(0.0, "minimum length of a new step, radians", low=0, high=math.pi / 2)
    step_max: float = option(
        math.pi / 2, "maximum length of a new step, radians", low=0, high=math.pi
    )
    max_proposals: int = option(
        1000,
        "maximum proposals at a boundary; then the one nearest to the rule is taken",
        low=1,
        high=100_000,
    )

    # limits
    max_tokens: int = option(0, "maximum new tokens; 0 = chunk_len × max_chunks", low=0)
    max_forward_tokens: int = option(
        0, "maximum decoded positions, all kinds together; 0 = no limit", low=0
    )
    max_seconds: float = option(0.0, "maximum seconds; 0 = no limit", low=0)
    stop: tuple[str, ...] = option((), "text that ends the reply", longest=1024, most=64)
    thinking: bool = option(True, "let the chat template open a thinking block")

    # constraints
    thinking_budget: int = option(
        0, "maximum thinking tokens, after which the answer begins; 0 = no limit", low=0
    )
    answer_tokens: int = option(
        0,
        "new tokens kept for an answer while the reply thinks; 0 = an eighth of the limit, at most "
        "256",
        low=0,
    )
    loop_guard: int = option(
        0,
        "end the thinking, or the reply, after n repetitions of a part, of n² tokens together at "
        "least; 0 = off",
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
        if self.step_min > self.step_max:
            raise ValueError(
                f"step_min is {self.step_min}, but cannot exceed step_max, which is "
                f"{self.step_max}; lower step_min or raise step_max"
            )

    @property
    def token_limit(self) -> int:
        """Maximum new tokens: L·S, or ``max_tokens`` if that is less."""
        horizon = self.chunk_len * self.max_chunks
        return min(horizon, self.max_tokens) if self.max_tokens else horizon


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
    candidates: int = option(8, "k: edits that the model writes at a time", low=1, high=64)
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
    shutdown_seconds: float = option(
        10.0, "seconds for running requests to finish when the server stops", low=0
    )
    ping_seconds: float = option(5.0, "seconds without data before a ping", low=0.05)
    slot_save_path: str = option(
        "", "folder for slots that clients save; empty = clients cannot save them"
    )
    slot_save_mib: int = option(
        8192, "maximum MiB of the files in slot_save_path together", low=1, high=1 << 30
    )
    prompt_cache: str = option(
        "",
        "folder in which prompts that were read are kept, so that they are not read again after a "
        "restart; empty = none",
        longest=4096,
    )
    prompt_cache_mib: int = option(
        8192, "maximum MiB of the files in prompt_cache together", low=1, high=1 << 30
    )
    log_file: str = option("", "log file, with a JSON line for each request; empty = stderr")
    log_prompts: bool = option(False, "log requests and replies in full")

    def __post_init__(self) -> None:
        validate(self)
