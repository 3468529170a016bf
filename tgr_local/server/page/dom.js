// Elements and icons.

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/**
 * A new element. `props`: "class", "on…" for listeners, "value" and "checked" as properties, the rest
 * as attributes; null, undefined and false are left out. Children are nodes or texts.
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const ICONS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  attach: "M19 11.5l-7.2 7.2a4.6 4.6 0 0 1-6.5-6.5l7.7-7.7a3 3 0 0 1 4.3 4.3l-7.5 7.5a1.5 1.5 0 0 1-2.1-2.1l6.6-6.7",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  down: "M12 5v14M6 13l6 6 6-6",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  export: "M12 15V4M8 8l4-4 4 4M5 15v5h14v-5",
  import: "M12 4v11M8 11l4 4 4-4M5 15v5h14v-5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2.5M12 19.5V22M2 12h2.5M19.5 12H22M5 5l1.7 1.7M17.3 17.3L19 19M5 19l1.7-1.7M17.3 6.7L19 5",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
};

/** A line drawing, hidden from screen readers: its button has a label. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { viewBox: "0 0 24 24", class: `icon-${name}`, "aria-hidden": "true" }, path);
}

/** A button with an icon; `text` is shown next to it, else `label` is its name and its tooltip. */
export function button(name, label, onclick, { text, ...props } = {}) {
  const told = text ? {} : { "aria-label": label, title: label };
  const shape = { type: "button", class: text ? "quiet" : "icon", ...told, ...props, onclick };
  return h("button", shape, icon(name), text && h("span", null, text));
}

/** Copies a text; false if the browser does not let it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // not a secure context, as on another machine of the network
    const area = h("textarea", { class: "unseen", value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Shows for a moment on a button that its work is done. */
export function confirmOn(node) {
  const before = [...node.childNodes];
  const text = node.querySelector("span");
  node.replaceChildren(icon("check"), ...(text ? [h("span", null, "Copied")] : []));
  node.classList.add("done");
  setTimeout(() => {
    node.replaceChildren(...before);
    node.classList.remove("done");
  }, 1500);
}

let toastTimer = 0;

/** A line above the field for some seconds, with a button if there is something to do. */
export function toast(text, action, onclick) {
  const box = $("toast");
  clearTimeout(toastTimer);
  const hide = () => (box.hidden = true);
  const act = () => {
    hide();
    onclick();
  };
  box.replaceChildren(text, action ? h("button", { type: "button", class: "link", onclick: act }, action) : "");
  box.hidden = false;
  toastTimer = setTimeout(hide, 7000);
}

/** Tells a screen reader something that is seen otherwise. */
export function announce(text) {
  $("announce").textContent = text;
}
