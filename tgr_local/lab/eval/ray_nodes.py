"""The engines of a Ray cluster as one `making.Maker`: an actor on each node holds one.

In: the address of a cluster, a model and its options. Out: the nodes, checked: every one computes
with the same model file, chat template and versions as this process; and a pool of them,
which makes samples. A sample that a lost node was making is made again by another one; its seed
decides what it is, not its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tgr_local.engine import Cancel, Engine, named_adapters, watched
from tgr_local.lab.eval import manifest
from tgr_local.lab.eval.making import EngineMaker, Job, Phase, failed
from tgr_local.lab.eval.samples import ENGINE, Sample
from tgr_local.options import model_files
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, InstallError, TgrError, describe
from tgr_local.system.versions import versions

LOCAL = "local"
"""The address of a cluster that is started on this machine, for this run."""
START_SECONDS = 600.0
"""A node's time to get a process, and to load the model."""
REACH_SECONDS = 5.0
"""The time for a connection to the cluster."""
ATTEMPTS = 3
"""Nodes that may be lost while they make the same sample, which may be the cause."""
_POLL_SECONDS = 0.5  # between looks at a flag that ends the run


class NodeLostError(Exception):
    """The node is gone, with what it was doing."""


def check_address(address: str) -> None:
    """ValueError for an address that cannot be one."""
    if address not in ("auto", LOCAL) and not re.fullmatch(r"(ray://)?[\w.\-\[\]:]+:\d+", address):
        raise ValueError(
            f"ray is {address!r:.60}, but must be HOST:PORT of a Ray cluster, auto for the one of "
            f"this machine, or {LOCAL}; name tasks before --ray"
        )


class NodeWorker:
    """The engine of a node, in a process that Ray starts there."""

    def load(self, model: str | None, config: EngineConfig) -> dict[str, Any]:
        """Loads the model. Returns what must be equal everywhere, and what may differ; or the error
        as one line."""
        try:
            engine = Engine(model_files.model_file(model), config)
            self._maker = EngineMaker(engine)
            return {"facts": facts_of(engine), "machine": manifest.machine(engine)}
        except (TgrError, ValueError, OSError) as error:
            return {"error": describe(error)}

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """Does `Maker.begin`."""
        return self._maker.begin(phase, n_cells, parallel, n_jobs)

    def make(self, job: Job, prompt: list[int] | None) -> tuple[Sample, int]:
        """Does `Maker.make`; returns also the positions that the engine has decoded so far."""
        sample = self._maker.make(job, prompt, Cancel())
        return sample, self._maker.positions


class RayNode:
    """One actor. Every call may raise NodeLostError."""

    def __init__(self, ray: Any, name: str, actor: Any, machine: dict[str, Any]) -> None:
        self._ray, self.name, self._actor = ray, name, actor
        self.machine = machine
        """Entry of the node in the manifest."""

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """Does `Maker.begin`; the phase comes without its problems."""
        called = self._actor.begin.remote(phase, n_cells, parallel, n_jobs)
        return int(self._result(called, Cancel()))

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> tuple[Sample, int]:
        result: tuple[Sample, int] = self._result(self._actor.make.remote(job, prompt), cancel)
        return result

    def _result(self, called: Any, cancel: Cancel) -> Any:
        errors = self._ray.exceptions
        while not self._ray.wait([called], timeout=_POLL_SECONDS)[0]:
            if cancel.is_set():
                raise CancelledError("the run was cancelled")
        try:
            return self._ray.get(called)
        except errors.RayTaskError as error:  # raised by our own code
            raise TgrError(f"{self.name}: {describe(error.cause)}") from error
        except errors.RayError as error:
            raise NodeLostError(_first_line(error)) from None


class NodePool:
    """A `Maker` over several nodes. A node that is lost is not asked again; `on_lost` gets one line
    that says which and why."""

    def __init__(self, nodes: Sequence[RayNode], on_lost: Callable[[str], None]) -> None:
        self._nodes, self._on_lost = list(nodes), on_lost
        self._slots: dict[str, int] = {}  # free ones, by the name of a node
        self._positions = dict.fromkeys((node.name for node in nodes), 0)
        self._changed = threading.Condition()
        self._lost = ""  # the last one, and why

    @property
    def positions(self) -> int:
        """Positions decoded so far; of a lost node, those until it handed over its last sample."""
        return sum(self._positions.values())

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """Jobs are spread evenly: no node takes more at a time than its share of `n_jobs`."""
        self._phase, self._slots = phase, {}
        light = dataclasses.replace(phase, problems=())
        for node in list(self._nodes):
            share = -(-n_jobs // max(len(self._nodes), 1))
            try:
                self._slots[node.name] = node.begin(light, n_cells, parallel, share)
            except NodeLostError as error:
                self._lose(node, error)
        if not self._nodes:
            raise self._none_left()
        return min(sum(self._slots.values()), n_jobs)

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> Sample:
        """Does `Maker.make`. TgrError where no node is left."""
        for _ in range(ATTEMPTS):
            node = self._take(cancel)
            try:
                sample, positions = node.make(job, prompt, cancel)
            except NodeLostError as error:
                self._lose(node, error)
                continue
            finally:
                self._give_back(node)
            with self._changed:
                self._positions[node.name] = max(self._positions[node.name], positions)
            return sample
        return failed(self._phase, job, f"{ENGINE}{ATTEMPTS} nodes were lost while they made it")

    def _take(self, cancel: Cancel) -> RayNode:
        """The node with most free slots, once there is one."""
        with watched(cancel, self._wake), self._changed:
            while True:
                if cancel.is_set():
                    raise CancelledError("the run was cancelled")
                if not self._nodes:
                    raise self._none_left()
                node = max(self._nodes, key=lambda node: self._slots[node.name])
                if self._slots[node.name] > 0:
                    self._slots[node.name] -= 1
                    return node
                self._changed.wait()

    def _give_back(self, node: RayNode) -> None:
        with self._changed:
            self._slots[node.name] += 1
            self._changed.notify()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _lose(self, node: RayNode, error: NodeLostError) -> None:
        with self._changed:
            is_new = node in self._nodes
            if is_new:
                self._nodes.remove(node)
                self._lost = f"{node.name} is lost ({error})"
            self._changed.notify_all()
        if is_new:
            self._on_lost(self._lost)

    def _none_left(self) -> TgrError:
        return TgrError(
            f"no node is left: {self._lost}; the samples so far are on the disk: start nodes, and "
            "the same command resumes the run"
        )


@contextlib.contextmanager
def connected(
    address: str, model: str | None, config: EngineConfig, own: Mapping[str, str]
) -> Iterator[list[RayNode]]:
    """A node on every machine of a Ray cluster that has processors or GPUs; their engines end with
    the block.

    `model` and the files that `config` names must be where this machine has them. `own` are this
    process' facts, with which those of every node must agree (`facts_of`). Raises InstallError
    without Ray, TgrError where the cluster cannot be reached or a node does not fit, naming it.
    """
    ray = import_ray()
    try:
        _reach(address)
        ray.init(
            address=address, logging_level="ERROR", log_to_driver=bool(os.environ.get("TGR_DEBUG")),
            **({"include_dashboard": False} if address == LOCAL else {}),
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise TgrError(
            f"the Ray cluster at {address} cannot be reached ({_first_line(error)}); start it with "
            "ray start --head, or correct --ray"
        ) from None
    try:
        adapters = named_adapters(config.lora)
        config = dataclasses.replace(
            config,
            lora=tuple(f"{absolute(str(adapter.path))}:{adapter.scale!r}" for adapter in adapters),
            chat_template=absolute(config.chat_template),
        )
        yield _start_nodes(ray, absolute(model or "") or None, config, own)
    finally:
        ray.shutdown()  # its actors end with their driver


def _reach(address: str) -> None:
    """OSError where nothing listens at an address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()


def absolute(path: str) -> str:
    """A file's path for the nodes, which have another current folder; other names as they are."""
    return os.path.abspath(path) if path and os.path.exists(path) else path


def facts_of(engine: Engine) -> dict[str, str]:
    """Returns the facts that all engines of a run must have in common."""
    facts = {"sha256": engine.model_hash, **manifest.anywhere(versions())}
    facts["chat template"] = hashlib.sha256(engine.chat_template.encode()).hexdigest()[:12]
    return facts


def _start_nodes(
    ray: Any, model: str | None, config: EngineConfig, own: Mapping[str, str]
) -> list[RayNode]:
    places = [_Machine.of(node) for node in ray.nodes() if node["Alive"]]
    places = sorted((place for place in places if place.cpus or place.gpus), key=lambda p: p.name)
    if not places:
        raise TgrError("the Ray cluster has no node with processors or GPUs; start one: ray start")
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actors = [
        ray.remote(NodeWorker).options(
            num_cpus=place.cpus, num_gpus=place.gpus, max_concurrency=config.n_seq_max,
            scheduling_strategy=affinity(place.id, soft=False),
        ).remote()
        for place in places
    ]  # fmt: skip
    loads = [actor.load.remote(model, config) for actor in actors]
    ready = set(ray.wait(loads, num_returns=len(loads), timeout=START_SECONDS)[0])
    nodes = []
    for place, actor, load in zip(places, actors, loads, strict=True):
        if load not in ready:
            raise TgrError(
                f"{place.name} had no engine after {START_SECONDS:g} s; free its processors of "
                "other work in Ray, or stop Ray there"
            )
        try:
            answer = ray.get(load)
        except ray.exceptions.RayError as error:
            raise TgrError(
                f"{place.name} cannot run an engine ({_first_line(error)}); install the same "
                "tgr-local there, or stop Ray there"
            ) from None
        check_facts(place.name, answer, own)
        nodes.append(RayNode(ray, place.name, actor, answer["machine"]))
    return nodes


@dataclasses.dataclass(frozen=True)
class _Machine:
    """A machine of the cluster."""

    id: str
    name: str
    cpus: float
    gpus: float

    @staticmethod
    def of(node: Mapping[str, Any]) -> _Machine:
        free = node["Resources"]
        name = f"node {node['NodeManagerAddress']} ({node['NodeID'][:6]})"
        return _Machine(node["NodeID"], name, free.get("CPU", 0), free.get("GPU", 0))


def check_facts(name: str, answer: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """TgrError where a node's answer to `NodeWorker.load` is an error, or differs from `own`."""
    if "error" in answer:
        raise TgrError(f"{name}: {answer['error']}")
    facts = answer["facts"]
    for key in sorted({*own, *facts}):
        mine, theirs = own.get(key, "absent"), facts.get(key, "absent")
        if mine != theirs and key == "sha256":
            raise TgrError(
                f"{name} has another model file (sha256 {theirs[:12]}… instead of {mine[:12]}…); "
                "copy this machine's to the same path there"
            )
        if mine != theirs:
            raise TgrError(f"{name} has {key} {theirs}, but here is {mine}; install the same there")


def machines(nodes: Sequence[RayNode]) -> list[dict[str, Any]]:
    """The different machines of the nodes, as a manifest lists them."""
    different: list[dict[str, Any]] = []
    for node in nodes:
        if node.machine not in different:
            different.append(node.machine)
    return different


def _first_line(error: BaseException) -> str:
    """The part of Ray's message that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    return (causes[-1:] or lines[:1] or [type(error).__name__])[0][:200].rstrip(".")


def import_ray() -> Any:
    """The package, which is optional. InstallError without it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing here reports to anybody
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that is started here
    try:
        importlib.import_module("ray.util.scheduling_strategies")
        return importlib.import_module("ray")
    except ImportError:
        raise InstallError(
            "--ray needs Ray, which is not installed; run: pip install 'tgr-local[ray]'"
        ) from None
