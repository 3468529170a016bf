"""Text completion: several samples, their log-probabilities, and the likelihood of a given text.

python examples/completion.py [model.gguf]
"""

import sys

from tgr_local import TgrLlama

with TgrLlama(*sys.argv[1:2], method="base") as llama:
    response = llama("12 + 23 = ", max_tokens=6, n=3, seed=1, temperature=1.0, stop=["\n"])
    for choice in response["choices"]:
        print(choice["index"], repr(choice["text"]), choice["finish_reason"])

    best = llama("12 + 23 = ", max_tokens=6, best_of=8, seed=1, temperature=1.0)
    print("likeliest of eight:", repr(best["choices"][0]["text"]))

    # echo and logprobs together score the prompt
    for text in ("12+23=35", "12+23=53"):
        scored = llama(text, max_tokens=1, echo=True, logprobs=1, temperature=0.0)
        logprobs = scored["choices"][0]["logprobs"]["token_logprobs"]
        print(f"log p of {text!r}: {sum(logprobs[1:-1]):.2f} nats")
