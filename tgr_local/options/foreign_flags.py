"""Flags and commands of llama.cpp and ollama that have another name here, or none.

A flag is never translated: the person reads what it is called here, and that a flag without an
effect may be left out.
"""

from __future__ import annotations

from collections.abc import Collection

OURS = {
    "--ctx-size": "n_ctx", "--n-predict": "max_tokens", "--predict": "max_tokens",
    "--threads": "n_threads", "--threads-batch": "n_threads", "-tb": "n_threads",
    "--gpu-layers": "n_gpu_layers", "--temp": "temperature", "-s": "seed",
    "--system-prompt": "system", "-b": "n_batch", "--batch-size": "n_batch", "-ub": "n_ubatch",
    "--ubatch-size": "n_ubatch", "-ctk": "type_k", "--cache-type-k": "type_k", "-ctv": "type_v",
    "--cache-type-v": "type_v", "--mlock": "use_mlock", "-fa": "flash_attn",
    "-mg": "device", "--main-gpu": "device", "-dev": "device",
    "-ts": "tensor_split", "-r": "stop", "--reverse-prompt": "stop",
    "--chat-template-file": "chat_template", "--reasoning-budget": "thinking_budget",
    "--budget": "max_forward_tokens", "--dry-sequence-breaker": "dry_sequence_breakers",
    "--lora-scaled": "lora", "-ncmoe": "n_cpu_moe", "-np": "max_running",
    "--parallel": "max_running", "-a": "alias", "--think": "thinking", "-j": "json_schema",
    "--json-schema-file": "json_schema", "-jf": "json_schema", "--format": "json_schema",
    "--typical": "typical_p", "--top-nsigma": "top_n_sigma", "--dynatemp-exp": "dynatemp_exponent",
}  # fmt: skip
"""Flags, also of other subcommands, by the name of the option that they are here."""

_SAID = {
    "-p --prompt": 'the question needs no flag: tgr-local run "..."',
    "-st --single-turn -no-cnv --no-conversation":
        "tgr-local run answers one question and ends; --raw leaves the chat template out",
    "-cnv --conversation -i --interactive -if --interactive-first -mli --multiline-input":
        "tgr-local chat holds a conversation",
    "-hf -hfr --hf-repo -hff --hf-file -mu --model-url":
        "download the model with tgr-local models pull OWNER/REPO:QUANTIZATION, then name it "
        "with -m",
    "-co --color --colors": "a terminal gets colours, unless NO_COLOR=1 is set; leave it out",
    "-sysf --system-prompt-file": 'a file is the system prompt with -sys "$(cat FILE)"',
    "--no-mmap": "it is --no-use-mmap here",
    "--context-shift": "--when-full reset goes on where the context is full",
    "--no-context-shift": "a reply ends where the context is full; leave it out",
    "-sm --split-mode": "layers are divided among the GPUs; --tensor-split says how",
    "-cmoe --cpu-moe": "--n-cpu-moe says how many layers keep their experts in RAM",
    "-md --model-draft -hfd": "--draft-lookup auto guesses the next tokens without a second model",
    "-v --verbose --verbose-prompt": "--stats says what was done, tgr-local doctor what is used",
    "--list-devices": "tgr-local doctor lists the devices; --device NAME uses one of them",
    "-nkvo --no-kv-offload": "the cache lies beside the layers; -ngl says how many are on the GPU",
    "-e --escape --no-escape": "a text is taken as it is; the shell has $'...\\n...'",
    "--keepalive --insecure --nowordwrap --no-warmup --warmup --log-disable --simple-io "
    "--no-display-prompt --display-prompt --jinja --no-jinja -cb --cont-batching "
    "--no-cont-batching --no-perf --perf --numa -lv": "it has no effect here; leave it out",
    "--save --no-save": "nothing is saved here; leave it out",
    "--ignore-eos --mirostat --mirostat-ent --mirostat-lr --samplers --sampler-seq "
    "--sampling-seq --typical --dynatemp-range --dynatemp-exp --top-nsigma --repeat-last-n --keep "
    "--rope-freq-base --rope-freq-scale --rope-scaling "
    "--yarn-orig-ctx --override-kv --in-prefix --in-suffix --image --mmproj -mm --control-vector":
        "it is not supported; leave it out",
}  # fmt: skip
_ADVICE = {name: text for names, text in _SAID.items() for name in names.split()}

COMMANDS = {"ls": "list", "remove": "rm", "delete": "rm"}
"""Subcommands of ollama whose name is another one here."""


def is_foreign(word: str, known: Collection[str]) -> bool:
    """Whether a word is such a flag and none of the known ones; argparse reads ``-hf`` as ``-h``,
    and ``-fa`` as ``-f a``."""
    name = word.partition("=")[0]
    if name in known or not word.startswith("-") or not name.strip("-"):
        return False
    begins = not word.startswith("--") and any(known_flag.startswith(name) for known_flag in known)
    return begins or name in OURS or name in _ADVICE


def advice(name: str) -> str:
    """Returns what to do instead of such a flag; empty for one of `OURS` and for any other."""
    return _ADVICE.get(name, "")
