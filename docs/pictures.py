#!/usr/bin/env python3
"""Draws the pictures of the book: docs/pictures.py [FOLDER]. The same input gives the same bytes."""

import re
import sys
from pathlib import Path

MINUTE = 60.0
ARRIVALS = [t * 3.0 for t in range(40)]  # a request every 3 s, for two minutes
STYLE = """<style>
.page { fill: #ffffff; stroke: #d0d7de } text { fill: #24292f; font: 12px sans-serif } .line { stroke: #8c959f }
.yes { fill: #1a7f37 } .no { fill: none; stroke: #cf222e; stroke-width: 1.5 } .a { stroke: #0969da } .b { stroke: #bc4c00 }
.a, .b { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
.page { fill: #161b22; stroke: #30363d } text { fill: #c9d1d9 } .line { stroke: #6e7681 }
.yes { fill: #3fb950 } .no { stroke: #f85149 } .a { stroke: #58a6ff } .b { stroke: #f0883e } }
</style>"""


def bucket(rate, burst):
    level, last = burst, 0.0

    def admit(now):
        nonlocal level, last
        level, last = min(burst, level + (now - last) * rate / MINUTE), now
        if level < 1 - 1e-9:
            return False
        level -= 1
        return True

    return admit


def fixed(rate):
    start, count = None, 0

    def admit(now):
        nonlocal start, count
        if start is None or now >= start + MINUTE:
            start, count = now, 0
        if count >= rate:
            return False
        count += 1
        return True

    return admit


def sliding(rate):
    window, previous, current = 0, 0, 0

    def admit(now):
        nonlocal window, previous, current
        index = int(now // MINUTE)
        if index != window:
            previous, current = (current if index == window + 1 else 0), 0
            window = index
        if previous * (1 - now % MINUTE / MINUTE) + current + 1 > rate + 1e-9:
            return False
        current += 1
        return True

    return admit


def log(rate):
    grants = []

    def admit(now):
        if sum(1 for grant in grants if grant > now - MINUTE) >= rate:
            return False
        grants.append(now)
        return True

    return admit


ROWS = [
    ("token_bucket, burst 5", "bucket", bucket(10, 5)),
    ("fixed_window", "fixed", fixed(10)),
    ("sliding_window", "sliding", sliding(10)),
    ("sliding_log", "log", log(10)),
]


def svg(width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    page = f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    return "\n".join([head, STYLE, page, *parts, "</svg>"]) + "\n"


def algorithms():
    parts, tests = ['<text x="16" y="24">A request every 3 seconds; 10 per minute. Filled: admitted.</text>'], []
    for row, (name, path, admit) in enumerate(ROWS):
        y = 56 + 40 * row
        verdicts = [admit(now) for now in ARRIVALS]
        allowed = sum(verdicts)
        parts.append(f'<text x="16" y="{y + 4}">{name}</text>')
        parts.append(f'<line class="line" x1="170" x2="690" y1="{y}" y2="{y}"/>')
        for now, yes in zip(ARRIVALS, verdicts):
            parts.append(f'<circle class="{"yes" if yes else "no"}" cx="{174 + now * 4.3:.1f}" cy="{y}" r="4"/>')
        parts.append(f'<text x="704" y="{y + 4}">{allowed} of {len(verdicts)}</text>')
        tests.append((path, allowed, len(verdicts) - allowed))
    for minute in range(3):
        parts.append(f'<text x="{174 + minute * 60 * 4.3:.1f}" y="216" text-anchor="middle">{minute * 60} s</text>')
    return svg(780, 230, parts), tests


def burst():
    parts = ['<text x="16" y="24">The most that is admitted from a full bucket: 100/minute</text>']
    for kind, size, y in (("a", 20, 60), ("b", 100, 82)):
        points = [(60, 250), (60, 250 - size * 0.9), (560, 250 - (size + 100) * 0.9)]
        parts.append(f'<polyline class="{kind}" points="{" ".join(f"{px},{py:.1f}" for px, py in points)}"/>')
        parts.append(f'<text x="572" y="{points[2][1] + 4:.1f}">burst {size}: {size + 100}</text>')
        parts.append(f'<text x="54" y="{points[1][1] + 4:.1f}" text-anchor="end">{size}</text>')
    parts += [
        '<line class="line" x1="60" x2="560" y1="250" y2="250"/>',
        '<line class="line" x1="60" x2="60" y1="50" y2="250"/>',
        '<text x="60" y="268" text-anchor="middle">0 s</text>',
        '<text x="560" y="268" text-anchor="middle">60 s</text>',
    ]
    return svg(690, 284, parts)


def configuration(tests):
    """What the picture shows, as a file whose tests `tollgate check` runs: the page shows it."""
    limits, routes, blocks = [], [], []
    for (name, path, _), (_, allowed, refused) in zip(ROWS, tests):
        algorithm, _, size = name.partition(", burst ")
        limits.append(f'[limits.{path}]\nrate = "10/minute"\n' + (f"burst = {size}" if size else f'algorithm = "{algorithm}"') + '\nper = "address"\n')
        routes.append(f'[[routes]]\nmatch = "/{path}"\nupstream = "builtin:echo"\nlimits = ["{path}"]\n')
        blocks.append(
            f'[[tests]]\nsend = "{len(ARRIVALS)} x GET /{path} from 192.0.2.1 at 0s every 3s"\n'
            f"expect = {{ allowed = {allowed}, refused = {refused} }}\n"
        )
    return "\n".join(limits + routes + blocks)


def granted():
    """Granted over allowed of each product, by one and two instances: the table of measure/prove.md."""
    page = (Path(__file__).parent / "src/measure/prove.md").read_text()
    table = page.split("| | 1 instance | 2 instances |")[1].split("\n\n")[0].splitlines()[2:]
    rows = []
    for line in table:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append((name, [re.match(r"[\d.]+", cell) for cell in cells[:2]]))
    left, top, scale = 215, 76, 150
    parts = [
        '<text x="16" y="26" style="font-size: 15px">Granted / allowed: 10 requests a second, burst 100</text>',
        '<text x="16" y="46" class="less">The worst span of five loads. Right of the line is more than the number says.</text>',
        f'<rect class="one" x="{left}" y="56" width="11" height="9"/><text x="{left + 17}" y="65">one instance</text>',
        f'<rect class="two" x="{left + 120}" y="56" width="11" height="9"/><text x="{left + 137}" y="65">two instances</text>',
    ]
    y = top
    for name, ratios in rows:
        parts.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{name}</text>')
        for ratio, style, at in zip(ratios, ["one", "two"], [y + 2, y + 13]):
            if not ratio:
                parts.append(f'<text class="less" x="{left + 5}" y="{at + 9}">–</text>')
                continue
            width = float(ratio[0]) * scale
            parts.append(f'<rect class="{style}" x="{left}" y="{at}" width="{width:.0f}" height="9"/>')
            parts.append(f'<text x="{left + max(width, scale) + 6:.0f}" y="{at + 9}" style="font-size: 10px">{ratio[0]}</text>')
        y += 28
    parts.append(f'<path class="line" stroke-dasharray="3 2" d="M{left + scale}.5 {top - 4}V{y}"/>')
    style = ".one { fill: #0969da } .two { fill: #bc4c00 } .less { fill: #57606a }"
    dark = ".one { fill: #58a6ff } .two { fill: #f0883e } .less { fill: #8b949e }"
    own = f"<style>{style} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    return svg(720, y + 12, [own, *parts])


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "src/pictures")
    picture, tests = algorithms()
    (folder / "algorithms.svg").write_text(picture)
    (folder / "burst.svg").write_text(burst())
    (folder / "granted.svg").write_text(granted())
    (folder / "algorithms.toml").write_text(configuration(tests))


main()
