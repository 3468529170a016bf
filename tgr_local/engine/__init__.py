"""One model, one KV cache, and one worker thread that decodes all running work together.

In: token ids, injections, sampling options. Out: token ids, log-probabilities, hidden states. The
tokenizer and the chat template of a model file are here too. The engine does not
know requests, anchors or methods, nor when a reply is complete. Only this folder imports `_engine`;
any number of Python threads may use an `Engine`.

A `Session` reserves cells of the cache and owns `Sequence` and `Injection` handles. Work is a list
of `Task`, decoded together by `Session.run`, which returns one `Output` for each.

engine.py          Engine: text functions, capacity, sessions
adapters.py        LoRA adapters: files, scales, checks
session.py         Session, Sequence, Injection, Task, Added; LockstepGroup, Participant: sessions
                   decoded in the same batches
prefix_files.py    remembered prefixes in files; a fake prefix for measurements
steered.py         SteeredEngine: a view of an engine, whose sessions are steered
records.py         Sampling, GrammarTrigger, Output, EngineStats
devices.py         devices of ggml, cores
rpc.py             servers that hold a part of a model
memory_check.py    whether a model fits into memory
installation.py    warnings where the GPU of this machine is not used; loading with a progress line
vulkan.py          ggml's Vulkan backend: whether it is loaded, and the reason
vulkan_child.py    the process that asks Vulkan's drivers
waits.py           deadlocks between threads that wait for reservations
threads.py         threads in native code at the end of the program and at a fork
native.py          loads the extension
templates/         chat templates: messages in, the text of a prompt out
"""

from tgr_local.engine.adapters import Adapter as Adapter
from tgr_local.engine.adapters import named_adapters as named_adapters
from tgr_local.engine.adapters import rescaled as rescaled
from tgr_local.engine.devices import available_memory as available_memory
from tgr_local.engine.devices import backend_devices as backend_devices
from tgr_local.engine.devices import default_threads as default_threads
from tgr_local.engine.devices import physical_cores as physical_cores
from tgr_local.engine.devices import require_address_space as require_address_space
from tgr_local.engine.devices import serve_devices as serve_devices
from tgr_local.engine.engine import Engine as Engine
from tgr_local.engine.memory_check import FreeMemory as FreeMemory
from tgr_local.engine.memory_check import MemoryCheck as MemoryCheck
from tgr_local.engine.memory_check import MemoryNeed as MemoryNeed
from tgr_local.engine.memory_check import check_memory as check_memory
from tgr_local.engine.memory_check import free_memory as free_memory
from tgr_local.engine.memory_check import memory_need as memory_need
from tgr_local.engine.native import LLAMA_CPP_PYTHON as LLAMA_CPP_PYTHON
from tgr_local.engine.records import EngineStats as EngineStats
from tgr_local.engine.records import GrammarTrigger as GrammarTrigger
from tgr_local.engine.records import LayerFit as LayerFit
from tgr_local.engine.records import Output as Output
from tgr_local.engine.records import Sampling as Sampling
from tgr_local.engine.session import Injection as Injection
from tgr_local.engine.session import LockstepGroup as LockstepGroup
from tgr_local.engine.session import New as New
from tgr_local.engine.session import OnTokens as OnTokens
from tgr_local.engine.session import Participant as Participant
from tgr_local.engine.session import Sequence as Sequence
from tgr_local.engine.session import Session as Session
from tgr_local.engine.session import Task as Task
from tgr_local.engine.steered import SteeredEngine as SteeredEngine
from tgr_local.engine.templates.prompt_text import ControlTexts as ControlTexts
from tgr_local.engine.templates.prompt_text import PromptText as PromptText
from tgr_local.engine.threads import Workers as Workers
from tgr_local.engine.threads import start_thread as start_thread
from tgr_local.engine.waits import awaited_by as awaited_by
from tgr_local.engine.waits import awaiting as awaiting
from tgr_local.system.cancel import Cancel as Cancel
from tgr_local.system.cancel import check_cancelled as check_cancelled
from tgr_local.system.cancel import watched as watched
