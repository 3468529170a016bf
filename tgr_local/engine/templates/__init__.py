"""Chat templates: messages in, the text of a prompt out, and how the replies to it are read.

`Engine.apply_template` applies the template of a model. It is a program of the model's file, so
llama.cpp runs it in a process with limits (`system.confined`). `generation.chat_format` makes a
query of the result, with functions that the model may call.

choice.py       the template of a model: of its file, one that the user names, a plain one
messages.py     the messages of a chat, as templates want them, and the one that is continued
forms.py        other forms of the messages, for a template that refuses them or leaves some out
rendering.py    a template applied to messages whose texts stay texts
prompt_text.py  PromptText: a prompt, in which what users write is not a control token
"""
