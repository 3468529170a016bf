"""The offline code assistant: k edits in one batch, the project's own tests decide.

In: a folder of the person, a task, an engine. Out: one edit, which the person accepts or not. The
folder is not touched before that.

A folder imports those above it, and the modules below import all of them:

    edits/         a file's text; from an answer in a form of edits to changed files
    folder/        the person's folder: read, copied, changed
    judging/       runs the tests on a copy and reads their results; ranks the candidates
    reading/       chooses the files and functions that the model sees; makes the prompt
    writing/       writes k answers, and reads the edit in each

    rounds.py      a task from its context to the best candidate; nothing is printed or changed
    workplace.py   a project with its copies, tests and accepted edits
    session.py     a person with a project: tasks, outcomes, options
    closing.py     sentences after a task: how sure a pass is, or what was tried and may help
    report.py      the output during a task; table.py: candidates as a table, edits as a diff
    command.py     the arguments of `tgr-local code`; one_task.py: one task and its exit code
    repl.py        a session; repl_commands.py: its commands
    interrupts.py  Ctrl-C once and twice

    acp/           the same for editors: `tgr-local acp`
"""
