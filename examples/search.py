"""The search itself: every boundary with its candidates, and the same question by every method.

python examples/search.py [model.gguf]
"""

import sys

from tgr_local import generate, generate_steps, load
from tgr_local.options.resolve import resolve

QUESTION = "Use 2, 7, 30 to make 44"  # a puzzle: there is something to choose

with load(*sys.argv[1:2]) as engine:
    config = resolve(engine.metadata, {"search_from": 0}).config  # from the first chunk on
    for step in generate_steps(engine, QUESTION, config, method="tgr-latent"):
        scores = step.candidates.scores
        text = engine.detokenize(step.tokens).decode("utf-8", "replace")
        print(f"{step.index}: winner {scores.chosen} of {len(scores.total)}, chunk {text!r}")
        print("   V", *(f"{value:.2f}" for value in scores.foresight))
        print("   spread", *(f"{name} {value:.3f}" for name, value in scores.spread().items()))

    for method in ("base", "markov", "tgr-latent"):
        reply = generate(engine, QUESTION, config, method=method)
        print(f"{method:12} {reply.text!r:40} {reply.counts.total} positions decoded")

# With the embedded model this prints:
# 0: winner 3 of 8, chunk '<think>\n1: 30*2=60 [7,60] 60-7=53 no\n2: 7'
#    V -0.20 -0.20 -0.20 -0.22 -0.21 -0.21 -0.19 -0.36
#    spread foresight 0.051 bumpiness 0.105 uniformity 0.008
# 1: winner 6 of 8, chunk '-2=5 [30,5] 30+5=35 no\n3: 7*2=14 [30'
#    V -0.14 -0.11 -0.10 -0.11 -0.10 -0.10 -0.09 -0.11
#    spread foresight 0.015 bumpiness 0.192 uniformity 0.011
# 2: winner 4 of 8, chunk ',14] 30+14=44 yes\n</think>\n\nThe answer is \\boxed{30+7*2}.'
#    V -0.00 -0.00 -0.00 -0.00 -0.00 -0.00 -0.00 -0.00
#    spread foresight 0.000 bumpiness 0.037 uniformity 0.011
# base         'The answer is \\boxed{30+7*2}.'         95 positions decoded
# markov       'The answer is \\boxed{30+7*2}.'         159 positions decoded
# tgr-latent   'The answer is \\boxed{30+7*2}.'         492 positions decoded
