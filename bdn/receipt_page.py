"""Owns the receipt as a page: one file, no script, no outside asset, readable on a phone, in light and in dark.

Pictures are inline SVG drawn for a narrow screen and scaled up, so that their words stay legible on both; each has its
numbers in a table beside it, for those who cannot see it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from bdn.receipt import ORIGIN, NodeAccount, Receipt, Wave, edges
from bdn.sizes import size_text

_WAV_BYTES_MAX = 2 << 20  # Embedded sound makes the page larger by a third more than its size.
_WIDTH = 400.0
_PHASES = ("pull", "start", "load", "first audio", "speak")

_CSS = """
:root{color-scheme:light dark;--bg:#fbfaf8;--ink:#1c1b1a;--soft:#6b6763;--line:#dcd8d2;--card:#fff;--origin:#c2410c;
--peer:#0f766e;--pull:#0f766e;--start:#94a3b8;--load:#6366f1;--first:#c2410c;--speak:#d6b25e}
@media(prefers-color-scheme:dark){:root{--bg:#161514;--ink:#f1efec;--soft:#a39e98;--line:#3a3734;--card:#201e1d;
--origin:#fb923c;--peer:#2dd4bf;--pull:#2dd4bf;--start:#64748b;--load:#a5b4fc;--first:#fb923c;--speak:#8a6d2f}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:720px;margin:0 auto;padding:24px 16px 48px}h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.1rem;margin:32px 0 8px}p{margin:4px 0 12px;color:var(--soft)}
.big{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.big div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.big b{display:block;font-size:1.9rem;line-height:1.1;font-variant-numeric:tabular-nums}
.big span{color:var(--soft);font-size:.875rem}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px}
svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}
svg .soft{fill:var(--soft)}svg .axis{stroke:var(--line)}svg .box{fill:var(--bg);stroke:var(--line)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.875rem}
caption{text-align:left;color:var(--soft);padding:6px 0}th,td{text-align:right;padding:4px 8px;
border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left}
.key{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:.875rem;margin:8px 0 0;padding:0;list-style:none}
.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px}audio{width:100%;margin-top:8px}
code{font-family:ui-monospace,monospace;font-size:.85em;overflow-wrap:anywhere}
"""


# Two markers, since not every browser colours a marker by its line.
_ARROWS = "<defs>" + "".join(
    f'<marker id="to{kind}" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="9" markerHeight="9" orient="auto" '
    f'markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8Z" fill="var(--{kind})"/></marker>'
    for kind in ("origin", "peer")
) + "</defs>"  # fmt: skip


def page(receipt: Receipt) -> str:
    """The whole document."""
    r = receipt
    title = f"{r.model['ref']} onto {len(r.cold.nodes)} nodes"
    facts = " · ".join(str(f) for f in (r.machine["date"], r.machine["machine"], r.model["about"]))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(facts)}</p>",
        _headline(r),
        *_wave("Cold: nothing is anywhere but at the origin", r.cold),
    ]
    if r.warm is not None:
        parts += _wave("Warm: fresh nodes join a cluster that has the model", r.warm)
    if any(n.wav for n in r.cold.nodes):
        parts += ["<h2>To the first sound</h2>", _timeline(r.cold.nodes), _sound(r.wav)]
    parts += [_phases(r), _facts(r)]
    body = "\n".join(parts)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none';style-src 'unsafe-inline';"
        'media-src data:">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _headline(r: Receipt) -> str:
    boxes = [(f"{r.cold.origin_copies:.2f}x", f"of the model read from the origin by {len(r.cold.nodes)} cold nodes")]
    if r.warm is not None:
        boxes.append((f"{r.warm.origin_copies:.2f}x", f"by {len(r.warm.nodes)} more, once the cluster is warm"))
    if r.first_audio_s is not None:
        boxes.append((f"{r.first_audio_s:.1f} s", "from asking for the model to first audio on the last node"))
    cells = "".join(f"<div><b>{escape(big)}</b><span>{escape(words)}</span></div>" for big, words in boxes)
    return f'<div class="big">{cells}</div>'


def _wave(title: str, wave: Wave) -> list[str]:
    tiers = wave.bytes_by_tier
    words = (
        f"{size_text(tiers['origin'])} from the origin and {size_text(tiers['peer'])} between nodes "
        f"for {len(wave.nodes)} × {size_text(wave.model_bytes)}, in {wave.seconds:.2f} s."
    )
    return [f"<h2>{escape(title)}</h2>", f"<p>{escape(words)}</p>", _flows(wave), _matrix(wave)]


def _flows(wave: Wave) -> str:
    """The origin above, the nodes in a row, older members below; a line's width is its share of the model."""
    found = edges(wave.nodes)
    names = [n.name for n in wave.nodes]
    others = sorted({s for s, _, _ in found if s != ORIGIN and s not in names})
    at = {ORIGIN: (_WIDTH / 2, 26.0)}
    at |= _row(names, 150.0) | _row(others, 262.0)
    # An arc between the outermost of many nodes dips to 213, and its line is up to 14 wide.
    height = 300.0 if others else 220.0
    lines = [_flow(at, names, s, n, size, wave.model_bytes) for s, n, size in sorted(found, key=lambda e: -e[2])]
    boxes = [_box(at[ORIGIN], "origin", size_text(wave.bytes_by_tier["origin"]))]
    for node in wave.nodes:
        boxes.append(_box(at[node.name], node.name, "killed" if node.state == "killed" else "whole"))
    boxes += [_box(at[name], name, "had it") for name in others]
    label = f"{size_text(wave.bytes_by_tier['origin'])} came from the origin; the table lists every flow."
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(label)}">'
        + _ARROWS
        + "".join(lines + boxes)
        + "</svg>"
        + _key([("--origin", "from the origin"), ("--peer", "between nodes")])
        + "</figure>"
    )


def _row(names: Sequence[str], y: float) -> dict[str, tuple[float, float]]:
    step = _WIDTH / max(1, len(names))
    return {name: (step * (i + 0.5), y) for i, name in enumerate(names)}


def _flow(
    at: dict[str, tuple[float, float]], row: Sequence[str], source: str, node: str, size: int, whole: int
) -> str:
    (x1, y1), (x2, y2) = at[source], at[node]
    width = max(0.8, 14.0 * size / max(1, whole))
    colour = "--origin" if source == ORIGIN else "--peer"
    if source in row:  # Between neighbours of one row: an arc below for one direction, above for the other.
        bend = 26.0 + 0.16 * abs(x2 - x1)
        mid = y1 + (bend + 18.0 if x2 > x1 else -bend - 18.0)
        start, end = (18.0, 18.0) if x2 > x1 else (-18.0, -18.0)
        path = f"M{x1:.1f} {y1 + start:.1f}Q{(x1 + x2) / 2:.1f} {mid:.1f} {x2:.1f} {y2 + end:.1f}"
    else:
        down = 18.0 if y2 > y1 else -18.0
        mid = (y1 + y2) / 2
        path = f"M{x1:.1f} {y1 + down:.1f}C{x1:.1f} {mid:.1f} {x2:.1f} {mid:.1f} {x2:.1f} {y2 - down:.1f}"
    words = f"{source} to {node}: {size_text(size)}"
    return (
        f'<path d="{path}" fill="none" stroke="var({colour})" stroke-width="{width:.1f}" stroke-opacity=".65" '
        f'stroke-linecap="round" marker-end="url(#to{colour[2:]})"><title>{escape(words)}</title></path>'
    )


def _box(centre: tuple[float, float], name: str, words: str) -> str:
    x, y = centre
    half = 42.0
    return (
        f'<rect class="box" x="{x - half:.1f}" y="{y - 18:.1f}" width="{2 * half:g}" height="36" rx="8"/>'
        f'<text x="{x:.1f}" y="{y - 2:.1f}" text-anchor="middle" font-weight="600">{escape(name[:12])}</text>'
        f'<text class="soft" x="{x:.1f}" y="{y + 12:.1f}" text-anchor="middle">{escape(words)}</text>'
    )


def _matrix(wave: Wave) -> str:
    sources = [ORIGIN, *sorted({s for s, _, _ in edges(wave.nodes)} - {ORIGIN})]
    head = "".join(f"<th scope=col>{escape(s)}</th>" for s in sources)
    rows = []
    for node in wave.nodes:
        cells = "".join(f"<td>{_cell(node, s)}</td>" for s in sources)
        rows.append(f"<tr><th scope=row>{escape(node.name)}</th>{cells}</tr>")
    return (
        f'<div class="wide"><table><caption>Each row: where that node got its bytes</caption>'
        f"<thead><tr><th scope=col>node</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(node: NodeAccount, source: str) -> str:
    size = node.bytes_by_source.get(source, 0)
    return size_text(size) if size and source != node.name else "–"


def _timeline(nodes: Iterable[NodeAccount]) -> str:
    shown = [n for n in nodes if n.spans]
    longest = max(s.end_s for n in shown for s in n.spans) or 1.0
    left, scale, top = 62.0, (_WIDTH - 74.0) / longest, 22.0
    parts = []
    for tick in _ticks(longest):
        x = left + tick * scale
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="{top + 30 * len(shown):.1f}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="11" text-anchor="middle">{tick:g} s</text>')
    for i, node in enumerate(shown):
        y = top + 30 * i
        parts.append(f'<text x="0" y="{y + 14:.1f}">{escape(node.name[:9])}</text>')
        for span in node.spans:
            x, width = left + span.start_s * scale, max(1.0, (span.end_s - span.start_s) * scale)
            words = escape(f"{node.name}: {span.name} {span.end_s - span.start_s:.2f} s")
            place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="20" rx="2"'
            parts.append(f'<rect {place} fill="var({_colour(span.name)})"><title>{words}</title></rect>')
    height = top + 30 * len(shown) + 4
    label = "; ".join(f"{n.name} has first audio after {_first_audio(n):.1f} s" for n in shown)
    key = _key([(_colour(p), p) for p in _PHASES])
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH:g} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}'
        f"</svg>{key}</figure><p>The speech process of a node does not exist before its weights are local and "
        "verified: it is held back, not started early and left waiting.</p>"
    )


def _first_audio(node: NodeAccount) -> float:
    return max((s.end_s for s in node.spans if s.name == "first audio"), default=0.0)


def _colour(phase: str) -> str:
    return "--first" if phase == "first audio" else f"--{phase}"


def _ticks(longest: float) -> list[float]:
    step = next((s for s in (0.5, 1, 2, 5, 10, 20, 60) if longest / s <= 7), 120)
    return [step * i for i in range(int(longest / step) + 1)]


def _key(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><i style="background:var({c})"></i>{escape(words)}</li>' for c, words in entries)
    return f'<ul class="key">{items}</ul>'


def _sound(wav: str) -> str:
    path = Path(wav)
    if not wav or not path.is_file() or path.stat().st_size > _WAV_BYTES_MAX:
        return ""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<audio controls src="data:audio/wav;base64,{data}">the sound is in {escape(wav)}</audio>'


def _phases(r: Receipt) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(k.replace('_', ' '))}</th><td>{v:.2f} s</td></tr>" for k, v in r.phases_s.items()
    )
    return f'<h2>Phases</h2><div class="wide"><table><tbody>{rows}</tbody></table></div>'


def _facts(r: Receipt) -> str:
    notes = "".join(f"<p>{escape(n)}</p>" for n in r.notes)
    return (
        f"<h2>What this is</h2>{notes}<p>Model <code>{escape(str(r.model['digest']))}</code>, "
        f"{r.model['files']} files in {r.model['chunks']} chunks. Origin <code>{escape(r.origin)}</code>. "
        f"The same numbers as JSON: <code>{escape(r.report_json)}</code>.</p>"
    )
