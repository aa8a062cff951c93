"""What a run found: as text, as the table of the book, and as a picture."""

LOADS = ["flood", "pauses", "edge", "rest", "outage"]

def worst(result):
    """The load in which the largest bucket was needed, and its span; first of those beyond what is documented."""
    spans = [(load, cell["worst"]) for load, cell in result.get("loads", {}).items() if "worst" in cell]
    return max(spans, key=lambda pair: (pair[1]["standing"] == "beyond", pair[1]["needed"]), default=(None, None))


def merged(results):
    """Of several runs of a fleet each load counts once: the lesser excess of a peer, the greater one of our own."""
    kept = {}
    for result in results:
        before = kept.setdefault((result["product"], result["instances"]), result)
        if before is result or "loads" not in result:
            continue
        if "loads" not in before:
            kept[result["product"], result["instances"]] = result
            continue
        choose = max if result["is_ours"] else min
        waits = [each["retry_after"] for each in (before, result) if each["retry_after"]["kept"] is not None]
        before["retry_after"] = (min if result["is_ours"] else max)(waits, key=lambda each: each["kept"], default=before["retry_after"])
        for load in before["loads"]:
            before["loads"][load] = choose(before["loads"][load], result["loads"][load], key=lambda cell: cell.get("worst", {}).get("needed", 0))
    return list(kept.values())


def share(result):
    """The least share of what one bucket grants, of all loads."""
    return min(cell["granted"] / cell["one_bucket"] for cell in result["loads"].values())


def text(results, products):
    meaning = {"documented": "as documented", "beyond": "beyond what is documented"}
    mark = {"within": " ", "documented": "*", "beyond": "!"}
    rows = [["", "n", *LOADS, "bucket", "share", "wrong", "Retry-After", "calls"]]
    for result in results:
        if "not_run" in result:
            rows.append([result["product"], str(result["instances"]), "not run: " + result["not_run"].splitlines()[-1]])
            continue
        cells = [result["loads"].get(load, {}).get("worst") for load in LOADS]
        cells = [f"{cell['granted']}/{cell['allowed']}{mark[cell['standing']]}" if cell else "- " for cell in cells]
        kept = {True: "kept", False: "not kept", None: "none"}[result["retry_after"]["kept"]]
        wrong = sum(cell["refused_wrongly"] for cell in result["loads"].values())
        calls = str(result.get("store_calls", {}).get("per_decision", "-"))
        rows.append([result["product"], str(result["instances"]), *cells, str(worst(result)[1]["needed"]) if worst(result)[1] else "-", f"{share(result):.2f}", str(wrong), kept, calls])
    widths = [max(len(row[column]) for row in rows if column < len(row) and not (len(row) == 3 and column == 2)) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    lines += ["", "10 requests a second, burst 100; n instances. A load: granted/allowed in the span with the greatest excess, which is certain.",
              "* beyond one bucket, as the product documents   ! beyond that   bucket: the burst that would have granted as much",
              "share: granted, of what one bucket grants to the same requests (the least of all loads)   wrong: refused though certainly allowed",
              "Retry-After: a lone caller that waited so long was admitted   calls: store calls a decision", ""]
    for result in results:
        load, span = worst(result)
        if span and span["standing"] != "within":
            where = f"{load}, from {span['first_sent']:.3f} s to {span['last_received']:.3f} s: {span['granted']} granted, {span['allowed']} allowed"
            lines.append(f"{result['product']} x {result['instances']}: {where}; {meaning[span['standing']]} ({result.get('documented') or 'nothing about it found'})")
    lines += ["", "In their own words:"]
    seen = {result["product"]: result for result in results if "words" in result}
    lines += [f"{name}: {' '.join(result['words'].split())}\n    \"{result['quote']}\" ({result['source']})" for name, result in seen.items()]
    lines += ["", "Not run here (prove/run --against runs the loads on one that you start):"] + [f"{name}: {why}" for name, why in products.NOT_RUN_HERE.items()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def markdown(results):
    """The table of the book: the worst span of each fleet."""
    instances = sorted({result["instances"] for result in results})
    lines = ["| | " + " | ".join(f"{n} instance{'s' * (n > 1)}" for n in instances) + " | share | `Retry-After` | calls |", "|---" * (len(instances) + 4) + "|"]
    mark = {"within": "", "documented": " *", "beyond": " **!**"}
    for name in dict.fromkeys(result["product"] for result in results):
        own = {result["instances"]: result for result in results if result["product"] == name and worst(result)[1]}
        if not own:
            continue
        cells = []
        for n in instances:
            load, span = worst(own[n]) if n in own else (None, None)
            cells.append(f"{span['granted'] / span['allowed']:.2f} ({span['granted']}/{span['allowed']}, {load}){mark[span['standing']]}" if span else "–")
        first = own[min(own)]
        kept = {True: "kept", False: "not kept", None: "–"}[first["retry_after"]["kept"]]
        calls = [str(result["store_calls"]["per_decision"]) for result in own.values() if "store_calls" in result]
        lines.append(f"| {name} | {' | '.join(cells)} | {share(first):.2f} | {kept} | {', '.join(calls) or '–'} |")
    return "\n".join(lines) + "\n"


def picture(results):
    """A bar for each fleet: granted over allowed in its worst span."""
    colours = {"within": "#2f7d4f", "documented": "#8a8f98", "beyond": "#c8553d"}
    bars = [(result, *worst(result)) for result in results if worst(result)[1]]
    ratio = lambda span: span["granted"] / span["allowed"]
    left, width, height, top = 250, 560, 15, 64
    most = max((ratio(span) for _, _, span in bars), default=1)
    scale = width / max(most, 2)
    out, y, last = [], top, None
    for result, load, span in bars:
        y += 8 if last not in (None, result["product"]) else 0
        name = result["product"] if result["product"] != last else ""
        last = result["product"]
        state = span["standing"]
        out.append(f'<text x="{left - 34}" y="{y + 11}" text-anchor="end">{name}</text><text x="{left - 10}" y="{y + 11}" text-anchor="end" fill="#666">×{result["instances"]}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{ratio(span) * scale:.1f}" height="{height - 3}" fill="{colours[state]}"/>')
        out.append(f'<text x="{left + max(ratio(span), 1) * scale + 5:.1f}" y="{y + 11}">{ratio(span):.2f}<tspan dx="6" fill="#666">{load}, {span["granted"]}/{span["allowed"]}</tspan></text>')
        y += height
    legend = [("within", "within one bucket"), ("documented", "beyond it, as documented"), ("beyond", "beyond what is documented")]
    keys = "".join(f'<rect x="{left + 190 * place}" y="32" width="11" height="11" fill="{colours[state]}"/><text x="{left + 190 * place + 16}" y="42">{words}</text>'
                   for place, (state, words) in enumerate(legend))
    one = left + scale
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 160}" height="{y + 16}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
<text x="14" y="20" font-size="14">Granted over allowed: 10 requests a second, burst 100, the worst span of five loads; ×n instances</text>
{keys}
{"".join(out)}
<line x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{y + 2}" stroke="#222" stroke-dasharray="3 2"/>
</svg>
"""
