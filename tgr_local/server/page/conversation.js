// A conversation as a tree of messages: nothing here knows the screen, the server or the storage.
//
// { id, title, created, updated, system, setAt, nodes: { id: node }, chosen: { parent id or "": child id } }
// `setAt` has the times at which the person set the title or the system prompt: { title, system }, each may be absent.
// A node is { id, parent, role: "user" | "assistant", text }, of a user with files: [{ name, text, bytes }],
// and of an assistant also { thinking, thinkingSeconds, state, error, cost, context, search, version }. Children of one parent are variants: of
// a question that was edited, or of a reply that was made again. `chosen` has the one that is shown.

import { fenced } from "./files.js";

const TITLE_MOST = 60;

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((id, n) => id + n.toString(36), "");

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, system, nodes: {}, chosen: {} };
}

/** Adds a message after `parent` (null = at the beginning) and shows it. */
export function add(conversation, parent, message) {
  const node = { id: newId(), parent: parent ? parent.id : null, created: Date.now(), ...message };
  conversation.nodes[node.id] = node;
  choose(conversation, node);
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.text || node.files?.[0]?.name || "");
  return node;
}

/** Shows a message in place of its variants. */
export function choose(conversation, node) {
  conversation.chosen[node.parent ?? ""] = node.id;
  conversation.updated = Date.now();
}

/** Sets the title or the system prompt as the person wants it. */
export function set(conversation, field, text) {
  conversation[field] = text;
  conversation.setAt = { ...conversation.setAt, [field]: Date.now() };
}

/** Takes in what another tab has stored of a conversation: its messages, and of one that both have the version that
    was written further; the title and the system prompt that were set last. */
export function merge(conversation, stored) {
  for (const [id, node] of Object.entries(stored.nodes)) {
    const own = (conversation.nodes[id] ??= node);
    if ((node.version ?? 0) > (own.version ?? 0)) Object.assign(own, node);
  }
  conversation.chosen = { ...stored.chosen, ...conversation.chosen };
  for (const [field, time] of Object.entries(stored.setAt ?? {})) {
    if (time <= (conversation.setAt?.[field] ?? 0)) continue;
    conversation[field] = stored[field];
    conversation.setAt = { ...conversation.setAt, [field]: time };
  }
}

/** The messages that are shown, first to last. */
export function path(conversation) {
  const shown = [];
  let node = conversation.nodes[conversation.chosen[""]];
  while (node) {
    shown.push(node);
    node = conversation.nodes[conversation.chosen[node.id]];
  }
  return shown;
}

/** The message and the others in its place, oldest first. */
export function variants(conversation, node) {
  return Object.values(conversation.nodes).filter((other) => other.parent === node.parent);
}

/** What the server gets for the reply to a question, or for more of a reply: the way from the
    beginning to that message. */
export function messagesFor(conversation, last) {
  const way = [];
  for (let node = last; node; node = conversation.nodes[node.parent]) {
    way.unshift({ role: node.role, content: contentOf(node) });
  }
  if (last.thinking) way.at(-1).reasoning_content = last.thinking;
  return conversation.system ? [{ role: "system", content: conversation.system }, ...way] : way;
}

/** The text of a message as the model gets it: its files first, as `tgr-local run --file` has them. */
const contentOf = ({ text, files }) => [...(files ?? []).map(fenced), text].filter(Boolean).join("\n\n");

/** The tokens that the shown messages take in the model's context; 0 where no reply has told it. */
export function contextOf(conversation) {
  const told = (node) => node.cost?.context || node.context;
  return told(path(conversation).findLast(told) ?? {}) ?? 0;
}

export function titleOf(text) {
  const line = text.trim().split(/\s+/).join(" ");
  return line.length > TITLE_MOST ? `${line.slice(0, TITLE_MOST - 1)}…` : line;
}

/** Whether a search finds the conversation: every word in its title or its messages. */
export function matches(conversation, words) {
  const nodes = Object.values(conversation.nodes);
  const names = nodes.flatMap((node) => (node.files ?? []).map((file) => file.name));
  const texts = [conversation.title, ...names, ...nodes.map((node) => node.text)];
  const all = texts.join("\n").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

// ---- files ----

const FORMAT = "tgr-local conversations 1";

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, conversations }, null, 1);
}

/** The conversations of an exported file, each with a new id. Throws an Error that says what is wrong. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error(`The file is not an export of this page: its format is not “${FORMAT}”.`);
  }
  return file.conversations.map(checked);
}

const text = (value) => (typeof value === "string" ? value : "");
const number = (value) => (Number.isFinite(value) ? value : 0);
const numbers = (value) => (Array.isArray(value) ? value.map(number) : []);

/** A conversation with nothing but known fields of known types: the file may be anybody's. */
function checked(given) {
  const conversation = newConversation(text(given?.system));
  conversation.title = titleOf(text(given?.title)) || "Imported";
  conversation.created = number(given?.created) || conversation.created;
  const nodes = Object.entries(Object(given?.nodes)).filter(([id]) => !["__proto__", "constructor"].includes(id));
  for (const [id, node] of nodes) {
    const role = node?.role === "user" ? "user" : "assistant";
    const parent = node?.parent == null ? null : String(node.parent);
    const fields = role === "assistant" ? checkedReply(node) : { files: checkedFiles(node?.files) };
    conversation.nodes[id] = { id, parent, role, text: text(node?.text), created: number(node?.created), ...fields };
  }
  for (const [parent, child] of Object.entries(Object(given?.chosen))) {
    const node = conversation.nodes[child];
    if (node && (node.parent ?? "") === parent) conversation.chosen[parent] = child;
  }
  if (hasCircle(conversation)) throw new Error(`“${conversation.title}” is damaged: its messages form a circle.`);
  return conversation;
}

const checkedFiles = (files) =>
  (Array.isArray(files) ? files : []).map((file) => ({ name: text(file?.name), text: text(file?.text), bytes: number(file?.bytes) }));

function checkedReply(node) {
  const states = ["done", "stopped", "interrupted", "failed"];
  return {
    thinking: text(node?.thinking),
    thinkingSeconds: number(node?.thinkingSeconds),
    state: states.includes(node?.state) ? node.state : "interrupted",
    error: node?.error ? { status: number(node.error.status), message: text(node.error.message), settable: node.error.settable === true } : null,
    context: number(node?.context),
    cost: checkedCost(node?.cost),
    search: Array.isArray(node?.search) ? node.search.map(checkedBoundary) : [],
  };
}

function checkedCost(cost) {
  if (!cost || typeof cost !== "object") return null;
  const forward = Object.entries(Object(cost.forward)).map(([kind, n]) => [kind, number(n)]);
  const { method, finish, limit } = cost;
  const counts = Object.fromEntries(["tokens", "prompt", "context", "seconds", "reading", "reused", "seed"].map((name) => [name, number(cost[name])]));
  return { ...counts, method: text(method), finish: text(finish), limit: text(limit), forward: Object.fromEntries(forward) };
}

function checkedBoundary(boundary) {
  const scores = boundary?.scores;
  const terms = ["foresight", "bumpiness", "uniformity", "total"].map((name) => [name, numbers(scores?.[name])]);
  const [, total] = terms[3];
  const rollouts = Array.isArray(boundary?.rollouts) ? boundary.rollouts : [];
  return {
    scores: total.length && terms.every(([, term]) => term.length === total.length)
      ? { ...Object.fromEntries(terms), chosen: Math.min(total.length - 1, Math.max(0, Math.trunc(number(scores.chosen)))) }
      : null,
    rollouts: rollouts.map((one) => ({ candidate: number(one?.candidate), text: text(one?.text) })),
    text: text(boundary?.text),
    tokens: number(boundary?.tokens),
  };
}

function hasCircle(conversation) {
  return Object.values(conversation.nodes).some((node) => {
    const seen = new Set();
    for (let at = node; at; at = conversation.nodes[at.parent]) {
      if (seen.has(at.id)) return true;
      seen.add(at.id);
    }
    return false;
  });
}
