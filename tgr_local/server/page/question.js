// A question on the screen: its files, its text, folded where it is long, and its editor.

import { button, h } from "./dom.js";
import { sizeOf } from "./files.js";
import { copyButton, variantButtons } from "./foot.js";

const LINES_MOST = 12; // of a question that is shown whole
const CHARS_MOST = 1500;

const titleOf = ({ name, bytes }) => [h("span", { class: "name" }, name), h("span", { class: "dim" }, sizeOf(bytes))];

/** A list of files that are attached, each with a button that removes it. */
export function showChips(list, files, remove) {
  const chip = (file) => h("li", null, titleOf(file), button("close", `Remove ${file.name}`, () => remove(file)));
  list.replaceChildren(...files.map(chip));
  list.hidden = !files.length;
}

export class UserMessage {
  constructor(node, view) {
    this.node = node;
    this.view = view;
    this.isLong = node.text.length > CHARS_MOST || node.text.split("\n").length > LINES_MOST;
    this.isFolded = this.isLong;
    this.element = h("article", { class: "message user", "aria-label": "You" });
  }

  update() {
    if (this.isEditing) return;
    const { node, view } = this;
    const editButton = button("edit", "Edit the question", () => this.edit(), { class: "icon edit" });
    const copying = node.text ? copyButton("question", () => node.text) : "";
    const actions = h("div", { class: "actions" }, variantButtons(node, view), editButton, copying);
    this.element.replaceChildren(...this.files(), ...this.bubble(), actions);
  }

  bubble() {
    const { node } = this;
    if (!node.text) return [];
    const bubble = h("div", { class: this.isFolded ? "bubble folded" : "bubble" }, node.text);
    if (!this.isLong) return [bubble];
    const toggle = () => {
      this.isFolded = !this.isFolded;
      this.update();
      this.element.querySelector(".unfold").focus();
      if (this.isFolded) this.element.scrollIntoView({ block: "nearest" });
    };
    const shape = { type: "button", class: "link unfold", "aria-expanded": String(!this.isFolded), onclick: toggle };
    return [bubble, h("button", shape, this.isFolded ? "Show all" : "Show less")];
  }

  /** Folded blocks with the files; a block has its text once it is opened. */
  files() {
    return (this.node.files ?? []).map((file) => {
      const details = h("details", { class: "file" }, h("summary", null, titleOf(file)));
      details.addEventListener("toggle", () => {
        if (details.open && details.children.length === 1) details.append(h("pre", { tabindex: "0" }, file.text));
      });
      return details;
    });
  }

  /** Its text in a field, and its files, which can be removed. */
  edit() {
    const { node, view } = this;
    this.isEditing = true;
    const before = node.files ?? [];
    let files = before;
    const area = h("textarea", { class: "editor", "aria-label": "Edit the question", value: node.text });
    const chips = h("ul", { class: "attached", "aria-label": "Attached files" });
    const showFiles = () => showChips(chips, files, (file) => {
      files = files.filter((one) => one !== file);
      showFiles();
      area.focus();
    });
    const done = () => {
      this.isEditing = false;
      this.update();
    };
    const send = () => {
      const text = area.value.trim();
      done();
      const isNew = text !== node.text || files !== before;
      if (isNew && (text || files.length)) view.actions.edit(node, text, files);
    };
    showFiles();
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        done();
      }
    });
    const cancelButton = h("button", { type: "button", class: "quiet", onclick: done }, "Cancel");
    const sendButton = h("button", { type: "button", class: "primary", onclick: send }, "Send");
    this.element.replaceChildren(chips, area, h("div", { class: "actions" }, cancelButton, sendButton));
    area.style.height = `${Math.min(area.scrollHeight + 4, 320)}px`;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}
