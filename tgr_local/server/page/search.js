// The search behind a reply: tokens by kind, every boundary with its candidates, the tree of what was
// tried. Numbers come from the server's reports; nothing is computed here but positions.

import { h, svg } from "./dom.js";
import { hasCounts } from "./reply.js";

const KINDS = {
  query: ["prompt", "the question and the turns before it"],
  rebuild: ["rebuild", "read again after a reset"],
  rollouts: ["rollouts", "looked ahead, then thrown away"],
  chunk: ["text", "the reply itself"],
  delimiter: ["delimiter", "where the state after a chunk is read"],
  guard: ["guard", "the chosen rollout, read again plainly"],
  calibration: ["calibration", "how strong an injection may be, measured once for a model"],
  discarded: ["discarded", "text that was not chosen"],
};
const TERMS = [
  ["foresight", "log-likelihood", "V: mean log-probability of the rollout; higher is better"],
  ["bumpiness", "smoothness", "P_bum: how sharply the states turn; lower is better"],
  ["uniformity", "distance", "P_uni: closeness to the last anchor beyond δ; lower is better"],
  ["total", "score", "J: log-likelihood minus the weighted penalties"],
];

/** Whole numbers with separators. */
export const whole = (n) => Math.round(n).toLocaleString("en-US");

/** What a reply took, in one line. */
export function costLine(cost) {
  const reading = cost.reading ?? 0;
  const writing = cost.seconds - reading;
  const read = reading >= 0.05 ? ` (${reading.toFixed(1)} s reading)` : "";
  const speed = cost.tokens > 1 && writing > 0 ? ` · ${whole(cost.tokens / writing)} tokens/s` : "";
  return `${whole(cost.tokens)} tokens · ${cost.seconds.toFixed(1)} s${read}${speed}`;
}

/** The content of the fold-out. */
export function searchPanel(node) {
  const panel = h("div", { class: "search" });
  if (hasCounts(node.cost)) panel.append(section("Tokens through the model", tokensByKind(node.cost)));
  const isSearched = node.search.some((boundary) => boundary.scores);
  const none = h("p", { class: "dim" }, "For this reply no candidates were tried.");
  panel.append(isSearched ? new Boundaries(node.search).element : none);
  return panel;
}

const section = (title, ...content) => h("section", null, h("h4", null, title), ...content);

// ---- tokens ----

function tokensByKind(cost) {
  const kinds = Object.entries(cost.forward).filter(([kind, n]) => kind !== "total" && n);
  const total = kinds.reduce((sum, [, n]) => sum + n, 0) || 1;
  const bar = h("div", { class: "share", "aria-hidden": "true" });
  const legend = h("ul", { class: "legend" });
  for (const [kind, n] of kinds) {
    const [name, meaning] = KINDS[kind] ?? [kind, ""];
    const part = h("i", { class: `kind-${kind}`, title: `${name}: ${whole(n)}` });
    part.style.flexGrow = n / total;
    bar.append(part);
    legend.append(h("li", { title: meaning }, h("i", { class: `kind-${kind}` }), `${name} `, h("b", null, whole(n))));
  }
  if (cost.reused) legend.append(h("li", { title: "was in the cache already" }, `reused `, h("b", null, whole(cost.reused))));
  const sum = h("p", { class: "dim total" }, `${cost.method} · ${whole(cost.forward.total ?? 0)} forward tokens`);
  return h("div", null, sum, bar, legend);
}

// ---- boundaries ----

class Boundaries {
  constructor(search) {
    this.search = search;
    this.shown = search.findIndex((boundary) => boundary.scores);
    this.strip = h("div", { class: "strip", role: "group", "aria-label": "Boundaries" });
    this.detail = h("div", { class: "detail" });
    this.tree = h("div", { class: "tree" });
    this.element = h(
      "div", null,
      section("Candidates at every boundary", this.strip, this.detail),
      section("What was tried", this.tree),
    );
    this.buttons = search.map((boundary, i) => this.stripButton(boundary, i));
    this.strip.append(...this.buttons);
    this.select(this.shown);
  }

  stripButton({ scores }, i) {
    const bars = h("span", { class: "bars", "aria-hidden": "true" });
    heights(scores?.total ?? []).forEach((height, k) => {
      const bar = h("i", k === scores.chosen ? { class: "chosen" } : null);
      bar.style.height = `${height}%`;
      bars.append(bar);
    });
    const label = scores
      ? `Chunk ${i + 1}: candidate ${scores.chosen + 1} of ${scores.total.length}`
      : `Chunk ${i + 1}: not searched`;
    return h("button", { type: "button", "aria-label": label, title: label, onclick: () => this.select(i) }, bars, String(i + 1));
  }

  select(i, candidate = null) {
    this.shown = i;
    this.buttons.forEach((one, at) => one.setAttribute("aria-pressed", String(at === i)));
    this.detail.replaceChildren(...detailOf(this.search[i], i, this.search.length, candidate));
    this.tree.replaceChildren(treeOf(this.search, i, (at, k) => this.select(at, k)));
  }
}

/** Heights of bars in percent: the lowest score is 12, the highest 100. */
function heights(totals) {
  const low = Math.min(...totals);
  const range = Math.max(...totals) - low;
  return totals.map((total) => (range > 0 ? 12 + (88 * (total - low)) / range : 100));
}

function detailOf(boundary, i, n, pointed) {
  const { scores, rollouts, text } = boundary;
  const told = text ? [h("blockquote", { title: "the chunk that was written" }, text)] : [];
  if (!scores) return [h("p", null, `Chunk ${i + 1} of ${n} was written without a search.`), ...told];
  const gap = gapOf(scores);
  const lead = scores.total.length > 1 ? `, ${gap.toFixed(4)} ahead of the second` : "";
  const head = h("p", null, `Chunk ${i + 1} of ${n}: `, h("b", null, `candidate ${scores.chosen + 1} of ${scores.total.length}`), lead);
  const columns = TERMS.map(([, name, meaning]) => h("th", { scope: "col", title: meaning }, name));
  const rows = scores.total.map((total, k) => candidateRow(scores, k, rollouts, k === pointed));
  const header = h("thead", null, h("tr", null, h("th", { scope: "col", "aria-label": "candidate" }, "#"), columns));
  return [head, h("div", { class: "table" }, h("table", null, header, h("tbody", null, rows))), ...told];
}

function candidateRow(scores, k, rollouts, isPointed) {
  const texts = rollouts.filter((one) => one.candidate === k).map((one) => one.text);
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("i"));
  bar.firstChild.style.width = `${heights(scores.total)[k]}%`;
  const classes = [k === scores.chosen && "chosen", isPointed && "pointed"].filter(Boolean).join(" ");
  const number = h("th", { scope: "row" }, bar, String(k + 1), k === scores.chosen && h("span", { class: "unseen" }, " (chosen)"));
  const values = TERMS.map(([name]) => h("td", null, scores[name][k].toFixed(4)));
  const row = h("tr", { class: classes }, number, values);
  const ahead = texts.map((text) => h("tr", { class: `ahead ${classes}` }, h("td", { colspan: "5" }, text)));
  return [row, ...ahead];
}

function gapOf(scores) {
  const [first, second] = [...scores.total].sort((a, b) => b - a);
  return first - second;
}

// ---- the tree ----

const STEP = 46;
const DEPTH = 84;
const TOP = 16;

/** The way that was taken, on top, and at every boundary the candidates below it by their score. */
function treeOf(search, shown, select) {
  const width = STEP * (search.length + 1);
  const gaps = search.flatMap(({ scores }) => (scores ? scores.total.map((total) => scores.total[scores.chosen] - total) : []));
  const most = Math.max(...gaps, 1e-9);
  const lines = svg("g", { class: "lines" });
  const dots = svg("g", { class: "dots" });
  search.forEach(({ scores }, i) => {
    const from = STEP * i + STEP / 2;
    const to = from + STEP;
    const way = svg("path", { d: `M${from} ${TOP}H${to}`, class: "taken" });
    (scores?.total ?? []).forEach((total, k) => {
      if (k === scores.chosen) return;
      const y = TOP + 10 + ((DEPTH - 10) * (scores.total[scores.chosen] - total)) / most;
      const middle = from + STEP / 2;
      lines.append(svg("path", { d: `M${from} ${TOP}C${middle} ${TOP} ${middle} ${y} ${to - 8} ${y}` }));
      dots.append(dot(to - 8, y, 3.2, "", `Chunk ${i + 1}, candidate ${k + 1}: ${total.toFixed(4)}`, () => select(i, k)));
    });
    lines.append(way);
    const told = scores ? `Chunk ${i + 1}: candidate ${scores.chosen + 1} chosen, ${scores.total[scores.chosen].toFixed(4)}` : `Chunk ${i + 1}`;
    dots.append(dot(to, TOP, i === shown ? 6.5 : 5, i === shown ? "taken shown" : "taken", told, () => select(i)));
  });
  dots.prepend(dot(STEP / 2, TOP, 4, "start", "the question", () => {}));
  const height = TOP + DEPTH + 8;
  const label = `${search.length} chunks; the candidates that were not chosen hang below, deeper for a lower score`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, lines, dots);
}

function dot(x, y, r, className, title, onclick) {
  const mark = svg("circle", { cx: x, cy: y, r, class: className, onclick });
  const name = svg("title", {});
  name.textContent = title;
  mark.append(name);
  return mark;
}
