"""A patch in place, killed at every step: afterwards the model is its base or its target, bit for bit.

A child process wears the one hook of the module, which is called between all its steps, and kills itself there by
SIGKILL. One driver process loads the library and forks a child for every step, so that every step can have its own.
"""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from thinwire.cli import app
from thinwire.patch import diff, encode, undo
from thinwire.patch.files import undo_place

DRIVER = textwrap.dedent(
    """
    import json, os, random, shutil, signal, sys, time
    from pathlib import Path

    import torch
    from thinwire.patch import undo

    torch.set_num_threads(1)

    def run(work, stop, names):
        child = os.fork()
        if not child:
            signal.alarm(60)
            seen = []

            def step(name):
                seen.append(name)
                os.write(names, (name + "\\n").encode())
                if len(seen) == stop:
                    os.kill(os.getpid(), signal.SIGKILL)

            undo._step = step
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    def steps_of(work, stop):
        out, into = os.pipe()
        status = run(work, stop, into)
        os.close(into)
        with os.fdopen(out) as told:
            names = told.read().split("\\n")[:-1]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, (status, names)
        return names, status == 0

    place, frame = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()

    def every_step(start, name_of, work_of):
        for stop in range(1, 100):
            here = name_of(stop)
            if start.is_dir():
                shutil.copytree(start, here)
            else:
                shutil.copy(start, here)
            names, whole = steps_of(work_of(here), stop)
            print(json.dumps([here.name, names, whole]), flush=True)
            if whole:
                return
            yield here

    def apply_work(here):
        return lambda: undo.apply_in_place(here, frame)

    def restore_work(here):
        return lambda: undo.restore(here)

    def at_every_step():
        # loads what every child would load again; so few bytes are hashed without threads, which no fork inherits
        shutil.copytree(place / "base", place / "warm")
        undo.apply_in_place(place / "warm", frame)
        for torn in list(every_step(place / "base", lambda k: place / f"apply{k}", apply_work)):
            list(every_step(torn, lambda k: place / f"{torn.name}-restore{k}", restore_work))

    def at_random_moments():
        chance = random.Random(0)
        for turn in range(4):
            here = place / f"turn{turn}"
            shutil.copytree(place / "base", here)
            child = os.fork()
            if not child:
                signal.alarm(60)
                try:
                    undo.apply_in_place(here, frame)
                finally:
                    os._exit(0)
            while not undo.undo_place(here).exists():
                assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(chance.random() * 0.02)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    {"steps": at_every_step, "moments": at_random_moments}[sys.argv[3]]()
    """
)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def make_pair(place, size=2000):
    """A base of three tensors in two shards, a target in which each changed, and the frame between them."""
    generator = np.random.default_rng(0)
    base = {
        name: torch.from_numpy(generator.integers(0, 1 << 15, size, dtype=np.int16)).view(torch.bfloat16)
        for name in "abc"
    }
    target = {name: (tensor.view(torch.int16) ^ 1).view(torch.bfloat16) for name, tensor in base.items()}
    for word, state in (("base", base), ("target", target)):
        (place / word).mkdir(parents=True)
        save_file({name: state[name] for name in "ab"}, place / word / "1.safetensors")
        save_file({"c": state["c"]}, place / word / "2.safetensors", metadata={"kept": "yes"})
    frame = encode(diff(base, target), base)
    (place / "frame").write_bytes(frame)
    return frame


def drive(place, word):
    """Run the driver and return what it printed."""
    words = [sys.executable, "-c", DRIVER, place, place / "frame", word]
    driven = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert driven.returncode == 0, driven.stderr
    return driven.stdout


def test_killed_at_every_step_the_model_is_base_or_target(tmp_path):
    make_pair(tmp_path)
    base, target = contents(tmp_path / "base"), contents(tmp_path / "target")
    told = [json.loads(line) for line in drive(tmp_path, "steps").splitlines()]
    applied = {name: (steps, whole) for name, steps, whole in told if "-" not in name}
    restored = {name: (steps, whole) for name, steps, whole in told if "-" in name}
    every = [
        "record begun", "record written", "record named", "record in place",
        "wrote a", "wrote b", "wrote c", "flushed", "read again", "record removed",
    ]  # fmt: skip
    assert applied[f"apply{len(every) + 1}"] == (every, True)
    assert [applied[f"apply{k}"] for k in range(1, len(every) + 1)] == [
        (every[:k], False) for k in range(1, len(every) + 1)
    ]
    back = ["record read", "wrote a", "wrote b", "wrote c", "flushed", "read again", "record removed"]
    assert sum(not whole for _, whole in restored.values()) == len(back) * (len(every) - 3)
    torn = 0
    for name, (steps, whole) in (applied | restored).items():
        folder = tmp_path / name
        weights = {file: data for file, data in contents(folder).items() if file.endswith(".safetensors")}
        torn += weights not in (base, target)
        record = undo_place(folder).exists()
        assert (undo.restore(folder) is not None) == record
        complete = applied[name.partition("-")[0]][0][-1] == "record removed"
        assert contents(folder) == (target if complete else base) | leftovers(folder), (name, steps)
        assert not undo_place(folder).exists()
        assert not whole or not record
    assert torn > 8


def leftovers(folder):
    """A record that was never named: the next patch removes it."""
    return {name: data for name, data in contents(folder).items() if name.endswith(".partial")}


def test_after_a_kill_the_next_patch_clears_what_was_left(tmp_path):
    frame = make_pair(tmp_path)
    folder = tmp_path / "base"
    left = undo_place(folder).with_name(f"{undo_place(folder).name}.12345.partial")
    left.write_bytes(frame[:100])
    undo.apply_in_place(folder, frame)
    assert contents(folder) == contents(tmp_path / "target")


def test_killed_at_a_random_moment_the_model_is_restored(tmp_path):
    make_pair(tmp_path, size=1 << 18)
    base, target = contents(tmp_path / "base"), contents(tmp_path / "target")
    drive(tmp_path, "moments")
    killed = 0
    for turn in range(4):
        folder = tmp_path / f"turn{turn}"
        killed += undo_place(folder).exists()
        if undo.restore(folder) is None:
            assert contents(folder) == target
        else:
            assert contents(folder) == base
    assert killed > 1


HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from thinwire.patch import undo

    def step(name):
        if name == "wrote a":
            print(name, flush=True)
            sys.stdin.readline()

    undo._step = step
    undo.apply_in_place(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
    """
)


def test_two_processes_do_not_patch_one_model_at_once(tmp_path):
    make_pair(tmp_path)
    folder, frame = tmp_path / "base", tmp_path / "frame"
    words = [sys.executable, "-c", HOLDER, folder, frame]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "wrote a\n"
        for command in (
            ["apply", folder, frame, "--in-place"],
            ["apply", folder, frame, "-o", tmp_path / "out"],
            ["restore", folder],
            ["verify", folder, frame],
            ["diff", folder, tmp_path / "target", "-o", tmp_path / "out"],
        ):
            result = CliRunner().invoke(app, [str(word) for word in command])
            assert result.exit_code == 1, result.output
            assert "by another process" in result.stderr
            assert result.stderr.count("\n") == 1
        holder.stdin.write("\n")
        holder.stdin.close()
        assert holder.wait(60) == 0
    assert contents(folder) == contents(tmp_path / "target")
    assert not (tmp_path / "out").exists()


MEMORY = textwrap.dedent(
    """
    import sys, threading, time
    from pathlib import Path

    import torch
    from thinwire.patch import diff, encode, undo
    from thinwire.patch.files import hash_state, open_model

    torch.set_num_threads(2)

    def anonymous():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

    def work(place):
        with open_model(place / "base") as old, open_model(place / "target") as fresh:
            base, target = old.state(), fresh.state()
            trees = hash_state(base), hash_state(target)
            patch = diff(base, target, base_tree=trees[0], target_tree=trees[1])
            frame = encode(patch, base)
            size = sum(part.positions.nbytes + part.bits.nbytes for part in patch.tensors)
        del base, target, patch
        undo.apply_in_place(place / "base", frame)
        return size

    work(Path(sys.argv[1]) / "small")
    start, peak, ended = anonymous(), 0, False

    def watch():
        global peak
        while not ended:
            peak = max(peak, anonymous())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    size = work(Path(sys.argv[1]) / "large")
    ended = True
    thread.join()
    print(size, peak - start)
    """
)


def large_pair(place, size):
    """Two versions of two tensors of ``size`` bytes in all, in which a half of one per cent of the weights differ."""
    generator = np.random.default_rng(0)
    rows = {name: generator.integers(0, 1 << 15, size // 4, dtype=np.int16) for name in "ab"}
    place.mkdir()
    save_file({name: torch.from_numpy(row).view(torch.bfloat16) for name, row in rows.items()}, place / "base")
    for row in rows.values():
        row[generator.integers(0, row.size, row.size // 200)] ^= 1
    save_file({name: torch.from_numpy(row).view(torch.bfloat16) for name, row in rows.items()}, place / "target")


@pytest.mark.parametrize("mib", [96, pytest.param(300, marks=pytest.mark.slow)])
def test_memory_is_of_the_order_of_the_patch(tmp_path, mib):
    large_pair(tmp_path / "small", 4 << 20)
    large_pair(tmp_path / "large", mib << 20)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    patch, growth = map(int, done.stdout.split())
    assert 0.02 < patch / (mib << 20) < 0.03
    assert growth <= patch + (64 << 20)
    assert (tmp_path / "large" / "base").read_bytes() == (tmp_path / "large" / "target").read_bytes()
