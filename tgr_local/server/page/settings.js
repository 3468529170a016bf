// The settings dialog. Options, their descriptions and bounds come from the server's /openapi.json,
// their defaults from /props.

import { $, button, h } from "./dom.js";
import { apiKey, saveSettings, settings } from "./store.js";

/** The options that people set, by what they want with them. */
const EVERYDAY = {
  max_tokens: "Longest reply, in tokens",
  temperature: "Temperature",
  seed: "Seed",
  thinking: "Think first",
  thinking_budget: "Longest thinking, in tokens",
  n_candidates: "Candidates at each step of the search",
  rollout_len: "How far ahead each is tried, in tokens",
  chunk_len: "Tokens in each step",
  max_chunks: "Most steps",
};
/** Options whose name is a symbol. */
const SYMBOLS = {
  n_mc: "Rollouts for each candidate",
  n_samples: "Samples",
  d_z: "Width of an anchor",
  lambda_b: "Weight of the bumpiness",
  lambda_u: "Weight of the uniformity",
  delta: "Least distance from the last anchor",
  sigma: "Radius of the proposals",
  eta: "Scale of the injection",
  kappa_max: "Largest turn",
};

/**
 * `about`: { options: schemas by name, defaults: values by name, methods, method, told: what each does };
 * `changed` is called after every change.
 */
export function openSettings(about, changed) {
  const dialog = $("settings");
  const save = (values) => {
    saveSettings(values);
    changed();
  };
  const everyday = Object.keys(EVERYDAY).filter((name) => name in about.options);
  const others = Object.keys(about.options).filter((name) => !everyday.includes(name));
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter the options" });
  const rows = others.map((name) => optionRow(name, about, save));
  filter.addEventListener("input", () => {
    const word = filter.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
  const reset = () => {
    save({ options: {} });
    openSettings(about, changed);
  };
  dialog.replaceChildren(
    h("div", { class: "row" }, h("h2", { id: "settings-title" }, "Settings"), button("close", "Close", () => dialog.close())),
    h("div", { class: "body" },
      themeRow(save),
      systemRow(save),
      keyRow(),
      h("h3", null, "Replies"),
      h("p", { class: "dim" }, "An empty field has the server’s value, which is shown in it."),
      methodRow(about, save),
      everyday.map((name) => optionRow(name, about, save)),
      h("details", null, h("summary", null, "All options"), filter, rows),
    ),
    h("div", { class: "row end" },
      h("button", { type: "button", class: "quiet", onclick: reset }, "Reset all options"),
      h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Done"),
    ),
  );
  if (!dialog.open) dialog.showModal();
}

function field(label, description, control, name = "") {
  const id = `setting-${(name || label).replaceAll(" ", "-")}`;
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-told`);
  const told = h("small", { id: `${id}-told` }, description, name && h("code", null, name));
  return h("div", { class: "field" }, h("label", { for: id }, label), control, told);
}

function select(values, value, onchange) {
  const options = values.map(([one, text]) => h("option", { value: one, selected: one === value }, text));
  return h("select", { onchange: (event) => onchange(event.target.value) }, options);
}

function themeRow(save) {
  const themes = [["auto", "as the system has it"], ["light", "light"], ["dark", "dark"]];
  return field("Colours", "Light, dark, or the system’s choice.", select(themes, settings.theme, (theme) => save({ theme })));
}

function systemRow(save) {
  const onchange = (event) => save({ system: event.target.value.trim() });
  const area = h("textarea", { rows: 3, value: settings.system, onchange });
  return field("System prompt", "New conversations begin with it. Each conversation can change its own.", area);
}

function methodRow(about, save) {
  const described = (name) => (about.told[name] ? `${name}: ${about.told[name]}` : name);
  const chosen = about.methods.includes(settings.method) ? settings.method : "";
  const choices = [["", `${about.method} (the server’s)`], ...about.methods.map((name) => [name, described(name)])];
  return field("Method", "What decides how a reply is written.", select(choices, chosen, (method) => save({ method })));
}

function keyRow() {
  const onchange = (event) => apiKey.set(event.target.value.trim(), false);
  const input = h("input", { type: "password", autocomplete: "off", value: apiKey.get(), onchange });
  return field("API key", "Needed if the server was started with keys. It stays in this tab.", input);
}

// ---- options of the search ----

function optionRow(name, about, save) {
  const schema = about.options[name];
  const value = settings.options[name];
  const set = (given) => {
    const options = { ...settings.options };
    if (given === undefined) delete options[name];
    else options[name] = given;
    save({ options });
    row.classList.toggle("changed", given !== undefined);
  };
  const made = control(schema, value, about.defaults[name], set);
  const row = field(EVERYDAY[name] ?? SYMBOLS[name] ?? inWords(name), `${schema.description ?? ""} `, made, name);
  row.classList.toggle("changed", value !== undefined);
  return row;
}

/** The name of an option as words: "top_k" is "Top k". */
function inWords(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

function control(schema, value, standard, set) {
  const kind = kindOf(schema);
  if (kind.enum || kind.type === "boolean") {
    const shown = (one) => (kind.enum ? one : one ? "on" : "off");
    const values = kind.enum ?? [true, false];
    const choices = [["", `${shown(standard)} (the server’s)`], ...values.map((one) => [String(one), shown(one)])];
    const chosen = (text) => set(text === "" ? undefined : values.find((one) => String(one) === text));
    return select(choices, value === undefined ? "" : String(value), chosen);
  }
  if (kind.type === "array") {
    const lines = (event) => {
      const texts = event.target.value.split("\n").filter(Boolean);
      set(texts.length ? texts : undefined);
    };
    return h("textarea", { rows: 2, placeholder: "one on each line", value: (value ?? []).join("\n"), onchange: lines });
  }
  if (kind.type === "string") {
    const onchange = (event) => set(event.target.value || undefined);
    return h("input", { type: "text", maxlength: kind.maxLength, placeholder: standard, value: value ?? "", onchange });
  }
  const onchange = (event) => {
    const { target } = event;
    if (target.reportValidity()) set(target.value === "" ? undefined : Number(target.value));
  };
  const step = kind.type === "integer" ? 1 : "any";
  return h("input", { type: "number", min: kind.minimum, max: kind.maximum, step, placeholder: String(standard), value: value ?? "", onchange });
}

/** The schema of a value that may also be null. */
export function kindOf(schema) {
  return (schema.anyOf ?? [schema]).find((one) => one.type !== "null") ?? {};
}
