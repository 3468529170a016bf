"""From a stream of steps to text: one reply, several at once, or pieces as they come.

In: an engine, a prompt, a config, the name of a method. Out: replies and their events. It knows
nothing of HTTP, files or terminals.
"""

from tgr_local.generation.reply import Event as Event
from tgr_local.generation.reply import Prompt as Prompt
from tgr_local.generation.reply import Reply as Reply
from tgr_local.generation.reply import advised as advised
from tgr_local.generation.reply import generate as generate
from tgr_local.generation.reply import generate_each as generate_each
from tgr_local.generation.reply import generate_many as generate_many
from tgr_local.generation.reply import generate_steps as generate_steps
from tgr_local.generation.reply import load as load
from tgr_local.generation.reply import prompt_tokens as prompt_tokens
from tgr_local.generation.reply import stream as stream
from tgr_local.generation.reply import together as together
from tgr_local.generation.reply import tokens_within as tokens_within
from tgr_local.generation.reply import told as told
from tgr_local.generation.text import TextDelta as TextDelta
from tgr_local.generation.text import TextSplitter as TextSplitter
