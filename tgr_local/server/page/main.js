// The page: wires the parts together.

import { get, Problem } from "./api.js";
import { Composer, showContext } from "./composer.js";
import { add, choose, contextOf, newConversation, path, set } from "./conversation.js";
import { $, button, h, icon, toast } from "./dom.js";
import { ask as askFor, goOn, onReply, runningIn } from "./reply.js";
import { kindOf, openSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { apiKey, saveSettings, settings } from "./store.js";
import { ConversationView, emptyState } from "./view.js";

const about = { name: "", method: "", isEmbedded: false, methods: [], told: {}, models: [], memory: {}, options: {}, defaults: {}, context: 0 };
const EXAMPLES = [
  "How many primes are there below 60?",
  "Show that the square root of 2 is irrational.",
  "Write a Python function that merges two sorted lists.",
  "A train leaves at 9:40 and arrives at 13:05. How long does it take?",
];
const EMBEDDED = ["What is 12 + 7 * 3?", "Solve 3x + 5 = 20.", "Use 3, 7, 9 and 50 to make 141.", "What can you do?"];
let conversation = newConversation(settings.system);
let isKnown = false; // whether the server has said what it is

// ---- conversations ----

const actions = {
  again: (node) => reply(conversation.nodes[node.parent]),
  edit(node, text, files) {
    const question = add(conversation, conversation.nodes[node.parent], { role: "user", text, files });
    reply(question);
  },
  goOn(node) {
    if (!runningIn(conversation)) follow(goOn(conversation, node));
  },
  choose(node) {
    choose(conversation, node);
    store.put(conversation);
    draw();
  },
  settings: () => openSettings(about, settingsChanged),
  key: askForKey,
  system(text) {
    set(conversation, "system", text);
    if (path(conversation).length) store.put(conversation);
    draw();
  },
};

const view = new ConversationView($("messages"), $("scroll"), actions);
const composer = new Composer({ send, stop: () => runningIn(conversation)?.stop(), editLast });
const sidebar = new Sidebar({ open, removed });

function draw() {
  view.show(conversation);
  if (!path(conversation).length) {
    $("messages").append(emptyState(about, methodNow(), about.isEmbedded ? EMBEDDED : EXAMPLES, send));
  }
  document.title = conversation.title ? `${conversation.title} · tgr-local` : "tgr-local";
  showButtons();
}

function open(one) {
  show(one);
  toggleSidebar(false);
}

/** What a conversation's draft is kept under: those without a message are not in the list and share one. */
const draftOf = (one) => (path(one).length ? one.id : "");

function removed(one) {
  if (one.id === conversation.id) show(newConversation(settings.system));
  composer.forget(one.id);
}

function show(one) {
  composer.turn(draftOf(conversation), draftOf(one));
  conversation = one;
  store.current.set(one.id);
  sidebar.current = one;
  sidebar.draw();
  draw();
  view.scroll(true);
}

function startNew() {
  open(newConversation(settings.system));
  $("question").focus();
}

/** Sends a text with files as the next question of this conversation. */
function send(text, files = []) {
  if (runningIn(conversation)) return;
  reply(add(conversation, path(conversation).at(-1) ?? null, { role: "user", text, files }));
}

/** Asks for a reply; a question that has one gets a further variant. */
async function reply(question) {
  if (runningIn(conversation)) return;
  choose(conversation, question);
  store.current.set(conversation.id);
  await follow(askFor(conversation, question));
}

/** Shows a reply of this conversation that has begun, and resolves when it has ended. */
async function follow(ended) {
  draw();
  view.scroll(true);
  await sidebar.refresh(conversation);
  await ended;
  await sidebar.refresh(conversation);
}

onReply((changed, node) => {
  if (changed !== conversation) return;
  view.update(node);
  showButtons();
});

store.onChange(async (id) => {
  if (id === conversation.id && !runningIn(conversation)) {
    const stored = (await store.all()).find((one) => one.id === id);
    if (stored) {
      conversation = stored;
      draw();
    }
  }
  await sidebar.refresh(conversation);
});

// ---- the composer ----

function showButtons() {
  const running = runningIn(conversation);
  composer.show(Boolean(running));
  showContext(running?.context || contextOf(conversation), about.context);
}

function editLast() {
  const last = path(conversation).filter((node) => node.role === "user").at(-1);
  if (last) view.viewOf(last).edit();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    startNew();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("with-sidebar")) toggleSidebar(false);
    else runningIn(conversation)?.stop();
  }
});

// ---- the frame ----

function toggleSidebar(isOpen) {
  document.body.classList.toggle("with-sidebar", isOpen);
  if (isOpen) $("find").focus({ preventScroll: true });
}

const THEMES = { auto: "light", light: "dark", dark: "auto" };

function showTheme() {
  document.documentElement.dataset.theme = settings.theme;
  const label = `Colours: ${settings.theme}`;
  $("theme").replaceChildren(icon(settings.theme));
  $("theme").setAttribute("aria-label", label);
  $("theme").title = label;
}

function settingsChanged() {
  showTheme();
  showChoices();
  if (!path(conversation).length) {
    conversation.system = settings.system;
    draw();
  }
}

/** The method of the next reply. */
const methodNow = () => (about.methods.includes(settings.method) ? settings.method : about.method);

function showChoices() {
  const described = (name) => (about.told[name] ? `${name}: ${about.told[name]}` : name);
  const choice = (value, text, chosen) => h("option", { value, selected: value === chosen }, text);
  $("method").replaceChildren(...about.methods.map((name) => choice(name, described(name), methodNow())));
  const model = about.models.includes(settings.model) ? settings.model : about.name;
  $("model").replaceChildren(...about.models.map((name) => choice(name, withMemory(name), model)));
  $("model").disabled = about.models.length < 2;
  showTitles();
}

/** A model of several with its size, and whether that is more than this machine has free. */
function withMemory(name) {
  const memory = about.memory[name];
  if (!memory || about.models.length < 2) return name;
  const size = memory.needed >= 1e9 ? `${(memory.needed / 1e9).toFixed(1)} GB` : `${Math.ceil(memory.needed / 1e6)} MB`;
  return `${name} · ${size}${memory.fits ? "" : ", more than the free memory"}`;
}

/** The chosen names in full, where a narrow window cuts them. */
function showTitles() {
  for (const id of ["model", "method"]) $(id).title = $(id).selectedOptions[0]?.text ?? "";
}

function setUpFrame() {
  const put = (id, ...names) => $(id).replaceChildren(...names.map((name) => icon(name)));
  put("open-sidebar", "menu");
  put("close-sidebar", "close");
  put("open-settings", "settings");
  put("attach", "attach");
  put("send", "send");
  put("stop", "stop");
  put("to-end", "down");
  $("new").replaceChildren(icon("plus"), "New conversation", h("kbd", null, /Mac|iPhone/.test(navigator.platform) ? "⌘K" : "Ctrl K"));
  $("new").addEventListener("click", startNew);
  $("open-sidebar").addEventListener("click", () => toggleSidebar(true));
  $("close-sidebar").addEventListener("click", () => toggleSidebar(false));
  $("shade").addEventListener("click", () => toggleSidebar(false));
  $("open-settings").addEventListener("click", actions.settings);
  $("theme").addEventListener("click", () => {
    saveSettings({ theme: THEMES[settings.theme] });
    showTheme();
  });
  $("method").addEventListener("change", (event) => {
    saveSettings({ method: event.target.value === about.method ? "" : event.target.value });
    showTitles();
    if (!path(conversation).length) draw(); // its first lines are about the method
  });
  $("model").addEventListener("change", (event) => {
    saveSettings({ model: event.target.value });
    describe();
  });
  $("to-end").addEventListener("click", () => view.scroll(true));
  $("scroll").addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = $("scroll");
    $("to-end").hidden = scrollHeight - scrollTop - clientHeight < 200;
  });
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
}

// ---- the server ----

function banner(text, action, onclick) {
  const box = $("banner");
  box.hidden = !text;
  box.replaceChildren(text ?? "", action ? h("button", { type: "button", class: "link", onclick }, action) : "");
}

const propsAddress = () => (settings.model ? `props?model=${encodeURIComponent(settings.model)}` : "props");

/** Reads what the server is and offers; waits for one that is loading or absent. */
async function describe() {
  try {
    const [props, models, schema] = await Promise.all([get(propsAddress()), get("v1/models?memory=1"), get("openapi.json")]);
    banner(null);
    about.name = props.model ?? models.data[0]?.id ?? "";
    about.isEmbedded = String(props.model_path ?? "").match(/^(embedded|tgr-mini)/) !== null;
    about.method = props.method;
    about.methods = props.methods ?? [];
    about.told = props.method_about ?? {};
    about.defaults = props.options ?? {};
    about.context = props.default_generation_settings?.n_ctx ?? 0;
    const names = models.data.map((one) => one.id);
    about.memory = Object.fromEntries(models.data.map((one) => [one.id, one.memory]));
    about.models = names.filter((id) => !about.methods.some((method) => id.endsWith(`:${method}`)));
    const { method, progress, ...options } = schema.components.schemas.TgrOptions.properties;
    about.options = options;
    const saved = Object.entries(settings.options);
    const isTaken = ([name, value]) => name in options && (kindOf(options[name]).enum?.includes(value) ?? true);
    const kept = saved.filter(isTaken); // the others have left the search
    if (kept.length < saved.length) saveSettings({ options: Object.fromEntries(kept) });
    showChoices();
    if (!isKnown) view.renew(); // nothing could be rendered before
    isKnown = true;
    if (!path(conversation).length) draw();
    showButtons();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 404 && settings.model) {
      saveSettings({ model: "" }); // it is not on this server any more
      await describe();
    } else if (error.status === 401) {
      banner("This server wants an API key.", "Enter it", askForKey);
      askForKey();
    } else {
      const isLoading = error.status === 503;
      banner(isLoading ? "The model is being loaded …" : error.message);
      setTimeout(describe, isLoading ? 1000 : 3000);
    }
  }
}

function askForKey() {
  const dialog = $("key");
  const field = h("input", { type: "password", autocomplete: "off", "aria-label": "API key", value: apiKey.get() });
  const lasting = h("input", { type: "checkbox" });
  const save = (event) => {
    event.preventDefault();
    apiKey.set(field.value.trim(), lasting.checked);
    dialog.close();
    describe();
  };
  dialog.replaceChildren(
    h("form", { onsubmit: save },
      h("div", { class: "row" }, h("h2", { id: "key-title" }, "API key"), button("close", "Close", () => dialog.close())),
      h("div", { class: "body" },
        h("p", null, "This server answers only to those who have one of its keys. Its owner set them with --api-key-file."),
        field,
        h("label", { class: "check" }, lasting, " Remember it in this browser"),
      ),
      h("div", { class: "row end" }, h("button", { class: "primary" }, "Use this key")),
    ),
  );
  if (!dialog.open) dialog.showModal();
  field.focus();
}

async function start() {
  setUpFrame();
  showTheme();
  showChoices();
  await sidebar.refresh(conversation);
  const last = sidebar.conversations.find((one) => one.id === store.current.get());
  if (last) {
    conversation = last; // what the browser has put back into the field is of this one
    open(last);
  } else {
    draw();
  }
  $("question").focus();
  if (!(await store.isLasting())) toast("This browser keeps nothing: conversations end with this tab.");
  await describe();
}

start();
