"""Turns a prompt into a reply: one, several in the same batches, or its events as they come.

In: an engine, a prompt, a config, a method, of which it makes a `ReplyRequest`. Out: replies and
their events. It hands on what front ends need of `search` and `methods`, which they do not import:
records, methods by name, how long a text may be. It does not know HTTP, terminals, or how a method
searches.

prompt.py           Prompt, the query's tokens, the request, loading a model
chat_format.py      chat_query: a chat with tools in its template, the format of its replies
reply.py            Reply: the record of a reply, its events
single.py           generate, stream, generate_steps
checked.py          texts until one passes a check
many.py             generate_many, generate_each, write_each
runs.py             write_reply: the runs of a reply in their order; none is without an answer
draft.py            Draft: a reply so far, the run that goes on with it, and why each run ends
request.py          ReplyRequest, ReplyFormat: what to write; Reserve: what is kept for the answer
threads.py          in_threads, streamed: work in threads of its own
text.py             TextSplitter: tokens to pieces of thinking and answer, up to their ends
loops.py            is_loop: whether a text goes round in a loop
trace_file.py       the records of a run; writing and reading trace files
pooling.py          a text as one vector, how relevant documents are
control_vectors.py  ControlVector: files, arithmetic, the one that won a search
schemas/            JSON schemas as grammars
"""

from tgr_local import methods
from tgr_local.generation.chat_format import ChatQuery as ChatQuery
from tgr_local.generation.chat_format import Tools as Tools
from tgr_local.generation.chat_format import chat_query as chat_query
from tgr_local.generation.many import generate_each as generate_each
from tgr_local.generation.many import generate_many as generate_many
from tgr_local.generation.many import write_each as write_each
from tgr_local.generation.prompt import Prompt as Prompt
from tgr_local.generation.prompt import Query as Query
from tgr_local.generation.prompt import advised as advised
from tgr_local.generation.prompt import check_writes as check_writes
from tgr_local.generation.prompt import load as load
from tgr_local.generation.prompt import query_tokens as query_tokens
from tgr_local.generation.prompt import tokens_within as tokens_within
from tgr_local.generation.reply import Event as Event
from tgr_local.generation.reply import Reply as Reply
from tgr_local.generation.single import generate as generate
from tgr_local.generation.single import generate_steps as generate_steps
from tgr_local.generation.single import stream as stream
from tgr_local.generation.text import TextDelta as TextDelta
from tgr_local.generation.text import TextSplitter as TextSplitter
from tgr_local.generation.threads import in_threads as in_threads
from tgr_local.generation.threads import streamed as streamed
from tgr_local.search import strength
from tgr_local.search.capacity import longest_text as longest_text
from tgr_local.search.capacity import run_bytes as run_bytes
from tgr_local.search.capacity import text_in_cache as text_in_cache
from tgr_local.search.run import Method as Method
from tgr_local.search.scoring import Scores as Scores
from tgr_local.search.steps import Candidates as Candidates
from tgr_local.search.steps import Counts as Counts
from tgr_local.search.steps import Progress as Progress
from tgr_local.search.steps import Seconds as Seconds
from tgr_local.search.steps import Step as Step

METHODS, method_named, loaded_method = methods.METHODS, methods.get, methods.loaded
needs_strength, known_strength = strength.is_needed, strength.known
