"""The search itself: every boundary with its candidates, and the same question by every method.

python examples/search.py [model.gguf]
"""

import sys

from tgr_local import generate, generate_steps, load
from tgr_local.options.resolve import resolve

QUESTION = "What is 12 + 23 - 4 + 7?"

with load(*sys.argv[1:2]) as engine:
    for step in generate_steps(engine, QUESTION):
        scores = step.candidates.scores
        text = engine.detokenize(step.tokens).decode("utf-8", "replace")
        print(f"{step.index}: winner {scores.chosen} of {len(scores.total)}, chunk {text!r}")
        print(f"   V {scores.foresight.round(3)}  spread {scores.spread()}")

    config = resolve(engine.metadata).config
    for method in ("base", "markov", "tgr-latent"):
        reply = generate(engine, QUESTION, config, method=method)
        print(f"{method:12} {reply.text!r:40} {reply.counts.total} positions decoded")
