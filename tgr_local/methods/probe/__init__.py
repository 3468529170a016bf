"""Probes: small classifiers that tell how likely a text of one model is right.

features.py     what is seen of a text: confidences, and two of its states
classifiers.py  a logistic regression; whether a text is like those that a probe was fitted on
answer.py       how likely the leading answer of several texts is right
record.py       a probe: the regressions, what they were fitted on, and its file

A probe knows nothing of methods. `methods.vote` uses one, and `tgr_local.lab.fitting`
fits one.
"""
