// Replies under way: asks the server, collects what it streams in a message, saves it now and then.

import { post, stream } from "./api.js";
import { add, messagesFor } from "./conversation.js";
import { put, settings } from "./store.js";

const SAVE_MS = 1500;
const running = new Map(); // id of a message → its Reply
const listeners = new Set();

/** Calls `listener(conversation, node)` after every change of a reply, at most once in a frame. */
export function onReply(listener) {
  listeners.add(listener);
}

/** The reply that writes a message; undefined if none does. */
export const replyOf = (node) => running.get(node.id);

/** The reply that is under way in a conversation. */
export const runningIn = (conversation) =>
  [...running.values()].find((reply) => reply.conversation.id === conversation?.id);

/** Asks for a reply to `question` and adds it as a further variant; resolves when it has ended. */
export function ask(conversation, question) {
  const node = add(conversation, question, {
    role: "assistant", text: "", thinking: "", thinkingSeconds: 0, state: "streaming", error: null, cost: null, search: [],
  });
  return new Reply(conversation, node).run(question);
}

const STAGES = {
  rebuild: "reading", calibration: "measuring", rollouts: "trying candidates", scored: "writing", tokens: "writing",
  written: "writing", "answer due": "answering",
};

class Reply {
  constructor(conversation, node) {
    this.conversation = conversation;
    this.node = node;
    this.stage = "waiting";
    this.read = this.query = this.tokens = 0; // tokens of the prompt that are read, all of them, and those written
    this.wrote = 0; // when the first one came
    this.start = performance.now();
    this.controller = new AbortController();
    this.id = null; // of the response, once it has begun
    this.saved = this.start;
    this.frame = 0;
    running.set(node.id, this);
  }

  get seconds() {
    return (performance.now() - this.start) / 1000;
  }

  /** "reading 1,400 of 3,984 tokens", "writing · 85 tokens · 12 tokens/s". */
  get said() {
    const name = STAGES[this.stage] ?? "waiting";
    if (name === "reading" && this.read && this.read < this.query) {
      return `reading ${this.read.toLocaleString("en")} of ${this.query.toLocaleString("en")} tokens`;
    }
    if (!this.tokens || name === "reading") return name;
    const seconds = (performance.now() - this.wrote) / 1000;
    const speed = this.tokens / seconds;
    const fast = seconds > 0.5 ? ` · ${speed < 9.95 ? speed.toFixed(1) : Math.round(speed).toLocaleString("en")} tokens/s` : "";
    return `${name} · ${this.tokens.toLocaleString("en")} tokens${fast}`;
  }

  stop() {
    this.controller.abort();
  }

  /** Ends the thinking: the server writes the answer with what there is. Throws Problem. */
  answerNow() {
    return post(`v1/chat/completions/${encodeURIComponent(this.id)}/answer-now`, {});
  }

  async run(question) {
    const { node } = this;
    put(this.conversation);
    this.changed();
    try {
      await stream(body(messagesFor(this.conversation, question)), this.controller.signal, (part) => this.take(part));
      node.state = "done";
    } catch (error) {
      if (error.name === "AbortError") {
        node.state = "stopped";
      } else {
        node.state = "failed";
        node.error = { status: error.status ?? 0, message: error.message };
      }
    }
    running.delete(node.id);
    if (node.thinking && !node.text && !node.thinkingSeconds) node.thinkingSeconds = this.seconds;
    this.conversation.updated = Date.now();
    cancelAnimationFrame(this.frame);
    for (const listener of listeners) listener(this.conversation, node);
    await put(this.conversation);
  }

  take(part) {
    const { node } = this;
    this.id = part.id ?? this.id;
    if (part.tgr?.progress) this.progress(part.tgr.progress);
    for (const { delta } of part.choices ?? []) {
      if (delta.reasoning_content) node.thinking += delta.reasoning_content;
      if (delta.content) {
        if (node.thinking && !node.text) node.thinkingSeconds = this.seconds;
        node.text += delta.content;
      }
    }
    if (part.usage && part.tgr) node.cost = costOf(part, this.seconds);
    this.changed();
    if (performance.now() - this.saved > SAVE_MS) {
      this.saved = performance.now();
      put(this.conversation);
    }
  }

  progress(progress) {
    this.stage = progress.stage;
    if (progress.of) [this.read, this.query] = [progress.read, progress.of];
    if (progress.stage === "tokens") {
      this.wrote ||= performance.now();
      this.tokens = progress.tokens;
    }
    const { search } = this.node;
    if (progress.scores) search.push({ ...boundaryOf(progress), text: "", tokens: 0 });
    if (progress.stage === "written") {
      const last = search.at(-1);
      const written = { text: progress.text ?? "", tokens: progress.tokens ?? 0 };
      if (last && !last.tokens) Object.assign(last, written);
      else search.push({ scores: null, rollouts: [], ...written });
    }
  }

  changed() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of listeners) listener(this.conversation, this.node);
    });
  }
}

function body(messages) {
  const { max_tokens: maxTokens, ...options } = settings.options;
  return {
    messages,
    ...(settings.model && { model: settings.model }),
    ...(maxTokens && { max_tokens: maxTokens }),
    stream_options: { include_usage: true },
    tgr: { progress: true, ...(settings.method && { method: settings.method }), ...options },
  };
}

const TERMS = ["foresight", "bumpiness", "uniformity", "total"];
const rounded = (value) => Math.round((value ?? 0) * 1e5) / 1e5;

function boundaryOf({ scores, rollouts }) {
  const terms = TERMS.map((name) => [name, scores[name].map(rounded)]);
  return { scores: { ...Object.fromEntries(terms), chosen: scores.chosen }, rollouts: rollouts ?? [] };
}

function costOf({ usage, tgr, timings }, seconds) {
  const [reply] = tgr.replies;
  return {
    method: tgr.method,
    seed: tgr.seed,
    tokens: usage.completion_tokens,
    prompt: usage.prompt_tokens,
    seconds: tgr.seconds ?? seconds,
    reading: (timings?.prompt_ms ?? 0) / 1000,
    reused: tgr.reused_tokens,
    forward: tgr.forward_tokens,
    finish: reply?.finish ?? "",
    limit: reply?.limit ?? "",
  };
}
