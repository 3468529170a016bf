// Text files that go with a question: read, bounded, and written into the message that the model gets.

const FILES_MOST = 1 << 20; // bytes of the files of one message; the server takes 4 MiB for a conversation

/** A size for people: "812 bytes", "34 KiB", "1.2 MiB". */
export function sizeOf(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < FILES_MOST ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`;
}

/**
 * Reads a file of the browser as { name, text, bytes }; `taken` bytes are attached already. Throws an
 * Error that says why it cannot be attached.
 */
export async function readText(file, taken) {
  if (taken + file.size > FILES_MOST) {
    const beside = taken ? ` with the ${sizeOf(taken)} attached already` : "";
    throw new Error(`“${file.name}” has ${sizeOf(file.size)}${beside}, but the files of a message may have 1 MiB together; attach a part of it.`);
  }
  let data;
  try {
    data = await file.arrayBuffer();
  } catch {
    throw new Error(`“${file.name}” cannot be read; attach a file, not a folder.`);
  }
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data); // without a byte order mark
  } catch {
    // told below
  }
  if (text === null || text.includes("\0")) {
    throw new Error(`“${file.name}” is not a text file (UTF-8), and the model reads only text.`);
  }
  return { name: file.name, text, bytes: data.byteLength };
}

/** A file in a message: its name, and its text in a fence that is longer than any in the text. */
export function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const title = name.replace(/[\p{Cc}\u2028\u2029]+/gu, " ");
  return `${title}:\n${fence}\n${text}${text && !text.endsWith("\n") ? "\n" : ""}${fence}`;
}
