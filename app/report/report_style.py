"""The style sheet of all pages."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --raised: #ffffff; --ink: #1d2025; --soft: #5c636d; --faint: #8b929b;
  --line: #e3e0da; --grid: #ebe8e2; --accent: #1f5f8b; --warn: #9a4a12; --warn-bg: #fbf0e4;
  --ramp0: #f3f1ec; --ramp1: #c6dae6; --ramp2: #7cafcc; --ramp3: #377da8; --ramp4: #123f61;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171b; --raised: #1c1f24; --ink: #e9e7e2; --soft: #a5abb4; --faint: #7d848e;
    --line: #30343b; --grid: #262a30; --accent: #7db8dd; --warn: #f0b37c; --warn-bg: #2e241a;
    --ramp0: #22262c; --ramp1: #24445a; --ramp2: #2f6d90; --ramp3: #59a5c9; --ramp4: #c3e7f5;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
main { max-width: 1200px; margin: 0 auto; padding: 40px 32px 56px; }
h1 { font-size: 34px; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 8px; }
h2 { font-size: 20px; letter-spacing: -0.01em; margin: 0; }
h1, h2 { font-weight: 650; text-wrap: balance; overflow-wrap: anywhere; }
.over { color: var(--accent); font-size: 13px; font-weight: 600; margin: 0 0 6px; }
.facts { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
.facts span { display: inline-block; }
.facts span:not(:last-child)::after { content: "\\00b7"; color: var(--faint); margin: 0 8px; }
.lede { font-size: 18px; max-width: 44em; margin: 18px 0 0; text-wrap: pretty; }
.notice {
  background: var(--warn-bg); color: var(--warn); border-radius: 8px;
  padding: 10px 14px; margin: 18px 0 0; overflow-wrap: anywhere;
}
.tiles {
  display: grid; grid-template-columns: repeat(4, 1fr); margin: 28px 0 0;
  background: var(--line); border: 1px solid var(--line); border-radius: 10px;
  gap: 1px; overflow: hidden;
}
.tile { background: var(--raised); padding: 14px 18px 15px; min-width: 0; }
.tile dt { color: var(--soft); font-size: 14px; }
.tile dd { margin: 0; }
.tile .value { font-size: 27px; font-weight: 620; letter-spacing: -0.02em; line-height: 1.3; }
.tile .value small { font-size: 16px; font-weight: 500; letter-spacing: 0; color: var(--soft); }
.tile .note { color: var(--soft); font-size: 13px; line-height: 1.4; }
section { margin-top: 52px; }
.head { display: flex; flex-wrap: wrap; gap: 10px 20px; align-items: center; }
.head h2 { margin-right: auto; }
.about { color: var(--soft); font-size: 15px; max-width: 46em; margin: 6px 0 0; }
.seg { display: inline-flex; border: 1px solid var(--line); border-radius: 8px; overflow: hidden;
  background: var(--raised); }
.seg button {
  font: inherit; font-size: 14px; color: var(--soft); background: none; border: 0;
  padding: 5px 12px; cursor: pointer; white-space: nowrap;
}
.seg button + button { border-left: 1px solid var(--line); }
.seg button[aria-pressed=true] { background: var(--accent); color: var(--paper); }
.seg button:disabled { color: var(--faint); cursor: default; opacity: 0.6; }
button:focus-visible, input:focus-visible, canvas:focus-visible, summary:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.seg button:focus-visible { outline-offset: -3px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0 6px; align-items: center; }
.readout { color: var(--soft); font-size: 14px; min-height: 21px; }
.readout b { color: var(--ink); font-weight: 600; }
.chart svg { display: block; width: 100%; touch-action: pan-y; }
.chart text, .strip text { font-size: 13px; fill: var(--soft); font-family: inherit; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--soft); font-size: 14px;
  margin-top: 4px; align-items: center; }
.legend i { display: inline-block; width: 18px; height: 3px; border-radius: 2px;
  margin-right: 6px; vertical-align: middle; }
.legend i.dot { width: 11px; height: 11px; border-radius: 50%; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 20px 40px; margin-top: 18px;
  align-items: start; }
.pair > div { min-width: 0; }
.pair h3, .block h3 { font-size: 15px; font-weight: 600; margin: 0 0 8px; }
canvas { display: block; max-width: 100%; }
.ramp { display: flex; align-items: center; gap: 8px; font-size: 13px; color: var(--soft);
  margin-top: 8px; }
.ramp i { flex: 0 1 140px; height: 9px; border-radius: 3px; background: linear-gradient(90deg,
  var(--ramp0), var(--ramp1), var(--ramp2), var(--ramp3), var(--ramp4)); }
.player { display: grid; grid-template-columns: auto 1fr; gap: 2px 16px; align-items: center;
  margin-top: 20px; }
.player > button { grid-row: span 2; width: 44px; height: 44px; border-radius: 50%; padding: 0;
  border: 1px solid var(--line); background: var(--raised); color: var(--ink); cursor: pointer; }
.player svg { display: block; }
.player input { width: 100%; margin: 0; accent-color: var(--accent); }
.strip { margin-top: 14px; }
.scroll { overflow: auto; max-height: 640px; margin-top: 14px; border: 1px solid var(--line);
  border-radius: 10px; background: var(--raised); }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 14px; }
th, td { padding: 7px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--grid); }
tr:last-child td { border-bottom: 0; }
thead { position: sticky; top: 0; z-index: 3; }
thead th { background: var(--raised); font-weight: 600; vertical-align: bottom;
  border-bottom: 1px solid var(--line); }
thead tr.over-head th { border-bottom: 0; padding-bottom: 0; color: var(--ink); text-align: left; }
th.start, td.start { border-left: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; z-index: 1;
  background: var(--raised); }
th button { font: inherit; color: var(--soft); border: 0; background: none; padding: 0;
  cursor: pointer; }
th[aria-sort] button { color: var(--ink); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
th.text, td.text { text-align: left; }
tbody tr { cursor: pointer; }
tbody tr.picked td { background: color-mix(in srgb, var(--accent) 14%, var(--raised)); }
tbody tr:hover td { background: color-mix(in srgb, var(--accent) 8%, var(--raised)); }
td .dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%;
  margin-right: 7px; }
td .mate { margin-right: 10px; } td .mate span { color: var(--faint); }
.cost tbody tr { cursor: default; }
.flat { columns: 3 280px; column-gap: 40px; margin-top: 16px; }
.config { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr));
  gap: 22px 40px; margin-top: 22px; }
.config h3 { font-size: 14px; font-weight: 600; margin: 0 0 4px; }
.flat, .config dl { font-size: 14px; } .config dl { margin: 0; }
div.row { break-inside: avoid; display: flex; justify-content: space-between; gap: 16px;
  padding: 3px 0; border-bottom: 1px solid var(--grid); }
.row dt { color: var(--soft); white-space: nowrap; }
.row dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 0.92em; }
footer { margin-top: 52px; padding-top: 16px; border-top: 1px solid var(--line);
  color: var(--soft); font-size: 14px; overflow-wrap: anywhere; }
footer a { color: var(--accent); }
footer p { margin: 0 0 4px; }
#tip { position: fixed; z-index: 9; pointer-events: none; visibility: hidden; max-width: 300px;
  background: var(--ink); color: var(--paper); border-radius: 7px; padding: 7px 11px;
  font-size: 13px; line-height: 1.45; box-shadow: 0 4px 16px rgb(0 0 0 / 0.22); }
#tip div:first-child { font-weight: 600; }
#tip.wide { max-width: 460px; columns: 2; column-gap: 18px; }
#tip.wide div:first-child { column-span: all; }
#tip .line { display: flex; gap: 8px; align-items: center; white-space: nowrap; }
#tip .line span:last-child { margin-left: auto; padding-left: 14px; }
.key { display: inline-block; width: 34px; }
td.best span { font-weight: 700; } td small { display: block; color: var(--soft);
  font-size: 12.5px; line-height: 1.3; }
.scroll.all { max-height: none; }
#results td { line-height: 1.3; } #results th, #results td { padding: 6px 8px; }
#results tr + tr th:not(:first-child) { white-space: normal; min-width: 66px; }
.controls .ramp { margin: 0 0 0 8px; } .controls .ramp i { width: 110px; flex: none; }
.controls .ramp span { white-space: nowrap; }
.player.above { position: sticky; top: 0; z-index: 4; background: var(--paper); margin: 4px 0 0;
  padding: 8px 0; }
.player.above .readout { margin: 0; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 6px; margin-top: 4px; }
.keys button { font: inherit; font-size: 14px; color: var(--ink); background: none; border: 0;
  border-radius: 6px; padding: 3px 8px; cursor: pointer; display: inline-flex; gap: 7px;
  align-items: center; }
.keys button:hover { background: color-mix(in srgb, var(--accent) 8%, var(--raised)); }
.keys button[aria-pressed=false] { opacity: 0.42; text-decoration: line-through; }
.keys button:not([aria-pressed]) { color: var(--accent); }
.chart text.strong { fill: var(--ink); font-size: 14px; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr));
  gap: 22px 24px; margin-top: 8px; }
.maps.few { grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); }
figure { margin: 0; min-width: 0; transition: opacity 0.15s; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 8px; align-items: center; font-size: 14px;
  margin-bottom: 6px; }
figcaption b { flex: 1; font-weight: 600; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
figcaption span { flex-basis: 100%; color: var(--soft); font-size: 13px; }
figcaption span:empty, .readout:empty { display: none; }
.own { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 22px;
  white-space: normal; color: var(--soft); }
.own .tuned { color: var(--ink); font-weight: 700; }
h3.common { font-size: 15px; font-weight: 600; margin: 26px 0 0; }
@media (max-width: 860px) {
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .pair { grid-template-columns: 1fr; }
}
@media (max-width: 560px) {
  main { padding: 24px 16px 40px; }
  h1 { font-size: 27px; } .lede { font-size: 17px; }
  section { margin-top: 40px; }
  .tile { padding: 11px 13px 12px; } .tile .value { font-size: 23px; }
  .seg button { padding: 6px 8px; font-size: 13px; }
  .seg { flex-wrap: wrap; }
  .config { grid-template-columns: 1fr; }
  .maps, .maps.few { grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 16px; }
}
@media print { .controls, .player, #tip { display: none; } .scroll { max-height: none; } }
"""
