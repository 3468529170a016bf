// The messages of a conversation on the screen.

import { path, variants } from "./conversation.js";
import { announce, button, confirmOn, copy, h, toast } from "./dom.js";
import { Markdown } from "./markdown.js";
import { replyOf } from "./reply.js";
import { costLine, searchPanel } from "./search.js";

/**
 * `actions` are what buttons do: again(node), edit(node, text), choose(node), settings(), key(),
 * system(text).
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

/** ‹ 2 / 3 ›: the other questions or replies in a message's place. */
function variantButtons(node, view) {
  const all = variants(view.conversation, node);
  if (all.length < 2) return [];
  const at = all.indexOf(node);
  const to = (i) => () => view.actions.choose(all[i]);
  return [
    button("left", "Previous variant", to(at - 1), { disabled: at === 0 }),
    h("span", { class: "variant" }, `${at + 1} / ${all.length}`),
    button("right", "Next variant", to(at + 1), { disabled: at === all.length - 1 }),
  ];
}

const copyButton = (what, text) =>
  button("copy", `Copy the ${what}`, async (event) => {
    const target = event.currentTarget;
    if (await copy(text())) confirmOn(target);
  });

class UserMessage {
  constructor(node, view) {
    this.node = node;
    this.view = view;
    this.element = h("article", { class: "message user", "aria-label": "You" });
  }

  update() {
    if (this.isEditing) return;
    const { node, view } = this;
    const editButton = button("edit", "Edit the question", () => this.edit(), { class: "icon edit" });
    const actions = h("div", { class: "actions" }, variantButtons(node, view), editButton, copyButton("question", () => node.text));
    this.element.replaceChildren(h("div", { class: "bubble" }, node.text), actions);
  }

  edit() {
    const { node, view } = this;
    this.isEditing = true;
    const area = h("textarea", { class: "editor", "aria-label": "Edit the question", value: node.text });
    const done = (text) => {
      this.isEditing = false;
      if (text && text !== node.text) view.actions.edit(node, text);
      else this.update();
    };
    const send = () => done(area.value.trim());
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        done("");
      }
    });
    const cancelButton = h("button", { type: "button", class: "quiet", onclick: () => done("") }, "Cancel");
    const sendButton = h("button", { type: "button", class: "primary", onclick: send }, "Send");
    this.element.replaceChildren(area, h("div", { class: "actions" }, cancelButton, sendButton));
    area.style.height = `${Math.min(area.scrollHeight + 4, 320)}px`;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
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
    const key = `${node.state} ${node.cost?.tokens} ${variants(view.conversation, node).length}`;
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
    if (!node.cost && !node.search.length) return [];
    const details = h("details", { class: "fold-out" }, h("summary", null, "How this reply was found"));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(searchPanel(node));
    });
    return [details];
  }
}

/** What went wrong with a reply, and the way out. */
function noticeOf(node, view) {
  const again = ["Try again", () => view.actions.again(node)];
  if (node.state === "failed") {
    const { status, message } = node.error;
    const out = { 400: ["Open the settings", view.actions.settings], 401: ["Enter the API key", view.actions.key] }[status];
    return [notice("problem", message, ...(out ? [out] : []), again)];
  }
  if (node.state === "stopped") return [notice("note", "Stopped.")];
  if (node.state === "streaming" || node.state === "interrupted") {
    const why = "The page was closed while this reply was written, or another tab writes it.";
    return [notice("note", why, again)];
  }
  if (node.cost && ["length", "budget"].includes(node.cost.finish)) {
    const limit = node.cost.limit || (node.cost.finish === "length" ? "max_tokens" : "max_forward_tokens");
    const why = `The reply was cut at its limit, ${limit}. A higher one lets it go on.`;
    return [notice("note", why, ["Settings", view.actions.settings], again)];
  }
  if (!node.text) return [notice("note", "The reply has no answer.", again)];
  return [];
}

function notice(kind, text, ...ways) {
  const buttons = ways.map(([name, onclick]) => h("button", { type: "button", class: "link", onclick }, name));
  return h("div", { class: `notice ${kind}`, role: kind === "problem" ? "alert" : null }, h("span", null, text), buttons);
}

/** What is shown before the first question. */
export function emptyState(name, examples, ask) {
  const buttons = examples.map((text) => h("button", { type: "button", class: "example", onclick: () => ask(text) }, text));
  return h(
    "section", { class: "empty" },
    h("h2", null, "What shall we think about?"),
    h("p", null, `${name || "The model"} runs on this machine. Before each part of its reply it tries several directions and follows the best; every reply shows which.`),
    h("div", { class: "examples" }, buttons),
  );
}
