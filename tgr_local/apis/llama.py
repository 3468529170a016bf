"""`TgrLlama`: for programs written for ``llama_cpp.Llama``, which change one import.

Its methods take and return what those of llama-cpp-python do, and also take the method and its
options. Defaults, those of sampling too, are those of `SearchConfig` and of the model file. Every
instance may be used from any number of threads.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from tgr_local.apis import completions
from tgr_local.apis.events import JsonObject
from tgr_local.apis.llama_options import (
    ABSENT,
    CALLBACKS,
    NEUTRAL,
    POOLINGS,
    RANDOM_SEED,
    ChatParameters,
    CompletionParameters,
    Prompt,
    as_path,
    as_shares,
    check_callbacks,
    check_only,
    check_types,
)
from tgr_local.apis.llama_options import LlamaGrammar as LlamaGrammar
from tgr_local.apis.requests import PreparedRequest, chat_request, completion_request
from tgr_local.apis.rerank import RerankRequest, rerank_response
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import load, longest_text
from tgr_local.generation.control_vectors import ControlVector, hidden_states, steered
from tgr_local.generation.pooling import pooling_of
from tgr_local.options import model_files, model_names
from tgr_local.options.config import CACHE_TYPES, DEFAULT_METHOD, EngineConfig, SearchConfig
from tgr_local.options.fields import updated
from tgr_local.options.model_parts import is_later_part
from tgr_local.system.errors import ModelError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion as OpenAIChatCompletion
    from openai.types.chat import ChatCompletionChunk as OpenAIChatCompletionChunk

_POOLINGS = tuple(POOLINGS.values())
_OURS = {"control_vector": ControlVector, "cancel": Cancel}
"""Parameters of requests that are no JSON."""


class TgrLlama:
    """A model, with the methods of ``llama_cpp.Llama`` that take a whole request; close it or leave
    its ``with`` block. What is about the state of one context (`eval`, `sample`, `save_state`,
    `load_state`, ...) is not here, and the AttributeError says what is instead.

    `model_path` None is the embedded model. `config` and `method` are the defaults of every
    request; `seed` None gives every request without one a random seed, which the response reports.
    The other parameters are those of `EngineConfig`, and those that ``llama_cpp.Llama`` has in
    addition: of these `pooling_type` and `last_n_tokens_size` (`repeat_last_n`) have a meaning,
    `logits_all`, `embedding`, `verbose` and options of speed alone have none, since
    log-probabilities and states are always available, and the others are ValueErrors unless they
    have their default. `chat_format` None is the template of the model file; "chatml" and
    "chatml-function-calling" are ChatML (functions need neither). Raises ModelError for a file that
    cannot be used, ValueError for a bad option.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        *,
        method: str = DEFAULT_METHOD,
        config: SearchConfig | None = None,
        seed: int | None = None,
        n_ctx: int = EngineConfig.n_ctx,
        n_batch: int = EngineConfig.n_batch,
        n_ubatch: int = EngineConfig.n_ubatch,
        n_seq_max: int = EngineConfig.n_seq_max,
        n_threads: int | None = None,
        n_gpu_layers: int = EngineConfig.n_gpu_layers,
        main_gpu: int = -1,
        tensor_split: Seq[float] | None = None,
        flash_attn: bool | str = EngineConfig.flash_attn,
        type_k: str | int | None = None,
        type_v: str | int | None = None,
        lora_path: str | os.PathLike[str] | None = None,
        lora_scale: float = 1.0,
        use_mmap: bool = EngineConfig.use_mmap,
        use_mlock: bool = EngineConfig.use_mlock,
        chat_format: str | None = None,
        pooling_type: int = -1,
        last_n_tokens_size: int = SearchConfig.repeat_last_n,
        **neutral: Any,
    ) -> None:
        if unknown := neutral.keys() - NEUTRAL:
            raise TypeError(f"TgrLlama has no option {min(unknown)!r}")
        check_only({**NEUTRAL, **neutral, "pooling_type": pooling_type})
        check_types({"config": config}, {"config": SearchConfig})
        if last_n_tokens_size != SearchConfig.repeat_last_n:
            last_n = last_n_tokens_size
            config = (
                SearchConfig(repeat_last_n=last_n)
                if config is None
                else updated(config, {"repeat_last_n": last_n})
            )
        check_types({"n_batch": n_batch, "n_ubatch": n_ubatch}, {"n_batch": int, "n_ubatch": int})
        options = EngineConfig(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=min(n_ubatch, n_batch) if n_ubatch and n_batch else n_ubatch,
            n_seq_max=n_seq_max,
            n_threads=n_threads or 0,
            n_gpu_layers=n_gpu_layers,
            device="" if main_gpu < 0 else str(main_gpu),
            tensor_split=as_shares(tensor_split),
            flash_attn=flash_attn if isinstance(flash_attn, str) else "on" if flash_attn else "off",
            type_k=_cache_type("type_k", type_k),
            type_v=_cache_type("type_v", type_v),
            lora=() if lora_path is None else (_adapter(lora_path, lora_scale),),
            use_mmap=use_mmap,
            use_mlock=use_mlock,
            chat_template=_chat_template(chat_format),
        )
        path = None if model_path is None else as_path("model_path", model_path)
        self.engine: Engine = load(path, options)
        """The engine below, for everything else that this package does."""
        self.config, self.method = config, method
        self._pooling = POOLINGS.get(pooling_type)
        self.set_seed(seed)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: Seq[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | Literal["auto"] = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **parameters: Any,
    ) -> TgrLlama:
        """The model of a repository at Hugging Face that was downloaded before, to the folder of
        models or to `local_dir`; `filename` may be a pattern such as ``*q8_0.gguf``, and
        `parameters` are those of the class. Nothing here connects: ModelError names the command
        that downloads it. The other parameters have no effect."""
        check_types({"filename": filename}, {"filename": str})
        if not isinstance(repo_id, str) or model_names.parsed(repo_id) is None:
            raise ValueError(f"repo_id is {repo_id!r:.80}, but must be OWNER/REPO")
        folder = model_files.folder() / repo_id
        if local_dir is not None:
            folder = Path(as_path("local_dir", local_dir))
        name = filename or "*.gguf"
        files = sorted(
            path
            for path in folder.glob("*")
            if fnmatch.fnmatch(path.name.lower(), Path(name).name.lower())
        )
        files = [path for path in files if path.suffix.lower() == ".gguf" and path.is_file()]
        if len({path for path in files if not is_later_part(path)}) > 1:
            names = ", ".join(path.name for path in files[:5])
            raise ModelError(f"{filename!r} names several models of {repo_id}: {names}; name one")
        if not files:
            quantization = re.fullmatch(r"\*?-?([\w.]+?)\*?\.gguf", name)
            source = f"{repo_id}:{quantization[1]}" if quantization else repo_id
            source = f"{repo_id}/{name}" if "*" not in name else source
            to = "" if local_dir is None else f" --to {local_dir}"
            raise ModelError(
                f"there is no {name} of {repo_id} in {folder}; to download it, type: "
                f"tgr-local models pull {source}{to}"
            )
        return cls(files[0], **parameters)

    if not TYPE_CHECKING:  # for which every name would be here

        def __getattr__(self, name: str) -> Any:
            if name in ABSENT:
                raise AttributeError(f"TgrLlama has no {name}: {ABSENT[name]}")
            raise AttributeError(f"TgrLlama has no {name!r}")

    def close(self) -> None:
        """Ends running work with CancelledError and frees the model. May be called again."""
        self.engine.close()

    def __enter__(self) -> TgrLlama:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the model ---

    @property
    def model_path(self) -> str:
        return str(self.engine.path)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the model file."""
        return self.engine.metadata

    def n_ctx(self) -> int:
        """Tokens that the model was trained to see at a time; the cache grows as it must."""
        return self.engine.config.n_ctx or self.engine.n_ctx_train

    def n_embd(self) -> int:
        return self.engine.n_embd

    def n_vocab(self) -> int:
        return self.engine.n_vocab

    def token_bos(self) -> int:
        """The begin token; -1 = none."""
        return -1 if self.engine.bos is None else self.engine.bos

    def token_eos(self) -> int:
        """The end token; -1 = none."""
        return -1 if self.engine.eos is None else self.engine.eos

    def token_nl(self) -> int:
        """The token of a line break; -1 = none."""
        return next(iter(self.tokenize(b"\n", add_bos=False)[-1:]), -1)

    def set_seed(self, seed: int | None) -> None:
        """Makes `seed` that of every request without one; None = a random seed for each."""
        self.seed = None if seed == RANDOM_SEED else seed

    def set_cache(self, cache: Any) -> None:
        """Does nothing: requests always take from the cache what earlier ones have read."""

    def reset(self) -> None:
        """Does nothing: every request begins anew."""

    # --- text and tokens ---

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of a UTF-8 text; `special` reads control tokens. ValueError for other bytes."""
        if not isinstance(text, bytes):
            raise ValueError(f"text is {text!r:.40}, but must be bytes; encode it first")
        try:
            words = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"text is not valid UTF-8 at byte {error.start}") from None
        return self.engine.tokenize(words, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Seq[int], prev_tokens: Seq[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of the tokens; `special` prints control tokens. After a begin token the space that
        tokenizing put before the text is left out. As there, `prev_tokens` changes nothing."""
        data = self.engine.detokenize(tokens, special=special)
        begins = len(tokens) > 0 and tokens[0] == self.engine.bos
        return data[1:] if begins and data[:1] == b" " else data

    # --- completions ---

    def create_chat_completion(
        self, messages: Seq[Mapping[str, Any]], **parameters: Unpack[ChatParameters]
    ) -> Any:
        """The reply to a conversation: a dict, or with `stream` an iterator of chunks.

        Takes and returns what ``llama_cpp.Llama.create_chat_completion`` does, and OpenAI's `n`,
        `stream_options` and `reasoning_effort` ("none" = no thinking). The thinking is in
        ``message.reasoning_content`` and ``delta.reasoning_content``, the cost in ``usage`` and
        ``tgr``. `tgr` holds `SearchConfig` options for this request, such as
        ``{"n_candidates": 4, "thinking_budget": 512}``; `control_vector` is added at every token;
        `cancel` ends it from another thread, or makes it answer now. `tools` are
        functions that the model may call, as OpenAI's API defines them, and `tool_choice` is
        "none", "auto", "required" or the function that must be called. Logits processors are not
        supported, since tokens are drawn outside of Python.

        Raises RequestError, a ValueError, for a bad parameter, CapacityError for a conversation
        that cannot fit, and CancelledError.
        """
        request = chat_request(
            self.engine, self._body({"messages": messages, **parameters}), config=self.config,
            method=self.method, model=self.model_path,
        )  # fmt: skip
        return self._run(request, parameters)

    def create_completion(
        self,
        prompt: Prompt,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        **parameters: Unpack[CompletionParameters],
    ) -> Any:
        """Continues a text: returns a dict, or with `stream` an iterator of chunks.

        Takes and returns what ``llama_cpp.Llama.create_completion`` does, and OpenAI's `n`,
        `best_of`, and several prompts at once. The text keeps the model's
        thinking tags. `logprobs` with `echo` scores the prompt as well. None or less than 1 for
        `max_tokens` = as many as the config allows. The rest is as in `create_chat_completion`.
        """
        body = self._body(
            {"prompt": prompt, "suffix": suffix, "max_tokens": max_tokens, **parameters}
        )
        body.setdefault("max_tokens", -1)
        request = completion_request(
            self.engine, body, config=self.config, method=self.method, model=self.model_path,
        )  # fmt: skip
        return self._run(request, parameters)

    __call__ = create_completion

    def create_chat_completion_openai_v1(
        self, *args: Any, **parameters: Any
    ) -> OpenAIChatCompletion | Iterator[OpenAIChatCompletionChunk]:
        """`create_chat_completion` as objects of the ``openai`` package, if it is installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        response: Any = self.create_chat_completion(*args, **parameters)
        if isinstance(response, dict):
            return ChatCompletion(**response)
        return (ChatCompletionChunk(**chunk) for chunk in response)

    def _body(self, parameters: dict[str, Any]) -> JsonObject:
        """The parameters as the body of a request, in the types that JSON has."""
        callbacks = {name: parameters.pop(name, None) for name in CALLBACKS}
        check_callbacks(**callbacks)
        check_types(parameters, _OURS)
        body = {k: v for k, v in parameters.items() if v is not None and k not in _OURS}
        for key in ("stop", "messages", "prompt"):
            if isinstance(given := body.get(key), tuple | np.ndarray):
                body[key] = given.tolist() if isinstance(given, np.ndarray) else list(given)
        limit = body.get("max_tokens")
        if isinstance(limit, int) and limit < 1:
            body["max_tokens"] = -1
        if self.seed is not None:
            body.setdefault("seed", self.seed)
        return body

    def _run(self, request: PreparedRequest, parameters: Mapping[str, Any]) -> Any:
        vector, cancel = parameters.get("control_vector"), parameters.get("cancel")
        engine = steered(self.engine, vector) if vector else self.engine
        if request.stream:
            return completions.chunks(engine, request, cancel=cancel)
        return completions.respond(engine, request, cancel=cancel)

    # --- states ---

    def hidden_states(self, text: str | Seq[int]) -> NDArray[np.float32]:
        """The state after the final norm at every token, [n_tokens, n_embd]."""
        return hidden_states(self.engine, text)

    def embed(
        self,
        input: str | Seq[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
        *,
        pooling: str | None = None,
    ) -> Any:
        """States of a text, or a list of those of several, as ``llama_cpp.Llama.embed`` has them.

        `pooling` "none" gives a vector for every token, [n_tokens, n_embd]; "mean", "cls" and
        "last" one for the text, [n_embd]; None = as `pooling_type` or the model file says, else
        "none". `normalize` divides each by its length. Without `truncate` a text longer than the
        model was trained for is a ValueError. `return_count` gives a pair with the number of
        tokens. Raises ModelError for a reranker.
        """
        pooling = pooling or self._pooling
        if pooling is None:
            pooling = pooling_of(self.engine) if self.engine.pooling else "none"
        if pooling not in _POOLINGS:
            raise ValueError(f"pooling is {pooling!r}, but must be one of {', '.join(_POOLINGS)}")
        texts = _texts(input)
        vectors, count = [], 0
        for text in texts:
            tokens = self.tokenize(text.encode("utf-8"))
            states = hidden_states(
                self.engine, tokens[: longest_text(self.engine)] if truncate else tokens
            )
            count += len(states)
            pooled = {
                "none": states, "mean": states.mean(axis=0), "cls": states[0], "last": states[-1],
            }[pooling]  # fmt: skip
            if normalize:
                pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)
            vectors.append(pooled.tolist())
        embedded = vectors[0] if isinstance(input, str) else vectors
        return (embedded, count) if return_count else embedded

    def create_embedding(
        self, input: str | Seq[str], model: str | None = None, *, pooling: str | None = None
    ) -> JsonObject:
        """`embed` as OpenAI's response has it; one vector for a text unless `pooling` is "none".
        None is the pooling of the model file, or "mean"."""
        texts, pooling = _texts(input), pooling or self._pooling or pooling_of(self.engine)
        vectors, count = self.embed(texts, return_count=True, pooling=pooling)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": vector, "index": i}
                for i, vector in enumerate(vectors)
            ],
            "model": model or self.model_path,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def rerank(self, query: str, documents: Seq[str], top_n: int | None = None) -> JsonObject:
        """How relevant the documents are to the query, by a reranker such as Qwen3-Reranker:
        ``results`` with ``index`` and ``relevance_score``, the most relevant first. Raises
        ModelError for another model, ContextError for a document that is too long, CapacityError
        for too many tokens together."""
        given = {"query": query, "documents": list(documents), "top_n": top_n}
        body = RerankRequest.parse(given)
        response: JsonObject = rerank_response(self.engine, body, self.model_path)
        return response


def _texts(given: str | Seq[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"input is {given!r:.40}, but must be a text or a list of texts")
    return list(texts)


def _adapter(path: str | os.PathLike[str], scale: float) -> str:
    """An adapter with its scale, as `EngineConfig.lora` has it."""
    name = as_path("lora_path", path)
    try:
        return f"{name}:{float(scale)!r}"
    except (TypeError, ValueError):
        raise ValueError(f"lora_scale is {scale!r:.80}, but must be a number") from None


def _chat_template(chat_format: str | None) -> str:
    """The chat template for a format of llama-cpp-python; "" = that of the model file."""
    if chat_format in (None, "chat_template.default"):
        return ""
    if chat_format not in ("chatml", "chatml-function-calling"):
        raise ValueError(
            f"chat_format is {chat_format!r:.40}, but must be chatml or chatml-function-calling; "
            "leave it out to use the template of the model file"
        )
    return "chatml"


def _cache_type(name: str, kind: str | int | None) -> str:
    """The name of a cache type, which llama-cpp-python gives as a number of ggml."""
    names = {number: known_name for known_name, number in CACHE_TYPES.items()}
    known = names.get(kind) if isinstance(kind, int) else kind
    if kind is not None and known is None:
        raise ValueError(f"{name} is {kind!r}, but must be one of {', '.join(CACHE_TYPES)}")
    return known or EngineConfig.type_k
