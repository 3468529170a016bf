"""The native engine. Use tgr_local.engine, which checks arguments and frees handles."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

llama_cpp_python_version: str
ggml: Literal["installed", "bundled"]

def forked() -> None: ...
def available_memory() -> int | None:
    """Bytes of RAM that are available without swapping, to this machine and to every control group
    (container) above this process, and within its limit on address space, less a reserve; None
    where the system does not say."""

def require_address_space() -> None:
    """To be called before a thread starts or a request begins. MemoryError where a limit on address
    space (`ulimit -v`) leaves less than the reserve: the C library ends a process that has no
    memory for the variables of a thread."""

def pretend_available(bytes: int | None) -> None: ...
def refuse_load(params: EngineParams, n_bytes: int, reason: str) -> None: ...
def load_backends(folder: str) -> None: ...
def system_info() -> str: ...
def serve_devices(endpoint: str, cache: str, n_threads: int) -> None:
    """Lends the GPUs of this machine, or without any its processor, to one program after the other,
    at HOST:PORT. `cache` is a folder that keeps large tensors, or empty. Returns only where it
    cannot go on; ggml prints why."""

def rpc_version() -> tuple[int, int]: ...
def devices() -> list[tuple[str, str, str, int, int]]: ...
def use_products(name: str) -> None: ...
def products_name() -> str: ...

class EngineParams:
    path: str
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    prefix_cells: int
    reproducible: bool
    step_seconds: float
    n_threads: int
    fixed_threads: bool
    n_gpu_layers: int
    n_cpu_moe: int
    main_gpu: int
    rpc: Sequence[str]
    tensor_split: Sequence[float]
    flash_attn: int
    type_k: int
    type_v: int
    loras: Sequence[tuple[str, float]]
    use_mmap: bool
    use_mlock: bool

class ModelInfo:
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def fim_pad(self) -> int: ...
    @property
    def eog(self) -> list[int]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def rolls_back(self) -> bool: ...
    @property
    def repeats(self) -> bool: ...
    @property
    def cell_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def devices(self) -> list[str]: ...
    @property
    def fitted(self) -> bool: ...
    @property
    def lowered(self) -> bool: ...
    @property
    def fit_cells(self) -> int: ...
    @property
    def n_cpu_moe(self) -> int: ...
    @property
    def without_attention(self) -> list[str]: ...
    @property
    def description(self) -> bytes: ...
    @property
    def chat_template(self) -> bytes: ...
    @property
    def classifier(self) -> NDArray[np.float32]: ...
    @property
    def metadata(self) -> list[tuple[bytes, bytes]]: ...

class LockstepGroup: ...

class Output:
    """The result of a task; n is the number of generated tokens."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """[n] generated tokens, an end token included."""

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[n] log p of each token, nats, at temperature 1 and before any filter."""

    @property
    def sampled_logprobs(self) -> NDArray[np.float32]:
        """[n] log of the probability that each token was drawn with, nats: after bias, penalties,
        the grammar, filters and the temperature; 0 at temperature 0."""

    @property
    def entropies(self) -> NDArray[np.float32]:
        """[n] entropy of the distribution each token was drawn from, nats, at temperature 1."""

    @property
    def states(self) -> NDArray[np.float32]:
        """[n, n_embd] final-norm state that each token was sampled from; [0, n_embd] without
        `Task.states`."""

    @property
    def feed_states(self) -> NDArray[np.float32]:
        """[0, 1 or n_feed, n_embd] final-norm states of the fed tokens."""

    @property
    def feed_logprobs(self) -> NDArray[np.float32]:
        """[n_feed - 1] log p of feed[1:], each given the tokens before it."""

    @property
    def norms(self) -> NDArray[np.float32]:
        """[n_feed, n_layer] residual norm of every fed token after each layer, the reused ones too;
        [0, n_layer] without `Task.norms`. The last layer, which computes output tokens only, is
        measured on up to 32 evenly spaced ones and NaN on the others."""

    @property
    def top_ids(self) -> NDArray[np.int32]:
        """[n, n_top] likeliest tokens, likeliest first."""

    @property
    def top_logprobs(self) -> NDArray[np.float32]:
        """[n, n_top]"""

    @property
    def n_decoded(self) -> int:
        """Positions that this task decoded."""

    @property
    def n_reused(self) -> int:
        """Fed tokens that this task took from the cache instead of decoding them."""

    @property
    def n_refused(self) -> int:
        """Positions of drafts that were decoded beside these and not accepted."""

    @property
    def finish(self) -> Literal["", "length", "stop", "cancelled"]:
        """ "stop" = end token or stop text; "" = nothing was to be generated."""

    def joined(self, more: Output) -> Output:
        """This generation and the one that continued it, as one; `feed_states`, `feed_logprobs` and
        norms are those of this one."""

    def beginning(self, n: int) -> Output:
        """The first n tokens of a longer generation, which ended by length."""

class Job:
    def wait(self, seconds: float) -> bool: ...
    def take(self, seconds: float, least: int) -> tuple[list[tuple[list[int], bytes]], bool]: ...
    def take_part(self, task: int, n: int) -> Output: ...
    def cancel(self) -> None: ...
    def outputs(self) -> list[Output]: ...

class SessionRequest:
    def wait(self, seconds: float) -> int | None: ...
    def in_the_way(self) -> list[int]: ...
    def withdraw(self) -> None: ...
    def give_up(self) -> None: ...

class Engine:
    def __init__(self, params: EngineParams, check: Callable[[], object]) -> None: ...
    @property
    def info(self) -> ModelInfo: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...
    def detokenize(self, tokens: ArrayLike, special: bool, shown: ArrayLike) -> bytes: ...
    def check_grammar(self, grammar: str, prefix: str) -> None: ...
    def grow_cache(self, n_cells: int, n_sessions: int) -> None: ...
    def shrink_cache(self, n_cells: int) -> None: ...
    def set_scales(self, scales: Sequence[float]) -> None: ...
    def bound_cache(self, n_cells: int) -> None: ...
    def n_cells_possible(self) -> int: ...
    def memory(self) -> tuple[int, int]: ...
    def group(self, n: int) -> LockstepGroup: ...
    def leave(self, group: LockstepGroup, index: int) -> None: ...
    def open(
        self,
        n_cells: int,
        n_seqs: int,
        group: LockstepGroup | None,
        index: int,
        prompt: ArrayLike,
        digest: bytes,
        norms: bool,
        preemptible: bool = False,
    ) -> SessionRequest: ...
    def close_session(self, session: int) -> None: ...
    def session_peak(self, session: int, reset: bool) -> int: ...
    def sequence(self, session: int) -> int: ...
    def fork(self, session: int, sequence: int) -> int: ...
    def truncate(self, session: int, sequence: int, n_tokens: int) -> None: ...
    def shift(self, session: int, sequence: int, start: int, end: int) -> None: ...
    def drop(self, session: int, sequence: int) -> None: ...
    def length(self, session: int, sequence: int) -> int: ...
    def remember(self, session: int, sequence: int) -> None: ...
    def prefixes(self) -> list[tuple[list[int], bytes]]: ...
    def read_prefix(
        self, tokens: ArrayLike, digest: bytes
    ) -> tuple[list[int], bytes, bytes, bytes]:
        """Tokens, and as bytes: float32 norms [n, n_layer], recurrent state, keys and values."""

    def add_prefix(
        self,
        tokens: ArrayLike,
        digest: bytes,
        norms: bytes | bytearray,
        state: bytes | bytearray,
        cells: bytes | bytearray,
    ) -> bool: ...
    def memory_layout(self) -> str: ...
    def injection(
        self, session: int, vectors: NDArray[np.float32], digest: bytes | None
    ) -> int: ...
    def drop_injection(self, session: int, injection: int) -> None: ...
    def submit(
        self,
        session: int,
        tasks: Sequence[Any],
        sequences: list[int],
        injections: list[int],
        plain: int,
    ) -> Job: ...
