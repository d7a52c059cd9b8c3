#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the results of `tessera bench -o FILE` (or --json) with matplotlib.

  tessera bench --seqlen 512,1024,2048,4096 --dtype f32,bf16 -o results.json
  bench/plot.py results.json -o results.png

Several files are drawn into one figure, each named after its processor and device. Where results hold
materialised attention (--vs standard), time and peak memory are drawn beside each other; else the rate.
"""
import argparse
import json
import sys

STYLES = ["o-", "s-", "^-", "D-", "v-", "P-"]


def load(path):
    """Rows of one file, each with the labels that tell its line from others."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("command") not in ("bench", "demo"):
        sys.exit(f"{path}: not a document of `tessera bench` or `tessera demo`")
    rows = document["results"] if document["command"] == "bench" else document["bench"]
    where = f'{document["machine"]["processor"]}, {document["device"]["name"]}'
    for row in rows:
        row["where"] = where
        row["op"] = document.get("op", "forward")
    return rows


def line_key(row):
    return (row["where"], row["op"], row["dtype"], row["heads"], row["head_dim"], row["causal"])


def line_label(row, rows):
    """The labels in which the lines of the figure differ, and the element type."""
    words = [row["dtype"], f'D={row["head_dim"]}', "causal" if row["causal"] else "full"]
    for name in ("where", "op", "heads"):
        if len({r[name] for r in rows}) > 1:
            words.append(f"{row[name]} heads" if name == "heads" else str(row[name]))
    return " ".join(words)


def lines(rows):
    found = {}
    for row in rows:
        found.setdefault(line_key(row), []).append(row)
    return [sorted(line, key=lambda r: r["seqlen_k"]) for line in found.values()]


def draw_rates(axes, rows):
    for index, line in enumerate(lines(rows)):
        x = [row["seqlen_k"] for row in line]
        y = [row["flops_per_second"] / 1e9 for row in line]
        low = [row["flops"] / row["time"]["most_seconds"] / 1e9 for row in line]
        high = [row["flops"] / row["time"]["least_seconds"] / 1e9 for row in line]
        axes.plot(x, y, STYLES[index % len(STYLES)], label=line_label(line[0], rows))
        axes.fill_between(x, low, high, alpha=0.15)
    axes.set_title("Rate: median, slowest to fastest run")
    axes.set_ylabel("GFLOP/s")
    axes.set_ylim(bottom=0)


def draw_pair(axes, rows, title, unit, ours, theirs):
    for index, line in enumerate(lines(rows)):
        style = STYLES[index % len(STYLES)]
        label = line_label(line[0], rows)
        for name, value, dash in (("tessera", ours, "-"), ("standard", theirs, "--")):
            points = [(row["seqlen_k"], value(row)) for row in line if value(row)]
            if points:
                axes.plot(*zip(*points), style[0] + dash, label=f"{name}, {label}")
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.set_yscale("log")


def standard_time(row):
    time = row.get("standard", {}).get("time")
    return time and time["median_seconds"] * 1e3


def standard_memory(row):
    standard = row.get("standard", {})
    return standard.get("peak_bytes", standard.get("scratch_bytes", 0)) / 2**20


def our_memory(row):
    return max(row.get("peak_bytes", 0), row["workspace_bytes"]) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", help="JSON documents of `tessera bench`")
    parser.add_argument("-o", "--output", default="bench.png", help=".png, .svg or .pdf (default bench.png)")
    options = parser.parse_args()

    import matplotlib  # late, so that --help works without it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for path in options.results for row in load(path)]
    if not rows:
        sys.exit("no results to draw")
    beside = [row for row in rows if "standard" in row]
    panels = 2 if beside else 1
    figure, axes = pyplot.subplots(1, panels, figsize=(6.4 * panels, 4.8), squeeze=False)
    if beside:
        draw_pair(axes[0][0], beside, "Time (median)", "ms", lambda r: r["time"]["median_seconds"] * 1e3, standard_time)
        draw_pair(axes[0][1], beside, "Peak memory beyond inputs and output", "MiB", our_memory, standard_memory)
    else:
        draw_rates(axes[0][0], rows)
    for panel in axes[0]:
        lengths = sorted({row["seqlen_k"] for row in rows})
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.set_xlabel("sequence length")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle(rows[0]["where"] if len({row["where"] for row in rows}) == 1 else "Attention")
    figure.tight_layout()
    figure.savefig(options.output, dpi=150)
    print(options.output)


if __name__ == "__main__":
    main()
