// Conversations in the browser (IndexedDB), settings in localStorage. Other tabs are told of changes.

import { merge } from "./conversation.js";
import { toast } from "./dom.js";

const changes = "BroadcastChannel" in globalThis ? new BroadcastChannel("tgr-local") : null;
const memory = new Map(); // where a browser has no storage, as in some private windows
const unstored = new Set(); // ids of new conversations that could not be stored: not there, but not deleted
let isTold = false; // that a conversation could not be stored
let opened = null;

function database() {
  opened ??= new Promise((resolve) => {
    let request;
    try {
      request = indexedDB.open("tgr-local", 1);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  });
  return opened;
}

async function run(mode, work, withoutStorage) {
  const db = await database();
  if (!db) return withoutStorage();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction("conversations", mode);
    const request = work(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Whether conversations outlive this tab. */
export const isLasting = async () => (await database()) !== null;

/** All conversations, the newest first. */
export async function all() {
  const found = await run("readonly", (store) => store.getAll(), () => [...memory.values()]);
  return found.sort((a, b) => b.updated - a.updated);
}

/** Stores a conversation, with what another tab has added to it meanwhile, and tells whether it is stored. One that
    is not there was deleted, perhaps in another tab, and stays so: `keep` stores a new one, or one again. */
export async function put(conversation, mayAdd = unstored.has(conversation.id)) {
  const { id } = conversation;
  let isThere = false;
  const work = (store) => {
    const request = store.get(id);
    request.onsuccess = () => {
      isThere = Boolean(request.result);
      if (isThere) merge(conversation, request.result);
      if (isThere || mayAdd) store.put(conversation);
    };
    return request;
  };
  const withoutStorage = () => {
    isThere = memory.has(id);
    if (isThere || mayAdd) memory.set(id, conversation);
  };
  try {
    await run("readwrite", work, withoutStorage);
  } catch (error) {
    if (mayAdd && !isThere) unstored.add(id);
    const why = (error?.message || "the browser has no room").replace(/\.$/, "");
    if (!isTold) toast(`This conversation is not stored: ${why}. Export it, or delete others.`);
    isTold = true; // a reply is stored every second or two: the line would hide all others
    return false;
  }
  if (!isThere && !mayAdd) return false;
  unstored.delete(id);
  isTold = false;
  changes?.postMessage(id);
  return true;
}

/** The same for a conversation that is new, or that the person goes on with after it was deleted. */
export const keep = (conversation) => put(conversation, true);

export async function remove(id) {
  await run("readwrite", (store) => store.delete(id), () => memory.delete(id));
  changes?.postMessage(id);
}

/** Calls `then` with the id of a conversation that another tab has changed. */
export function onChange(then) {
  changes?.addEventListener("message", (event) => then(event.data));
}

// ---- settings ----

const SETTINGS = "tgr-local.settings";
const DEFAULTS = { theme: "auto", system: "", method: "", model: "", options: {} };

/** theme, system (prompt of new conversations), method, model, options (of the search, by name). */
export const settings = { ...DEFAULTS, ...read() };

function read() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

/** Stores what was changed here, and leaves what another tab has changed meanwhile. */
export function saveSettings(changed) {
  const stored = { ...DEFAULTS, ...read() };
  const options = changed.options ? merged(stored.options, settings.options, changed.options) : stored.options;
  Object.assign(settings, changed);
  try {
    localStorage.setItem(SETTINGS, JSON.stringify({ ...stored, ...changed, options }));
  } catch {
    // they hold until the page is closed
  }
}

/** The stored options with the changes from `before` to `after`. */
function merged(stored, before, after) {
  const options = Object.keys(after).length ? { ...stored } : {};
  for (const name of Object.keys({ ...before, ...after })) {
    if (!(name in after)) delete options[name];
    else if (after[name] !== before[name]) options[name] = after[name];
  }
  return options;
}

/** The last conversation of this tab: a reload shows it again. */
export const current = {
  get: () => attempt(() => sessionStorage.getItem("tgr-local.current")),
  set: (id) => attempt(() => sessionStorage.setItem("tgr-local.current", id)),
};

/** The API key: in this tab, or with `lasting` in this browser. */
export const apiKey = {
  get: () => attempt(() => sessionStorage.getItem("tgr-local.key") ?? localStorage.getItem("tgr-local.key")) ?? "",
  set(key, lasting) {
    attempt(() => localStorage.removeItem("tgr-local.key"));
    attempt(() => (lasting ? localStorage : sessionStorage).setItem("tgr-local.key", key));
    if (lasting) attempt(() => sessionStorage.removeItem("tgr-local.key"));
  },
};

function attempt(work) {
  try {
    return work();
  } catch {
    return null;
  }
}
