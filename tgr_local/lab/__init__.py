"""The laboratory: what measures the program and fits it, and methods that only papers use.

It imports the layers down to `console`, and no other folder imports it: `tgr_local.commands.cli`
loads its commands when one is used, and `tgr_local.methods` its methods.

    methods  methods of papers: ``--method got``
    eval     methods compared on benchmarks: ``tgr-local eval``
    bench    the speed on this machine, compared with llama.cpp: ``tgr-local bench``
"""
