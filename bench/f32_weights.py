"""A copy of a model file without quantization, for comparisons that rounding would disturb."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def with_f32_weights(model: Path, copy: Path) -> Path:
    """Writes the same model without quantization; returns the copy's path."""
    reader = gguf.GGUFReader(model)
    arch = "general.architecture"
    writer = gguf.GGUFWriter(copy, reader.fields[arch].contents())
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != arch:
            kind, *inner = entry.types
            writer.add_key_value(name, entry.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy
