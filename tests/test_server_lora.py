"""LoRA adapters of a server: those of its start hold for every request, and are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import EXACT
from lora_files import pairs_for, write_adapter
from serving import served_here

from tgr_local import TgrLlama

BODY: dict[str, Any] = {"prompt": "he said", "max_tokens": 12, "temperature": 0}


@pytest.mark.parametrize("scale", [0.5, -0.7])
def test_the_scale_of_the_start_holds_for_every_request(model: Any, tmp_path, scale: float):
    adapter: Path = write_adapter(tmp_path / "adapter.gguf", pairs_for(model()))
    names = ("type_k", "type_v", "flash_attn", "n_gpu_layers", "n_threads")
    options: dict[str, Any] = {name: EXACT[name] for name in names}
    with TgrLlama(model(), lora_path=adapter, lora_scale=scale, **options) as llm:
        alone = llm.create_completion(method="base", **BODY)["choices"][0]["text"]
    with TgrLlama(model(), **options) as llm:
        assert alone != llm.create_completion(method="base", **BODY)["choices"][0]["text"]
    with served_here(model(), lora=f"{adapter}:{scale}", method="base") as server:
        get, post = server.client.get, server.client.post
        listed = [{"id": 0, "path": "adapter.gguf", "scale": scale}]
        assert get("/lora-adapters").json() == get("/props").json()["lora"] == listed
        refused = post("/lora-adapters", json=[{"id": 0, "scale": 1}])
        assert refused.status_code == 501
        assert "serve --lora FILE:SCALE" in refused.json()["error"]["message"]
        for sent in (BODY, BODY | {"lora": []}):
            answer = post("/v1/completions", json=sent).json()
            assert answer["choices"][0]["text"] == alone
        refused = post("/v1/completions", json=BODY | {"lora": [{"id": 0, "scale": 1}]})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "lora"


def test_a_server_without_adapters_lists_none(model: Any):
    with served_here(model(), method="base") as server:
        assert server.client.get("/lora-adapters").json() == []
