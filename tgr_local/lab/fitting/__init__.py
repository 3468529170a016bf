"""Fitting probes: ``tgr-local probe``.

    questions → samples → grades and features → regressions → a file next to the model

questions.py   the questions, and what tells which replies are right
samples.py     draws samples of a question, and keeps what a probe sees of them
regression.py  fits a logistic regression, and measures how well it tells right from wrong
fit.py         fits a probe on samples, measures it on questions that it has not seen; its file
command.py     ``tgr-local probe fit``, ``show`` and ``test``
"""
