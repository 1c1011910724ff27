"""Draws docs/term-curve.svg from what scripts/term-curve has measured.

usage: term_curve.py MEASURED.csv DRAWN.svg
"""

import csv
import sys
from collections import defaultdict
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RENEWALS_A_TERM = 3  # a client asks as soon as a third of the term is over (docs/design.md, 3.1)
# But not sooner after it has asked, and also when the server has been silent for so long, which it looks at
# every 0.25 s (fsclient/core/src/life/serve.rs): so a restarted one is found.
ASKS_AFTER, ASKS_AT_LATEST = 0.75, 1.0
READS = 1.0  # of the file, a second, for the curve of Gray & Cheriton's formula
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8501e", "#2c7a4b", "#777777"


def load(path):
    points = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            points[row["case"]].append((float(row["term_s"]), float(row["value"])))
    return points


def grid(first, last=31.0, steps=300):
    return [first + (last - first) * step / steps for step in range(steps + 1)]


def draw_load(axes, points):
    terms = grid(0.9)
    periods = [min(max(term / RENEWALS_A_TERM, ASKS_AFTER), ASKS_AT_LATEST) for term in terms]
    for case, marker, label in (("idle-1000", "o", "measured, idle: 1,000 files cached"),
                                ("idle-1", "+", "measured, idle: one file cached")):
        axes.plot(*zip(*[(term, 2 * rate) for term, rate in points[case]]), marker, color=BLUE, ms=8,
                  mfc="none", ls="none", label=label)
    axes.plot(terms, [2 / period for period in periods], color=BLUE, lw=1.5,
              label="by design: asks each 0.75 to 1 s, also to\nfind that the server has restarted")
    axes.plot(terms, [2 * RENEWALS_A_TERM / term for term in terms], color=BLUE, lw=1.2, ls=":",
              label="renewals each third of the term alone: 6/term")
    terms = grid(0.0)
    axes.plot(terms, [2 * READS / (1 + READS * term) for term in terms], color=GREY, lw=1.2, ls="--",
              label="Gray & Cheriton: 2R/(1+R·term), for one\nfile read once a second, renewed by reading")
    axes.set(xlabel="term, s", ylabel="messages at the server, /s per client",
             title="What keeps an idle client's cache right", xlim=(0, 31), ylim=(0, 5))


def draw_wait(axes, points):
    terms = grid(0.0)
    axes.plot(terms, terms, color=ORANGE, lw=1.5, label="model, at worst: the term")
    axes.plot(terms, [term / 2 for term in terms], color=GREEN, lw=1.5, label="model, half way: half of it")
    for case, color, marker, label in (
        ("stopped-worst", ORANGE, "o", "holder frozen right after a renewal"),
        ("killed-worst", ORANGE, "x", "holder killed right after a renewal"),
        ("stopped-middle", GREEN, "o", "frozen, half of the term over"),
        ("killed-middle", GREEN, "x", "killed, half of the term over"),
    ):
        axes.plot(*zip(*[(term, ms / 1000) for term, ms in points[case]]), marker, color=color, ms=6,
                  mfc="none", ls="none", label=label)
    live = median(ms for _, ms in points["live"])
    axes.text(30.5, 0.6, f"a live holder: {live:.0f} ms\n(debug build, busy machine)", ha="right", fontsize=8.5)
    axes.set(xlabel="term, s", ylabel="a write elsewhere waits, s", xlim=(0, 31), ylim=(0, 32),
             title="What a lost holder of the file costs")


def main(measured, drawn):
    points = load(measured)
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "leasefs", "axes.titlesize": 11})
    figure, (load_axes, wait_axes) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    draw_load(load_axes, points)
    draw_wait(wait_axes, points)
    for axes in (load_axes, wait_axes):
        axes.set_xticks([1, 2, 5, 10, 20, 30])
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    load_axes.legend(fontsize=8.5, frameon=False, loc="upper right")
    wait_axes.legend(fontsize=8.5, frameon=False, loc="upper left")
    figure.savefig(drawn, metadata={"Date": None})


main(*sys.argv[1:])
