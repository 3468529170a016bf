"""The offline code assistant: k patches in one batch, the project's own tests decide.

In: a folder of the person, a task, an engine. Out: one patch, which the person accepts or not. The
folder is not touched before that.

    project.py     the person's folder: its files, their texts, what must not be changed
    listing.py     … which files: git's own list, or a walk that knows .gitignore
    byte_style.py  … bytes ↔ text: encodings, line ends
    edits/         from an answer's text to changed files
    syntax.py      languages by file name; definitions in a syntax tree
    outline.py     a file's classes and functions, with their lines
    evidence.py    what a task and the output of tests say about files
    prompt.py      the messages for the model
    context.py     what they show of a project, ranked and cut to a budget
"""
