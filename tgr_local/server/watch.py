"""Notices a device that does not answer: the requests of its model end, and no more begin.

A step on a device that hangs never ends, and neither does the thread of a request that waits for
it. Only the event loop uses a watch. The model is used again once its device has answered.
"""

from __future__ import annotations

import asyncio

from tgr_local.server.errors import ApiError
from tgr_local.server.jobs import Jobs
from tgr_local.server.loaded import LoadedModel
from tgr_local.server.pool import Pool

_LOOK_SECONDS = 1.0


class DeviceWatch:
    """Watches the models of a pool, each for `seconds` without a result; 0 = it watches none."""

    def __init__(self, pool: Pool, jobs: tuple[Jobs, ...], seconds: float) -> None:
        self._pool, self._jobs, self._seconds = pool, jobs, seconds

    async def run(self) -> None:
        """Looks at the models until it is cancelled."""
        while self._seconds:
            await asyncio.sleep(_LOOK_SECONDS)
            for model in self._pool.loaded:
                was_hung = self.error(model)
                await model.look(_LOOK_SECONDS)
                error = self.error(model)
                if error and not was_hung:
                    for jobs in self._jobs:
                        jobs.fail(model, error)

    def check(self, *models: LoadedModel | None) -> None:
        """Raises ApiError for the first model whose device does not answer."""
        for model in models:
            if model and (error := self.error(model)):
                raise error

    def error(self, model: LoadedModel) -> ApiError | None:
        """The error for the requests of a model whose device does not answer."""
        if not self._seconds or model.silent < self._seconds:
            return None
        devices = ", ".join(model.devices)
        return ApiError(
            503,
            f"the model {model.name!r} has had no result from its device ({devices}) for "
            f"{model.silent:.0f} s; if it hangs, start the server again, without that device; if "
            "it is slow, set --device-seconds higher",
            code="device_hangs",
            headers={"Retry-After": "30"},
        )
