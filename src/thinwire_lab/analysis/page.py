"""The report's page: one HTML template without any address to fetch from, readable on a phone and on paper."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>thinwire: results at {{ scale }} scale</title>
<style>
:root { --ink: #1c1c1a; --soft: #5c5b55; --line: #d9d6cc; --paper: #fdfcf8; --tint: #f3f0e6; --accent: #1f4e5f; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, "DejaVu Serif", serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
main > p, main > header, section > p, section > ul, section > blockquote { max-width: 42rem; }
h1, h2, h3, th, .mark, nav, figcaption, .meta, summary {
  font-family: "Avenir Next", Avenir, "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; margin: 0 0 .75rem; letter-spacing: -.015em; }
h2 { font-size: 1.45rem; line-height: 1.25; margin: 0 0 .6rem; }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; color: var(--soft); font-weight: 600; }
section { margin-top: 3.5rem; padding-top: 1.75rem; border-top: 1px solid var(--line); }
.question { color: var(--soft); font-style: italic; margin: 0 0 .75rem; }
.answer { font-size: 1.2rem; line-height: 1.45; margin: 0 0 1rem; }
.meta { color: var(--soft); font-size: .85rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .9rem; margin: 1.25rem 0; }
a { color: var(--accent); text-underline-offset: .15em; }
figure { margin: 1.5rem 0; }
figure img { width: 100%; max-width: 52rem; height: auto; background: #fff; border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .85rem; line-height: 1.45; max-width: 42rem; margin-top: .5rem; }
.scroll { overflow-x: auto; margin: 1rem 0; border: 1px solid var(--line); background: #fff; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.4; }
th, td { text-align: left; vertical-align: top; padding: .5rem .7rem; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
thead th { background: var(--tint); font-weight: 600; white-space: nowrap; }
td.num, th.num { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums lining-nums; }
td.id { white-space: nowrap; font: .8rem/1.6 "Avenir Next", "Segoe UI", Arial, "DejaVu Sans", sans-serif; }
td.rule { white-space: nowrap; } td.claim { min-width: 15rem; }
td.why { min-width: 18rem; } td.why span { color: var(--soft); }
code { font-size: .85em; overflow-wrap: anywhere; }
td > code:only-child { white-space: nowrap; }
.mark { display: inline-block; font-size: .78rem; font-weight: 600; padding: .1rem .5rem; white-space: nowrap;
  border: 1.5px solid var(--ink); border-radius: 1rem; }
.holds, .met { background: var(--ink); color: #fff; }
.fails, .missed { background: #fff; color: var(--ink); border-style: double; border-width: 4px; padding: 0 .4rem; }
.undecided, .met-on-the-whole { background: var(--tint); }
.not-tested, .stale { border-style: dashed; border-color: var(--soft); color: var(--soft); }
details { margin: 1rem 0; } summary { cursor: pointer; font-size: .9rem; color: var(--accent); }
@media (max-width: 40rem) {
  .scroll:has(> .claims) { border: 0; background: none; overflow: visible; }
  .claims, .claims tbody, .claims tr, .claims td { display: block; text-align: left; white-space: normal; }
  .claims thead { display: none; }
  .claims tr { background: #fff; border: 1px solid var(--line); margin-bottom: .75rem; padding: .6rem .8rem; }
  .claims td { border: 0; padding: .1rem 0; }
  .claims td:empty { display: none; }
  .claims td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); }
}
@media print { body { font-size: 10pt; } section { break-inside: auto; } details { display: none; } }
</style>
</head>
<body>
<main>
<header>
<h1>Results at {{ scale }} scale</h1>
<p>{{ lead }}</p>
<p class="meta">{{ counts }}. Intervals are two-sided 95&nbsp;% t intervals unless a line says otherwise.
<em>holds</em>: the whole interval meets the rule; <em>fails</em>: the whole interval misses it; <em>undecided</em>: it
straddles the rule, or a single run gave none; <em>not tested</em> and <em>stale</em> say why.</p>
<nav>{% for study in studies %}<a href="#{{ study.name }}">{{ study.title }}</a>{% endfor %}</nav>
</header>

<div class="scroll"><table class="claims">
<thead><tr><th>Claim</th><th>Statement</th><th>Published</th><th class="num">Found here</th><th class="num">n</th>
<th>Rule</th><th>Verdict</th></tr></thead>
<tbody>
{% for row in claims %}<tr><td class="id"><a href="#{{ row.study }}">{{ row.id }}</a></td>
<td class="claim">{{ row.statement }}</td><td data-label="Published">{{ row.published }}</td>
<td class="num" data-label="Found here">{{ row.found }}</td><td class="num" data-label="n">{{ row.n }}</td>
<td class="rule" data-label="Rule">{{ row.rule }}</td>
<td><span class="mark {{ row.css }}">{{ row.verdict }}</span></td></tr>
{% endfor %}</tbody></table></div>

{% for study in studies %}
<section id="{{ study.name }}">
<h2>{{ study.title }}</h2>
<p class="question">{{ study.question }}</p>
{% if study.answer %}<p class="answer">{{ study.answer }}</p>{% endif %}
{% for figure in study.figures %}
<figure><img src="data:image/png;base64,{{ figure.png }}" alt="{{ figure.caption }}">
<figcaption>{{ figure.caption }} Scale: {{ scale }}.</figcaption></figure>
{% endfor %}
{% if study.claims %}
<h3>Verdicts</h3>
<div class="scroll"><table class="claims">
<thead><tr><th>Claim</th><th>Verdict</th><th class="num">Found [95&nbsp;%]</th><th class="num">n</th><th>Rule</th>
<th>Measured, and why this verdict</th></tr></thead>
<tbody>
{% for row in study.claims %}<tr><td class="id">{{ row.id }}</td>
<td><span class="mark {{ row.css }}">{{ row.verdict }}</span></td>
<td class="num" data-label="Found">{{ row.found }}</td><td class="num" data-label="n">{{ row.n }}</td>
<td class="rule" data-label="Rule">{{ row.rule }}</td><td class="why">{{ row.measured }}.
<span>{{ row.reason[:1]|upper }}{{ row.reason[1:] }}{% if row.reason[-1:] != "." %}.{% endif %}</span>
{% if row.cell %}<code>{{ row.cell }}</code>{% endif %}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if study.reaches %}
<h3>Reach</h3>
<div class="scroll"><table>
<thead><tr><th>What</th><th>Cell</th><th>Reach</th><th class="num">Found (lowest to highest)</th><th class="num">n</th>
<th>Verdict</th><th>Stated elsewhere</th></tr></thead>
<tbody>
{% for row in study.reaches %}<tr><td class="claim">{{ row.what }}</td><td><code>{{ row.cell }}</code></td>
<td class="rule">{{ row.reach }}</td><td class="num">{{ row.found }}</td><td class="num">{{ row.n }}</td>
<td>{% if row.verdict %}<span class="mark {{ row.css }}">{{ row.verdict }}</span>{% endif %}</td>
<td class="why">{{ row.published }}{{ row.reason }}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if study.bounds %}
<h3>Bounds by method</h3>
<div class="scroll"><table>
<thead><tr><th>Candidate</th><th>Baseline</th><th>Method</th><th class="num">n</th><th class="num">Log-ratio</th>
<th class="num">One-sided 95&nbsp;% bound</th><th class="num">p</th><th>At the margin of 1&nbsp;%</th>
<th>In the family of texts</th></tr></thead>
<tbody>
{% for row in study.bounds %}<tr><td><code>{{ row.candidate }}</code></td><td><code>{{ row.baseline }}</code></td>
<td>{{ row.method }}</td><td class="num">{{ row.n }}</td><td class="num">{{ row.estimate }}</td>
<td class="num">{{ row.bound }}</td><td class="num">{{ row.p }}</td><td class="why">{{ row.verdict }}</td>
<td>{{ row.family }}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if study.tables %}
<h3>Measured</h3>
{% for table in study.tables %}
<details{% if loop.first %} open{% endif %}><summary>{{ table.title }}</summary>
<div class="scroll"><table>
<thead><tr>{% for key in table["keys"] %}<th>{{ key }}</th>{% endfor %}<th class="num">n</th>
{% for name in table.columns %}<th class="num">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for key in row["keys"] %}<td><code>{{ key }}</code></td>{% endfor %}
<td class="num">{{ row.n }}</td>
{% for value in row["values"] %}<td class="num">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
{% endfor %}
{% endif %}
{% if study.limits %}<h3>Limits</h3>
{{ study.limits }}
{% endif %}
{% if study.origin %}<p class="meta">{{ study.origin }}</p>{% endif %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
