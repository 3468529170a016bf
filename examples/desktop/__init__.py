"""A desktop program: conversations with a model, and the search behind each reply, in PySide6.

    cd examples && python -m desktop [MODEL.gguf]

__main__.py      the arguments, the application, the end of the program
window.py        the window: conversations, the loaded model, keyboard
conversation.py  one conversation: its messages, the reply under way, the input
message.py       a question or a reply on the screen, its thinking folded
input.py         the input, and long pastes
search_view.py   the scores of the candidates at every boundary
models.py        the dialog that chooses a model, with a memory check
settings.py      what is kept between two runs, and its dialog
worker.py        the threads: they load a model, write a reply, and post Qt signals
look.py          colours and style sheet, light and dark
latency.py       measures the event loop and cancelling
"""
