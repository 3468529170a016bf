"""Methods for comparisons: `tgr_local.methods` loads one when it is used.

Each module has one `METHOD` record, and imports the layers down to `methods`.

best_of_n.py         n samples; the likeliest one
self_consistency.py  n samples; the most frequent answer
random_anchor.py     an anchor at every chunk, drawn without a search
tgr_token.py         rollouts without anchors; the best one begins the chunk
hard_geometry.py     anchors accepted or rejected by a rule
power.py             Metropolis-Hastings towards p^α
tot.py               Tree of Thoughts
got.py               Graph of Thoughts
"""
