// What stands below a message: its variants, copying, what ended or went wrong, and the ways out.

import { variants } from "./conversation.js";
import { button, confirmOn, copy, h } from "./dom.js";

const FULL = ["n_ctx", "n_ctx_train"]; // limits that a setting of the reply does not move

/** ‹ 2 / 3 ›: the other questions or replies in a message's place. */
export function variantButtons(node, view) {
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

export const copyButton = (what, text) =>
  button("copy", `Copy the ${what}`, async (event) => {
    const target = event.currentTarget;
    if (await copy(text())) confirmOn(target);
  });

/** How a reply ended, where that is worth a line, or what went wrong with it; and the ways out. */
export function noticeOf(node, view) {
  const again = ["Try again", () => view.actions.again(node)];
  const isLast = !view.conversation.chosen[node.id]; // a later question was asked about the reply as it is
  const goOn = isLast && (node.text || node.thinking) ? [["Continue", () => view.actions.goOn(node)]] : [];
  if (node.state === "failed") {
    const { status, message, settable } = node.error ?? { message: "The reply failed." }; // of an imported file
    const key = status === 401 && ["Enter the API key", view.actions.key];
    const out = settable ? ["Open the settings", view.actions.settings] : key;
    return [notice("problem", message, ...(out ? [out] : []), ...goOn, again)];
  }
  if (node.state === "stopped") return [notice("note", "Stopped.", ...goOn)];
  if (node.state === "streaming" || node.state === "interrupted") {
    const why = "The page was closed while this reply was written, or another tab writes it.";
    return [notice("note", why, ...goOn, again)];
  }
  const { finish, limit } = node.cost ?? {};
  if (FULL.includes(limit)) {
    return [notice("note", "The reply was cut because the context is full. A new conversation has room again.", again)];
  }
  if (finish === "loop") {
    const why = "The reply was ended because it repeated itself. With dry_multiplier 0.8 (DRY) that is rarer.";
    return [notice("note", why, ["Settings", view.actions.settings], again)];
  }
  if (finish === "length" || finish === "budget") {
    const of = limit || (finish === "length" ? "max_tokens" : "max_forward_tokens");
    return [notice("note", `The reply was cut at its limit, ${of}.`, ...goOn, ["Settings", view.actions.settings], again)];
  }
  if (!node.text) return [notice("note", "The reply has no answer.", again)];
  return [];
}

function notice(kind, text, ...ways) {
  const buttons = ways.map(([name, onclick]) => h("button", { type: "button", class: "link", onclick }, name));
  return h("div", { class: `notice ${kind}`, role: kind === "problem" ? "alert" : null }, h("span", null, text), buttons);
}
