"""``tgr-local eval``: methods compared on benchmarks, at equal k and at equal forward tokens.

In: tasks, systems (methods with options), an engine. Out: a run folder of samples and grades, and a
report. Methods do not know that they are evaluated; tasks and graders do not know methods.

    tasks + systems -> phases -> samples -> outcomes -> comparison -> verdict, tables, plots

    command.py     the subcommands; arguments.py, and request.py: the checked input of a run
    evaluation.py  carries out a run
    tasks/         the benchmarks; task.py is their interface
    systems.py     methods with options, as the command line and recipes write them
    recipe.py      published comparisons as TOML files, in recipes/
    manifest.py    everything that a run and its grades depend on; checked before it is resumed
    phases.py      what is missing; sampling.py has it made, making.py makes a sample
    ray_nodes.py   the engines of a Ray cluster
    samples.py     samples: their number, their seeds; read and written as JSON lines
    boundaries.py  the measurements of a reply's boundaries
    live.py        the progress of a run on stderr; forward tokens that it still takes
    grader.py      grades in worker processes; worker_main.py is the main loop of one
    programs.py    a program of a model in a sandbox: its output and how it ended
    run_folder.py  reads a run folder
    summary.py     samples of one or more runs -> outcomes that can be compared
    outcome.py     the numbers of one system on one task; metrics.py computes them
    comparison.py  outcomes at equal k and at equal forward tokens: what tables, plots, verdict show
    frontier.py    one answer: its accuracy against its forward tokens
    profiles.py    accuracy by group of problems
    average.py     several tasks in one table
    verdict.py     one sentence on what a comparison shows
    tables.py      the tables of a report, from table_*.py; paper.py: the paper's numbers, paper.csv
    plots.py       the plots of a report, from plot_*.py
    cases.py       boundaries and replies worth reading
    report.py      the report, and as Markdown; page.py: as HTML
"""
