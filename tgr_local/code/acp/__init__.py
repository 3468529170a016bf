"""`tgr-local acp`: the code assistant as an agent of the Agent Client Protocol, for editors.

In: the protocol's messages on stdin. Out: its messages on stdout; a prompt runs the same rounds as
`tgr-local code`.

    command.py    the arguments
    server.py     the process: its streams, its signals, its end
    wire.py       lines ↔ messages, within limits
    agent.py      the protocol's methods; prompts run one at a time, in a thread of their own
    blocks.py     a prompt's blocks → a task and files
    turn.py       one prompt: a command, or a task whose edit the person allows
    follower.py   a task under way as a plan, tool calls and thoughts
    editor.py     messages and requests from that thread to the client
"""
