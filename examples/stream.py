"""The events of a reply: text as it is written, the scores of every boundary, and the reply last.

python examples/stream.py [model.gguf]
"""

import sys

from tgr_local import Progress, SearchConfig, TextDelta, load, stream

with load(*sys.argv[1:2]) as engine:
    config = SearchConfig(search_from=0)  # by default the first chunk is written at once
    for event in stream(engine, "Use 2, 7, 30 to make 44", config, method="tgr-latent"):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, Progress) and event.candidates is not None:
            scores = event.candidates.scores
            every = " ".join(f"{score:.2f}" for score in scores.total)
            print(f"\n  [chunk {event.chunk}: S = {every} -> {scores.chosen}]")
    reply = event  # the last event
    print(f"\n{reply.n_tokens} tokens, {reply.counts.total} positions decoded, {reply.finish}")

# With the embedded model this prints:
#
#   [chunk 0: S = -2.94 -2.87 -2.91 -2.85 -2.88 -2.87 -2.99 -3.07 -> 3]
# 1: 30*2=60 [7,60] 60-7=53 no
# 2: 7
#   [chunk 1: S = -2.99 -3.12 -2.92 -3.13 -2.93 -2.93 -2.91 -3.14 -> 6]
# -2=5 [30,5] 30+5=35 no
# 3: 7*2=14 [30
#   [chunk 2: S = -2.84 -2.82 -2.83 -2.81 -2.80 -2.80 -2.82 -2.82 -> 4]
# ,14] 30+14=44 yes
# The answer is \boxed{30+7*2}.
# 95 tokens, 514 positions decoded, stop
