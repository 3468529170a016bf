"""The offline code assistant: k edits in one batch, the project's own tests decide.

In: a folder of the person, a task, an engine. Out: one edit, which the person accepts or not. The
folder is not touched before that.

    project.py     the person's folder: its files, their texts, what must not be changed
    listing.py     … which files: git's own list, or a walk that knows .gitignore
    byte_style.py  … bytes ↔ text: encodings, line ends
    snapshot.py    a copy of the folder at one moment, uncommitted work included
    copies.py      copies of it, each with the changes of a candidate
    judge.py       runs the tests in a copy, in the sandbox, and says what came of it
    test_output.py … what their output says; test_command.py: which command runs them; _check.py:
                   inside the sandbox, parses and imports files where there are no tests
    journal.py     accept and undo: all changes or none; exchange.py: one file
    edits/         from an answer's text to changed files
    syntax.py      languages by file name; definitions in a syntax tree
    outline.py     a file's classes and functions, with their lines
    evidence.py    what a task and the output of tests say about files
    prompt.py      the messages for the model
    context.py     what they show of a project, ranked and cut to a budget
    asking.py      what the model is asked: messages, the code to depart from, limits
    candidate.py   one answer: its edit and its verdict
    departures.py  where answers leave the code as it is: the likeliest first changes
    candidates.py  k answers in one batch, each judged as soon as it is complete
    combining.py   the edits of several in one, where each mends another test
    natural.py     from what a model writes by itself to changed files
    merging.py     the place of a block of code in its file
    imports.py     the imports that an edit needs and lacks
    ranking.py     which one is the best
    rounds.py      a task from its context to the best candidate; nothing is printed or changed
    workplace.py   a project with its copies, tests and accepted edits
    session.py     a person with a project: tasks, outcomes, options
    report.py      what a person sees meanwhile; table.py: candidates as a table, edits as a diff
    command.py     the arguments of `tgr-local code`; one_task.py: one task and its exit code
    repl.py        a session; repl_commands.py: its commands
    interrupts.py  Ctrl-C once and twice
    acp/           the same for editors: `tgr-local acp`
"""
