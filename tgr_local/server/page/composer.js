// Where a question is written: its text, the files that go with it, the buttons.

import { $, announce, h, toast } from "./dom.js";
import { readText } from "./files.js";
import { showChips } from "./question.js";

export class Composer {
  /** `actions`: send(text, files), stop(), editLast(). */
  constructor(actions) {
    this.actions = actions;
    this.draft = { text: "", files: [] }; // of the conversation that is shown
    this.drafts = new Map(); // of the others
    this.isRunning = false;
    const area = $("question");
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    area.addEventListener("input", () => this.fit());
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.send();
      } else if (event.key === "ArrowUp" && !area.value) {
        event.preventDefault();
        actions.editLast();
      }
    });
    $("stop").addEventListener("click", actions.stop);
    $("attach").addEventListener("click", () => $("attach-file").click());
    $("attach-file").addEventListener("change", async () => {
      const chosen = [...$("attach-file").files];
      $("attach-file").value = "";
      await this.attach(chosen);
    });
    this.takeDrops();
  }

  /** Files that are dragged onto the page, anywhere but on a dialog, are attached. */
  takeDrops() {
    const light = (isOver) => $("box").classList.toggle("dropping", isOver);
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // else the browser opens the file in place of the page
      light(!document.querySelector("dialog[open]"));
    });
    document.addEventListener("dragleave", (event) => !event.relatedTarget && light(false));
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      light(false);
      if (!document.querySelector("dialog[open]")) this.attach([...event.dataTransfer.files]);
    });
  }

  /** Reads files one after the other, those of an earlier call first, since all have one limit;
      those that cannot be attached are told in one line each. */
  attach(files) {
    const { draft } = this;
    this.reading = (this.reading ?? Promise.resolve()).then(() => this.read(files, draft));
    return this.reading;
  }

  async read(files, draft) {
    const refused = [];
    for (const file of files) {
      try {
        draft.files.push(await readText(file, draft.files.reduce((sum, one) => sum + one.bytes, 0)));
      } catch (error) {
        refused.push(error.message);
      }
    }
    if (refused.length) toast(refused.join(" "));
    if (refused.length < files.length) announce("Attached.");
    if (draft !== this.draft) return; // another conversation is shown by now
    this.showFiles();
    $("question").focus();
  }

  /** Leaves the draft of one conversation and shows that of another. */
  turn(from, to) {
    if (from === to) return;
    this.draft.text = $("question").value;
    this.drafts.set(from, this.draft);
    this.draft = this.drafts.get(to) ?? { text: "", files: [] };
    this.drafts.delete(to);
    $("question").value = this.draft.text;
    this.showFiles();
    this.fit();
  }

  /** Drops the draft of a conversation that was removed. */
  forget(name) {
    this.drafts.delete(name);
  }

  showFiles() {
    showChips($("attached"), this.draft.files, (file) => {
      this.draft.files = this.draft.files.filter((one) => one !== file);
      this.showFiles();
      $("question").focus();
    });
    this.show(this.isRunning);
  }

  send() {
    const text = $("question").value.trim();
    const { files } = this.draft;
    if (this.isRunning || !(text || files.length)) return;
    this.draft.files = []; // what is still being read goes with the next question
    $("question").value = "";
    this.showFiles();
    this.fit();
    this.actions.send(text, files);
  }

  /** The field as high as its text, up to two fifths of the window. */
  fit() {
    const area = $("question");
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
    this.show(this.isRunning);
  }

  /** Which buttons there are, while a reply is under way or not. */
  show(isRunning) {
    this.isRunning = isRunning;
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
    $("send").disabled = !$("question").value.trim() && !this.draft.files.length;
  }
}

/** How much of the context a conversation takes: a bar and the numbers; nothing where one is unknown. */
export function showContext(used, most) {
  const box = $("context");
  box.hidden = !(used && most);
  if (box.hidden) return;
  const told = `${used.toLocaleString("en")} of ${most.toLocaleString("en")} tokens`;
  const bar = h("span", { class: "meter", role: "meter", "aria-label": "Context used", "aria-valuemin": 0, "aria-valuemax": most, "aria-valuenow": Math.min(used, most), "aria-valuetext": told }, h("i"));
  bar.firstChild.style.width = `${Math.min(100, (100 * used) / most)}%`;
  box.classList.toggle("full", used > 0.9 * most);
  box.title = "What the model has read and written of this conversation, and what its context holds";
  box.replaceChildren(bar, told);
}
