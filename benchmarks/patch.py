"""How small and how fast is a patch on this machine: ``python -m benchmarks.patch [OLD NEW]``.

Two versions of a model are read (safetensors files, or folders of shards), or made: Gaussian weights in BF16 before and
after one step of Adam's size on an FP32 master, whose position within the rounding cell is random. Every codec must
bring the second version over bit for bit; then sizes and speeds are printed. The code is that of the study
``patch_codec``.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

from thinwire.patch import FrameError, State, state_digest
from thinwire_lab.experiments.patch_codec_bound import entropy_bound
from thinwire_lab.experiments.patch_codec_memory import extra_memory
from thinwire_lab.experiments.patch_codec_rivals import DIGESTED, PUBLISHED, Codec, Step, codecs, hashing_codecs, undo
from thinwire_lab.experiments.patch_codec_speed import Summary, Timing, time_codecs

WEIGHTS_SEED, STEP_SEED = 0, 1
WIDTH = 1024


def made_versions(mebibytes: float, lr: float) -> tuple[State, State]:
    """Return two versions of BF16 weights of a size in MiB, ``WIDTH`` columns to a row, and a norm.

    Weights are Gaussian, of standard deviation 0.02; the step is ``lr`` times a unit Gaussian, as large as Adam's. The
    generators have the seeds ``WEIGHTS_SEED`` and ``STEP_SEED``.
    """
    weights, step = (torch.Generator().manual_seed(seed) for seed in (WEIGHTS_SEED, STEP_SEED))
    rows = max(1, round(mebibytes * 2**20 / 2 / WIDTH))
    heights = [min(4096, rows - start) for start in range(0, rows, 4096)]
    shapes = {f"layers.{index:03d}.weight": (height, WIDTH) for index, height in enumerate(heights)}
    base, target = {}, {}
    for name, shape in {**shapes, "norm.weight": (WIDTH,)}.items():
        master = torch.randn(shape, generator=weights) * 0.02
        base[name] = master.bfloat16()
        target[name] = (master - lr * torch.randn(shape, generator=step)).bfloat16()
    return base, target


def loaded(path: Path) -> State:
    """Return the tensors of a safetensors file or of all in a folder. Raises SystemExit where there is none."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise SystemExit(f"{path}: no safetensors file")
    return {name: tensor.clone() for file in files for name, tensor in load_file(file).items()}


def carried(step: Step, state: State, listed: Iterable[Codec]) -> tuple[dict[str, int], list[Codec]]:
    """Return the bytes by codec, and the codecs that carry this step; others are named with their reason.

    Raises SystemExit for a codec that does not bring ``state`` to the target bit for bit.
    """
    patch, sizes, kept = step.patch(), {}, []
    for codec in listed:
        try:
            data = codec.write(step)
        except FrameError:
            raise
        except ValueError as error:  # what the published layout refuses by name
            print(f"{codec.name} is left out: {error}", file=sys.stderr)
            continue
        codec.read(data, state, step)
        if state_digest(state, threads=step.threads) != step.target_tree.root:
            raise SystemExit(f"{codec.name} did not bring the version over")
        undo(state, step, patch)
        sizes[codec.name] = len(data)
        kept.append(codec)
    return sizes, kept


def _rate(timing: Timing, side: dict[str, list[float]], name: str) -> str:
    if not side.get(name):
        return ""
    ratio, rate = timing.over_equal(side, name), Summary.of(side[name])
    return f"{ratio.median:6.3f} ({ratio.low:.3f} to {ratio.high:.3f}) {rate.median / 1e9:6.2f} GB/s"


def show(step: Step, sizes: dict[str, int], timing: Timing, bound: float | None) -> None:
    """Print the table: a row for each codec, smallest first."""
    changed = step.patch().changed
    print(f"{'codec':19}{'bytes':>12}{'bits':>7}{'/publ.':>8}{'/bound':>8}", end="")
    print(f"  {'compare + encode / torch.equal':36}  decode + apply / torch.equal")
    for name in sorted(sizes, key=lambda name: sizes[name]):
        bits = 8 * sizes[name] / changed
        over = f"{sizes[name] / sizes[PUBLISHED]:8.3f}" if PUBLISHED in sizes else f"{'':8}"
        near = f"{bits / bound:8.2f}" if bound else f"{'':8}"
        rates = f"  {_rate(timing, timing.encode, name):36}  {_rate(timing, timing.decode, name)}"
        print(f"{name:19}{sizes[name]:12,}{bits:7.2f}{over}{near}{rates}".rstrip())
    if timing.public:
        print(f"{'public_decode':54}  {'':36}  {_rate(timing, {'public': timing.public}, 'public')}")
        over = timing.over_public("published")
        print(f"published, decode + apply / public_decode: {over.median:.2f} ({over.low:.2f} to {over.high:.2f})")


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patch", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="two versions, the older first")
    parser.add_argument("--mib", type=float, default=256, help="size of the made weights (default 256 MiB)")
    parser.add_argument("--lr", type=float, default=1e-6, help="step of the made weights (default 1e-6)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: torch's")
    parser.add_argument("--repeats", type=int, default=7, help="timed repeats of the quick codecs (default 7)")
    parser.add_argument("--slow-repeats", type=int, default=1, help="of the slow ones (default 1)")
    parser.add_argument("--rare", action="store_true", help="sizes of zstd --patch-from too: slow, and much memory")
    parser.add_argument("--memory", action="store_true", help="extra memory too, in processes of its own")
    asked = parser.parse_args(argv)
    if len(asked.models) not in (0, 2):
        parser.error("two models are needed, or none")
    torch.set_num_threads(asked.threads)
    base, target = (loaded(path) for path in asked.models) if asked.models else made_versions(asked.mib, asked.lr)
    step = Step.of(base, target, asked.threads)
    compared = step.compared()
    patch = compared.patch()
    if patch.whole or patch.removed or not patch.changed:
        raise SystemExit("the versions have other tensors, or are equal: nothing to compare codecs on")
    state = {name: tensor.clone() for name, tensor in base.items()}
    listed = [codec for codec in codecs() if codec.reach == "version" or (asked.rare and codec.reach == "rare")]
    sizes, kept = carried(compared, state, [*listed, *hashing_codecs()])
    try:
        bound: float | None = entropy_bound(base, patch).total
    except ValueError:
        bound = None  # of integer weights
    timing = time_codecs(step, state, kept, repeats=asked.repeats, slow_repeats=asked.slow_repeats)
    equal, digest = Summary.of(timing.equal), Summary.of(timing.digest)
    print(f"{step.full_bytes:,} bytes of weights, {patch.changed:,} of {patch.total:,} change", end="")
    print(f"; conditional entropy {bound:.2f} bits a change" if bound else "")
    print(f"{asked.threads} threads; torch.equal {equal.median / 1e9:.2f} GB/s ", end="")
    print(f"({equal.low / 1e9:.2f} to {equal.high / 1e9:.2f}), state digest {digest.median / 1e9:.2f} GB/s\n")
    show(compared, sizes, timing, bound)
    if asked.memory:
        for encoding, sides in extra_memory(base, target, DIGESTED, asked.threads).items():
            print(f"{encoding}: {sides['encode']:.1f} MiB beyond the patch to write, {sides['decode']:.1f} to read")


if __name__ == "__main__":
    main()
