# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reading the results
#
# Every figure, verdict and sentence of the report is made from a handful of CSV tables, the *summaries*. This
# notebook reads them with nothing but pandas, rebuilds one interval by hand, draws one curve, and checks one verdict.
# It runs on the committed results; set the environment variable `THINWIRE_RESULTS` to look at another folder, say
# `results/smoke`.

# %%
import math
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path.cwd() if (Path.cwd() / "configs").exists() else Path.cwd().parent
RESULTS = Path(os.environ.get("THINWIRE_RESULTS", ROOT / "results" / "laptop"))
STUDY = "update_sparsity"
SUMMARIES = RESULTS / "summaries" / STUDY
sorted(path.name for path in SUMMARIES.iterdir())

# %% [markdown]
# ## One number a cell
#
# A study has a grid. A point of it is a *cell*; a cell with a seed is a *run*. `totals.csv` has one row for each cell
# and *measure*: the mean over the seeds, and the interval around it.

# %%
totals = pd.read_csv(SUMMARIES / "totals.csv")
MEASURE = "step_sparsity"
totals[(totals["measure"] == MEASURE) & (totals["scope"] == "all")][["cell", "n", "mean", "lower", "upper"]]

# %% [markdown]
# ## Where the interval comes from
#
# `seeds.csv` has the same measure by run. The interval is Student's: the mean, plus and minus a quantile of the t
# distribution times the standard error. Let us rebuild it for the cell with the most seeds.

# %%
seeds = pd.read_csv(SUMMARIES / "seeds.csv")
mine = seeds[(seeds["measure"] == MEASURE) & (seeds["scope"] == "all")]
cell = mine.groupby("cell")["seed"].count().idxmax()
values = mine.loc[mine["cell"] == cell, "value"].to_numpy()
n = len(values)
print(cell, values)

written = totals[(totals["measure"] == MEASURE) & (totals["scope"] == "all") & (totals["cell"] == cell)].iloc[0]
if n > 1:
    half = stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / math.sqrt(n)
    lower, upper = values.mean() - half, values.mean() + half
    print(f"by hand {lower:.6f} to {upper:.6f}, in the table {written['lower']:.6f} to {written['upper']:.6f}")
    assert math.isclose(lower, written["lower"], rel_tol=1e-9)
    assert math.isclose(upper, written["upper"], rel_tol=1e-9)
else:
    print("a single run has no interval, and the table leaves it empty")

# %% [markdown]
# ## Why not a bootstrap?
#
# With three seeds a percentile bootstrap can never say anything beyond the largest value it saw. A small simulation
# shows what that costs: how often does a one-sided 95 % upper bound lie above the true mean?

# %%
rng = np.random.default_rng(0)
runs, resamples = 2000, 400
for count in (3, 5, 10):
    sample = rng.normal(size=(runs, count))
    chosen = rng.integers(0, count, size=(resamples, count))
    bootstrap = np.quantile(sample[:, chosen].mean(axis=2), 0.95, axis=1)
    student = sample.mean(axis=1) + stats.t.ppf(0.95, count - 1) * sample.std(axis=1, ddof=1) / math.sqrt(count)
    print(f"n = {count:2d}: percentile {np.mean(bootstrap > 0):.3f}, Student's t {np.mean(student > 0):.3f}")

# %% [markdown]
# ## By step, beside the published curve
#
# `curves.csv` has every metric by step. The published curves stand in `configs/published/`, each value with its
# source. Step 1 is the first at the full learning rate: the published runs warm up for 20 steps, which are taken off.

# %%
PUBLISHED_WARMUP = 20
curves = pd.read_csv(SUMMARIES / "curves.csv")
published = pd.read_csv(ROOT / "configs" / "published" / "sparsity_by_step.csv")
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for (family, size), theirs in published.groupby(["family", "size"]):
    early = theirs[theirs["step"] <= 40 + PUBLISHED_WARMUP]
    steps = early["step"] - PUBLISHED_WARMUP
    ax.plot(steps, early["mean"], color="0.75", linewidth=1)
    ax.annotate(f"{family} {size}", (steps.iloc[-1], early["mean"].iloc[-1]), fontsize=6, color="0.5")
METRIC = "sparsity_1"
ours = curves[(curves["metric"] == METRIC) & (curves["scope"] == "all") & (curves["cell"] == cell)].sort_values("step")
ax.plot(ours["step"], ours["mean"], color="black", label=cell)
if ours["lower"].notna().all():
    ax.fill_between(ours["step"], ours["lower"], ours["upper"], color="black", alpha=0.15)
ax.set_xlabel("optimizer step at the full learning rate")
ax.set_ylabel("share of weights unchanged")
ax.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## A verdict, checked by hand
#
# `claims.csv` holds one verdict for each published claim. *holds* means that the whole interval meets the rule.

# %%
claims = pd.read_csv(RESULTS / "claims.csv")
claims[["id", "verdict", "n", "estimate", "lower", "upper", "rule"]]

# %%
row = claims[claims["id"] == "P-sparsity-step"].iloc[0]
bound = float(row["rule"].removeprefix(">= ")) if isinstance(row["rule"], str) else math.nan
if math.isnan(row["lower"]):
    print(f"{row['verdict']}: {row['reason']}")
else:
    ours_says = "holds" if row["lower"] >= bound else "fails" if row["upper"] < bound else "undecided"
    print(f"interval {row['lower']:.4f} to {row['upper']:.4f} against {row['rule']}: {ours_says}")
    assert row["verdict"] in (ours_says, "stale")

# %% [markdown]
# ## Your turn
#
# Take another measure of `totals.csv`, say by scope instead of `all`, and ask which group of tensors changes most.
# Then look up in `configs/claims.yaml` which cell decides the claim about it, and why that cell and not another.
