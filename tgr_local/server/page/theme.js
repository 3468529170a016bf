// The chosen colours, before anything is drawn. "auto" is the system's choice.
"use strict";
{
  let theme = "auto";
  try {
    theme = JSON.parse(localStorage.getItem("tgr-local.settings") || "{}").theme || "auto";
  } catch {
    // no storage, or a damaged value: the system's choice
  }
  document.documentElement.dataset.theme = theme;
}
