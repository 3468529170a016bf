"""The command line. In: arguments. Out: an exit code.

cli.py          parses the arguments, runs one subcommand, reports its error
subcommands.py  run, chat, serve, trace, doctor: their arguments, and how each begins; --show-config
run.py          … one question, and its replies on stdout
checks.py       … whether an answer is right, by a command of the person
models.py       models: list, show, pull, rm
removal.py      … deleting a model
hub.py          … which files a repository has
download.py     … downloading a file, with resumption and a checksum
doctor.py       doctor: what is used, and why
rpc_server.py   rpc-server: lends this machine's devices to a model elsewhere

The subcommands `code` and `acp` are in the folder `code`, and `eval`, `bench` in `lab`,
which is loaded when one of them is used. Here only hub.py and download.py connect to Hugging Face,
on request.
"""
