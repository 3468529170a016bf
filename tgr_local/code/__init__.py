"""The offline code assistant: k patches in one batch, the project's own tests decide.

In: a folder of the person, a task, an engine. Out: one patch, which the person accepts or not. The
folder is not touched before that.

    edits/         from an answer's text to changed files
"""
