"""The engine: many steered sequences, decoded together.

In: tokens, injections, what to read. Out: tokens, log-probabilities, hidden states. It knows
nothing of anchors, methods or text. This folder alone touches the native extension.
"""

from tgr_local.engine.handles import LLAMA_CPP_PYTHON as LLAMA_CPP_PYTHON
from tgr_local.engine.handles import Cancel as Cancel
from tgr_local.engine.handles import Engine as Engine
from tgr_local.engine.handles import EngineStats as EngineStats
from tgr_local.engine.handles import Injection as Injection
from tgr_local.engine.handles import LockstepGroup as LockstepGroup
from tgr_local.engine.handles import Output as Output
from tgr_local.engine.handles import Participant as Participant
from tgr_local.engine.handles import Sampling as Sampling
from tgr_local.engine.handles import Sequence as Sequence
from tgr_local.engine.handles import Session as Session
from tgr_local.engine.handles import Task as Task
from tgr_local.engine.handles import _native_task as _native_task
from tgr_local.engine.handles import awaited_by as awaited_by
from tgr_local.engine.handles import awaiting as awaiting
from tgr_local.engine.handles import backend_devices as backend_devices
from tgr_local.engine.handles import physical_cores as physical_cores
from tgr_local.engine.handles import start_thread as start_thread
