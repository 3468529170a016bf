"""The search itself: every boundary with its candidates, and the same question by every method.

python examples/search.py [model.gguf]
"""

import sys

from tgr_local import generate, generate_steps, load
from tgr_local.options.resolve import resolve

QUESTION = "Use 2, 6, 50 to make 38"  # a puzzle: there is something to choose

with load(*sys.argv[1:2]) as engine:
    for step in generate_steps(engine, QUESTION):
        scores = step.candidates.scores
        text = engine.detokenize(step.tokens).decode("utf-8", "replace")
        print(f"{step.index}: winner {scores.chosen} of {len(scores.total)}, chunk {text!r}")
        print("   V", *(f"{value:.2f}" for value in scores.foresight))
        print("   spread", *(f"{name} {value:.3f}" for name, value in scores.spread().items()))

    config = resolve(engine.metadata).config
    for method in ("base", "markov", "tgr-latent"):
        reply = generate(engine, QUESTION, config, method=method)
        print(f"{method:12} {reply.text!r:40} {reply.counts.total} positions decoded")

# With the embedded model this prints:
# 0: winner 2 of 8, chunk '<think>\n1: 50*2=100 [6,100] 100-6=94 no\n2'
#    V -0.19 -0.20 -0.19 -0.24 -0.20 -0.20 -0.20 -0.22
#    spread foresight 0.017 bumpiness 0.218 uniformity 0.008
# 1: winner 4 of 8, chunk ': 6*2=12 [50,12] 50-12=38 yes\n</think>\n\nThe answer is \\'
#    V -0.17 -0.17 -0.17 -0.18 -0.24 -0.17 -0.17 -0.22
#    spread foresight 0.027 bumpiness 0.373 uniformity 0.010
# 2: winner 5 of 8, chunk 'boxed{50-6*2}.'
#    V -0.00 -0.00 -0.00 -0.00 -0.00 -0.00 -0.00 -0.00
#    spread foresight 0.000 bumpiness 0.037 uniformity 0.011
# base         'The answer is \\boxed{50-6*2}.'         74 positions decoded
# markov       'The answer is \\boxed{50-6*2}.'         138 positions decoded
# tgr-latent   'The answer is \\boxed{50-6*2}.'         416 positions decoded
