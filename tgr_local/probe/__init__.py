"""Probes: small classifiers that tell how likely a text of one model is right.

    samples of a task → grades → features → logistic regressions → a file beside the model

features.py   what is seen of a text: confidences, and the mean of its states
logistic.py   the regression, and how well it tells right from wrong
likeness.py   whether a text is like those that a probe was fitted on
answer.py     how likely the leading answer of several texts is right
record.py     a probe: the regressions, what they were fitted on, and its file
fitting.py    draws samples of a task, grades them, and fits a probe on them
command.py    ``tgr-local probe``

A probe knows nothing of methods; `methods.vote` uses one.
"""
