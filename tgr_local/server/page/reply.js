// Replies under way: asks the server, collects what it streams in a message, saves it now and then.

import { post, stream } from "./api.js";
import { add, messagesFor } from "./conversation.js";
import { keep, put, settings } from "./store.js";

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
  const node = add(conversation, question, { role: "assistant", text: "", thinking: "", ...BEGUN, cost: null, search: [] });
  return new Reply(conversation, node).run(body(messagesFor(conversation, question)));
}

/** Goes on with a reply that was stopped or cut; resolves when it has ended. */
export function goOn(conversation, node) {
  const before = { cost: node.cost, thinkingSeconds: node.text ? 0 : node.thinkingSeconds };
  const more = { ...body(messagesFor(conversation, node)), continue_final_message: true };
  Object.assign(node, BEGUN, node.text && { thinkingSeconds: node.thinkingSeconds });
  return new Reply(conversation, node, before).run(more);
}

const BEGUN = { thinkingSeconds: 0, state: "streaming", error: null };

const STAGES = {
  rebuild: "reading", calibration: "measuring", rollouts: "trying candidates", texts: "writing texts to compare",
  scored: "writing", tokens: "writing", written: "writing", "answer due": "answering",
};

class Reply {
  /** `before`: what the reply that it goes on with took. */
  constructor(conversation, node, before = { cost: null, thinkingSeconds: 0 }) {
    this.conversation = conversation;
    this.node = node;
    this.before = before;
    this.stage = "waiting";
    this.read = this.query = this.tokens = 0; // tokens of the prompt that are read, all of them, and those written
    this.prompt = 0; // tokens of the prompt
    this.wrote = 0; // when the first one came
    this.reading = 0; // seconds until the prompt was read
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

  /** Tokens in the context so far; 0 = unknown. */
  get context() {
    return this.prompt && this.prompt + this.tokens;
  }

  stop() {
    this.controller.abort();
  }

  /** Ends the thinking: the server writes the answer with what there is. Throws Problem. */
  answerNow() {
    return post(`v1/chat/completions/${encodeURIComponent(this.id)}/answer-now`, {});
  }

  async run(request) {
    const { node } = this;
    const { text, thinking, cost } = node;
    keep(this.conversation);
    this.changed();
    try {
      await stream(request, this.controller.signal, (part) => this.take(part));
      node.state = "done";
    } catch (error) {
      const { seconds } = this;
      node.state = error.name === "AbortError" ? "stopped" : "failed";
      if (node.state === "failed") node.error = { status: error.status ?? 0, message: error.message, settable: isSettable(error) };
      if (node.thinking && !node.text && !node.thinkingSeconds) this.thoughtFor(seconds);
      const written = node.thinking.slice(thinking.length) + node.text.slice(text.length);
      if (node.cost === cost && (written || node.state === "stopped")) await this.count(written, seconds);
    }
    running.delete(node.id);
    if (node.thinking && !node.text && !node.thinkingSeconds) this.thoughtFor(this.seconds);
    this.conversation.updated = Date.now();
    node.version += 1;
    cancelAnimationFrame(this.frame);
    for (const listener of listeners) listener(this.conversation, node);
    await put(this.conversation);
  }

  thoughtFor(seconds) {
    this.node.thinkingSeconds = this.before.thinkingSeconds + seconds;
  }

  /** What a reply took that did not come to its end: the server tells it of whole ones only. */
  async count(text, seconds) {
    const request = { content: text, parse_special: false, ...(settings.model && { model: settings.model }) };
    try {
      const { count } = text ? await post("tokenize", request, AbortSignal.timeout(2000)) : { count: 0 };
      this.tokens = Math.max(this.tokens, count); // the last report of them is up to half a second old
    } catch {
      // then as they were reported
    }
    const about = { method: settings.method, tokens: this.tokens, prompt: this.prompt, context: this.context };
    const reading = this.reading || (this.read ? seconds : 0);
    const rest = { seconds, reading, seed: 0, reused: 0, forward: {}, finish: "", limit: "" };
    this.node.cost = sum(this.before.cost, { ...about, ...rest });
  }

  take(part) {
    const { node } = this;
    this.id = part.id ?? this.id;
    if (part.tgr?.progress) this.progress(part.tgr.progress);
    for (const { delta } of part.choices ?? []) {
      if (delta.reasoning_content) node.thinking += delta.reasoning_content;
      if (delta.content) {
        if (node.thinking && !node.text) this.thoughtFor(this.seconds);
        node.text += delta.content;
      }
    }
    if (part.usage && part.tgr) node.cost = sum(this.before.cost, costOf(part, this.seconds));
    this.changed();
    if (performance.now() - this.saved > SAVE_MS) {
      this.saved = performance.now();
      put(this.conversation);
    }
  }

  progress(progress) {
    this.stage = progress.stage;
    if (progress.of) [this.read, this.query] = [progress.read, progress.of];
    this.prompt ||= this.query; // a later query has the thinking, too
    if (progress.stage !== "rebuild") this.reading ||= this.seconds;
    if (progress.stage === "tokens") {
      this.wrote ||= performance.now();
      this.tokens = progress.tokens;
    }
    if (this.context) this.node.context = this.context; // for a page that is loaded again meanwhile
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
    this.node.version = (this.node.version ?? 0) + 1; // what other tabs have of it is older
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of listeners) listener(this.conversation, this.node);
    });
  }
}

/** Whether a setting can mend what failed: an option that the server names, or a reply that may be too long. */
function isSettable({ status, code, about }) {
  if (status !== 400) return false;
  if (code === "context_length_exceeded") return !(about.n_prompt_tokens > about.n_ctx);
  return about.param in settings.options || about.param === "method";
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
    context: usage.prompt_tokens + usage.completion_tokens,
    seconds: tgr.seconds ?? seconds,
    reading: (timings?.prompt_ms ?? 0) / 1000,
    reused: tgr.reused_tokens,
    forward: tgr.forward_tokens,
    finish: reply?.finish ?? "",
    limit: reply?.limit ?? "",
  };
}

/** The cost of a reply and of more of it. What passed through the model is known if it is of both. */
function sum(before, more) {
  if (!before) return more;
  const added = ["tokens", "seconds", "reading"].map((name) => [name, (before[name] ?? 0) + more[name]]);
  const kinds = hasCounts(before) && hasCounts(more) ? Object.keys({ ...before.forward, ...more.forward }) : [];
  const forward = kinds.map((kind) => [kind, (before.forward[kind] ?? 0) + (more.forward[kind] ?? 0)]);
  return { ...more, ...Object.fromEntries(added), forward: Object.fromEntries(forward) };
}

/** Whether it is known what passed through the model: not of a reply that was stopped. */
export const hasCounts = (cost) => Object.keys(cost?.forward ?? {}).length > 0;
