// Moves through the parts of a long list.

import { h } from "./dom.js";
import { count } from "./format.js";

/** Returns nothing if the whole list is shown; `move` takes the offset to show. */
export function pager(answer, size, move) {
  if (answer.total <= size) return null;
  const last = Math.min(answer.offset + size, answer.total);
  return h(
    "div", { class: "pager", "data-testid": "pager" },
    h("span", {}, `${count(answer.offset + 1)}–${count(last)} of ${count(answer.total)}`),
    h("button", { disabled: answer.offset === 0, onclick: () => move(Math.max(0, answer.offset - size)), "data-testid": "newer" }, "Newer"),
    h("button", { disabled: last >= answer.total, onclick: () => move(answer.offset + size), "data-testid": "older" }, "Older"),
  );
}
