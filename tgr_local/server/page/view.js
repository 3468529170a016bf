// The messages of a conversation on the screen.

import { path, variants } from "./conversation.js";
import { announce, button, h, toast } from "./dom.js";
import { copyButton, noticeOf, variantButtons } from "./foot.js";
import { Markdown } from "./markdown.js";
import { UserMessage } from "./question.js";
import { hasCounts, replyOf } from "./reply.js";
import { costLine, searchPanel } from "./search.js";

/**
 * `actions` are what buttons do: again(node), goOn(node), edit(node, text, files), choose(node),
 * settings(), key(), system(text).
 */
export class ConversationView {
  constructor(element, scroller, actions) {
    this.element = element;
    this.scroller = scroller;
    this.actions = actions;
    this.views = new Map();
    this.conversation = null;
    this.follows = true; // whether the newest text is kept in sight
    scroller.addEventListener("scroll", () => {
      this.follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    });
  }

  /** Shows a conversation; views of messages that stay are kept. */
  show(conversation) {
    if (conversation !== this.conversation) this.views.clear();
    this.conversation = conversation;
    const shown = path(conversation);
    const views = shown.map((node) => this.viewOf(node));
    this.element.replaceChildren(this.systemBox(), ...views.map((view) => view.element));
    for (const view of views) view.update();
    this.scroll();
  }

  viewOf(node) {
    if (!this.views.has(node.id)) {
      const kind = node.role === "user" ? UserMessage : AssistantMessage;
      this.views.set(node.id, new kind(node, this));
    }
    return this.views.get(node.id);
  }

  /** Draws everything anew. */
  renew() {
    this.views.clear();
    this.show(this.conversation);
  }

  /** A message has changed. */
  update(node) {
    this.views.get(node.id)?.update();
    this.scroll();
  }

  /** Moves the newest text into sight, unless the reader has gone elsewhere. */
  scroll(always = false) {
    if (always) this.follows = true;
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** The system prompt of this conversation, to be opened and changed. */
  systemBox() {
    const { conversation } = this;
    const save = (event) => this.actions.system(event.target.value.trim());
    const area = h("textarea", { rows: 3, "aria-label": "System prompt", value: conversation.system, onchange: save });
    const summary = h("summary", null, conversation.system ? "System prompt" : "Add a system prompt");
    return h("details", { class: "system" }, summary, area);
  }
}

class AssistantMessage {
  constructor(node, view) {
    this.node = node;
    this.view = view;
    this.markdown = new Markdown();
    this.markdown.onChange = () => view.scroll();
    this.thought = h("div", { class: "thought" });
    this.thinking = h("details", { class: "thinking", hidden: true }, h("summary"), this.thought);
    this.thinking.firstChild.addEventListener("click", () => (this.isTouched = true));
    this.told = h("span", { class: "told" });
    this.answerNow = h("button", { type: "button", class: "link", onclick: () => this.endThinking() }, "Answer now");
    this.live = h("div", { class: "live", hidden: true }, this.told, this.answerNow);
    this.foot = h("div", { class: "foot" });
    this.element = h(
      "article", { class: "message assistant", "aria-label": "Reply" },
      this.thinking, this.markdown.element, this.live, this.foot,
    );
    this.wasRunning = false;
    this.footOf = null;
  }

  update() {
    const { node } = this;
    const reply = replyOf(node);
    this.showThinking(reply);
    if (node.text !== this.markdown.text) this.markdown.show(node.text);
    this.element.setAttribute("aria-busy", String(Boolean(reply)));
    if (reply) {
      if (!this.wasRunning) this.timer = setInterval(() => this.showLive(), 100);
      this.wasRunning = true;
      this.showLive();
      this.foot.replaceChildren();
      this.footOf = null;
      return;
    }
    if (this.wasRunning) announce("The reply is finished.");
    this.wasRunning = false;
    clearInterval(this.timer);
    this.markdown.finish();
    this.live.hidden = true;
    this.showFoot();
  }

  showThinking(reply) {
    const { node, thinking, thought } = this;
    thinking.hidden = !node.thinking;
    if (!node.thinking) return;
    const isThinking = reply && !node.text;
    const seconds = node.thinkingSeconds ? ` for ${node.thinkingSeconds.toFixed(1)} s` : "";
    thinking.firstChild.textContent = isThinking ? "Thinking" : `Thought${seconds}`;
    thinking.classList.toggle("active", Boolean(isThinking));
    if (!this.isTouched) thinking.open = Boolean(isThinking) || (!node.text && !reply);
    const shown = thought.textContent;
    if (shown === node.thinking) return;
    if (node.thinking.startsWith(shown)) thought.append(node.thinking.slice(shown.length));
    else thought.textContent = node.thinking;
    thought.normalize();
  }

  showLive() {
    const reply = replyOf(this.node);
    if (!reply) {
      clearInterval(this.timer); // of a view that is on the screen no more
      return;
    }
    const last = this.node.search.at(-1);
    const bars = h("span", { class: "bars", "aria-hidden": "true" });
    const totals = last?.scores?.total ?? [];
    const low = Math.min(...totals);
    const range = Math.max(...totals) - low || 1;
    totals.forEach((total, k) => {
      const bar = h("i", k === last.scores.chosen ? { class: "chosen" } : null);
      bar.style.height = `${15 + (85 * (total - low)) / range}%`;
      bars.append(bar);
    });
    const chunk = this.node.search.length > 1 ? `chunk ${this.node.search.length} · ` : "";
    this.told.replaceChildren(bars, `${chunk}${reply.said} · ${reply.seconds.toFixed(1)} s`);
    this.answerNow.hidden = !reply.id || !this.node.thinking || this.node.text !== "";
    this.live.hidden = false;
  }

  async endThinking() {
    try {
      await replyOf(this.node)?.answerNow();
    } catch (error) {
      toast(error.message);
    }
  }

  showFoot() {
    const { node, view } = this;
    const key = [node.state, node.cost?.tokens, variants(view.conversation, node).length, view.conversation.chosen[node.id]].join(" ");
    if (key === this.footOf) return;
    this.footOf = key;
    const regenerate = button("again", "Another reply", () => view.actions.again(node), { class: "icon again" });
    const row = h(
      "div", { class: "actions" },
      variantButtons(node, view), copyButton("reply", () => node.text), regenerate,
      node.cost && h("span", { class: "cost" }, costLine(node.cost)),
    );
    this.foot.replaceChildren(...noticeOf(node, view), row, ...this.foldOut());
  }

  foldOut() {
    const { node } = this;
    if (!hasCounts(node.cost) && !node.search.length) return [];
    const details = h("details", { class: "fold-out" }, h("summary", null, "How this reply was found"));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(searchPanel(node));
    });
    return [details];
  }
}

/** What is shown before the first question. `about` says what the server is, `method` how it will reply. */
export function emptyState({ name, told }, method, examples, ask) {
  const buttons = examples.map((text) => h("button", { type: "button", class: "example", onclick: () => ask(text) }, text));
  const way = told[method] ? ` Its method is ${method} (${told[method]}).` : "";
  return h(
    "section", { class: "empty" },
    h("h2", null, "What shall we think about?"),
    h("p", null, `${name || "The model"} runs on this machine.${way} Below every reply stands what it took.`),
    h("div", { class: "examples" }, buttons),
  );
}
