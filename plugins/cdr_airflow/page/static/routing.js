// The routes of the bytes to the output, as the drain counted them.

import { across, card, h } from "./dom.js";
import { bytes } from "./format.js";

const WAYS = [
  ["handed_over", "Handed over", "Delivered to the output without having been on a disk of cdr."],
  ["replayed", "Replayed", "Delivered to the output after being read back from a disk of cdr."],
  ["by_reference", "Read from the source in place", "Read by the drain from the checkpoint's own files; spill wrote no copy."],
  ["spilled", "Written to spill disks", "Written by spill, and by the drain to scratch while its output stalled."],
];

/** Nothing before the drain is done, and for recoveries of versions that did not count. */
export function routing({ routing: counted }) {
  if (!counted) return null;
  const delivered = counted.handed_over + counted.replayed;
  const share = counted.handed_over / Math.max(delivered, 1);
  const bar = h(
    "div", { class: "split", role: "img", "aria-label": `${bytes(counted.handed_over)} handed over, ${bytes(counted.replayed)} replayed`, "data-testid": "routing-bar" },
    across(h("i", { class: "handed-over" }), { width: share }),
    across(h("i", { class: "replayed" }), { left: share, width: counted.replayed / Math.max(delivered, 1) }),
  );
  const rows = WAYS.map(([name, label, sentence]) => {
    const way = name.replaceAll("_", "-");
    return h("tr", { "data-testid": `routing-${way}` }, h("td", { class: `way ${way}` }, label), h("td", { class: "num" }, bytes(counted[name])), h("td", { class: "sub" }, sentence));
  });
  return card("How the bytes reached the output", "routing", [bar, h("table", {}, h("tbody", {}, rows))], { side: `${bytes(delivered)} delivered`, tight: true });
}
