// A text as Markdown. The server makes the HTML (/render), where it is sanitised; while a text grows,
// only its last block is made again.

import { post } from "./api.js";
import { confirmOn, copy, h, icon } from "./dom.js";

const PART_MOST = 60000; // characters of a request; the server takes 65,536
const PAUSE = 120; // milliseconds between two requests for one text
const CACHE_MOST = 300;
const AT_ONCE = 2;
const cache = new Map(); // text → blocks
const waiting = [];
let free = AT_ONCE;

// the one place where HTML enters the page
const policy = globalThis.trustedTypes?.createPolicy("rendered", { createHTML: (html) => html })
  ?? { createHTML: (html) => html };

export class Markdown {
  constructor(className = "text") {
    this.element = h("div", { class: className });
    this.onChange = () => {};
    this.text = "";
    this.shown = null; // the text that is in the element
    this.isFinished = false;
    this.firstLine = 0; // lines before it are in blocks that cannot change any more
    this.firm = 0; // how many children these blocks are
    this.working = null;
  }

  /** Shows a text, usually the last one with more at its end. Resolves when it is drawn. */
  show(text) {
    if (!text.startsWith(this.text)) this.firstLine = this.firm = 0;
    if (text !== this.text) this.isFinished = false;
    this.text = text;
    this.working ??= this.work().finally(() => {
      this.working = null;
      if (this.shown !== this.text) this.show(this.text);
    });
    return this.working;
  }

  /** The text is complete: links to references below them get their addresses now. */
  finish() {
    if (this.firm && /^ {0,3}\[[^\]]+\]:/m.test(this.text) && !this.isFinished) {
      this.firstLine = this.firm = 0;
      this.shown = null;
      this.show(this.text);
    }
    this.isFinished = true;
  }

  async work() {
    this.element.setAttribute("aria-busy", "true");
    while (this.shown !== this.text) {
      const text = this.text;
      const isWhole = await this.draw(text);
      if (isWhole) this.shown = text;
      this.onChange();
      if (isWhole && this.shown !== this.text) await new Promise((done) => setTimeout(done, PAUSE));
    }
    this.element.removeAttribute("aria-busy");
  }

  /** Draws what comes after the firm blocks; false if it was too long for one request. */
  async draw(text) {
    const { firstLine } = this;
    const tail = text.split("\n").slice(firstLine).join("\n");
    const part = partOf(tail);
    let blocks = null;
    try {
      blocks = await render(part);
    } catch {
      // shown as it is: better than nothing
    }
    if (this.firstLine !== firstLine || !this.text.startsWith(text)) return false; // begun anew
    if (!blocks) {
      this.replace([h("div", { class: "plain" }, tail)]);
      return true;
    }
    this.replace(blocks.map(element));
    const isWhole = part.length === tail.length;
    const last = blocks.at(-1);
    if (blocks.length > 1) this.advance(blocks.length - 1, last.line);
    else if (!isWhole) this.advance(blocks.length, part.split("\n").length - 1);
    return isWhole;
  }

  replace(nodes) {
    while (this.element.childNodes.length > this.firm) this.element.lastChild.remove();
    this.element.append(...nodes);
  }

  advance(nBlocks, nLines) {
    this.firm += nBlocks;
    this.firstLine += nLines;
  }
}

/** The beginning of a text that fits into a request: whole lines. A longer line is not cut, so its
    request fails. */
function partOf(text) {
  const end = text.length > PART_MOST ? text.lastIndexOf("\n", PART_MOST) : -1;
  return end > 0 ? text.slice(0, end + 1) : text;
}

async function render(text) {
  if (!text.trim()) return [];
  if (!cache.has(text)) {
    const { blocks } = await inTurn(() => post("render", { text }));
    if (cache.size >= CACHE_MOST) cache.delete(cache.keys().next().value);
    cache.set(text, blocks);
  }
  return cache.get(text);
}

/** Does some work when less than AT_ONCE other is under way: the server's queue is for everybody. */
async function inTurn(work) {
  while (free === 0) await new Promise((next) => waiting.push(next));
  free -= 1;
  try {
    return await work();
  } finally {
    free += 1;
    waiting.shift()?.();
  }
}

/** A block's HTML as an element, its code with a button, its tables in boxes that scroll. */
function element(block) {
  const box = h("div");
  box.innerHTML = policy.createHTML(block.html);
  for (const pre of box.querySelectorAll("pre")) pre.replaceWith(codeBox(pre));
  for (const table of box.querySelectorAll("table")) {
    const scroller = h("div", { class: "table" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  return box;
}

function codeBox(pre) {
  const onclick = async (event) => {
    const target = event.currentTarget;
    if (await copy(pre.textContent.replace(/\n$/, ""))) confirmOn(target);
  };
  const copyButton = h("button", { type: "button", class: "quiet copy", onclick }, icon("copy"), h("span", null, "Copy"));
  const head = h("div", { class: "code-head" }, h("span", null, pre.dataset.language ?? ""), copyButton);
  return h("div", { class: "code" }, head, pre.cloneNode(true));
}
