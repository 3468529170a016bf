"""Text completion: several samples, the likeliest of them, and the likelihood of a given text.

A prompt is continued as it is, without a chat template, so it has to look like what the model was
trained on. The embedded one knows such lines of arithmetic: of 60 continuations (20 sums, T = 1) 60
were right; of "12 + 23 = " and of "12+23=" alone none was.

    python examples/completion.py [model.gguf]
"""

import sys

from tgr_local import TgrLlama

PROMPT = "<think>\n7*8=56\n12+23="

with TgrLlama(*sys.argv[1:2], method="base") as llama:
    response = llama(PROMPT, max_tokens=6, n=3, seed=1, temperature=1.0, stop=["\n"])
    for choice in response["choices"]:
        print(choice["index"], repr(choice["text"]), choice["finish_reason"])

    best = llama(PROMPT, max_tokens=6, best_of=8, seed=1, temperature=1.0, stop=["\n"])
    print("likeliest of eight:", repr(best["choices"][0]["text"]))

    # echo and logprobs together score the prompt
    for result in ("35", "36", "53"):
        scored = llama(PROMPT + result, max_tokens=1, echo=True, logprobs=1, temperature=0.0)
        known = scored["choices"][0]["logprobs"]
        digits = [i for i, at in enumerate(known["text_offset"]) if at >= len(PROMPT)][:2]
        print(f"log p of {result}: {sum(known['token_logprobs'][i] for i in digits):.2f} nats")

# With the embedded model this prints:
# 0 '35' stop
# 1 '35' stop
# 2 '35' stop
# likeliest of eight: '35'
# log p of 35: -0.00 nats
# log p of 36: -9.49 nats
# log p of 53: -31.32 nats
