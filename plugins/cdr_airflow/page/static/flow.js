// Records from old to new subtasks: old ones left, new ones right, joined by ribbons as thick as their records.

import { h, svg } from "./dom.js";
import { bytes, count } from "./format.js";

const WIDTH = 620;
const NODE = 12;
const MARGIN = 64;

export function flow(exchange) {
  const parts = [h("p", { class: "sub", "data-testid": "flow-title" }, h("b", {}, exchange.exchange), ` · ${exchange.partitioner} · ${count(exchange.old.subtasks)} → ${count(exchange.new.subtasks)} subtasks${exchange.records === null ? "" : ` · ${count(exchange.records)} records, ${bytes(exchange.bytes)}`}${grouped(exchange)}`)];
  if (exchange.records === null) parts.push(h("p", { class: "quiet" }, "The number of records in flight is known when the first phase is done."));
  else if (exchange.records === 0) parts.push(h("p", { class: "quiet" }, "No record was in flight here."));
  else if (exchange.links.some((link) => link.to === null)) parts.push(picture(exchange), h("p", { class: "sub" }, "The new subtasks are known when the filter is done."));
  else parts.push(picture(exchange));
  return h("figure", { class: "flow", "data-testid": "flow-exchange" }, parts);
}

function grouped(exchange) {
  const most = Math.max(exchange.old.group, exchange.new.group);
  return most > 1 ? `, drawn in groups of up to ${most}` : "";
}

function picture(exchange) {
  const nodes = Math.max(exchange.old.nodes.length, exchange.new.nodes.length);
  const gap = nodes <= 8 ? 10 : nodes <= 24 ? 5 : 2;
  const height = Math.max(150, Math.min(460, 70 + 22 * nodes));
  const old = column(exchange.old.nodes, sums(exchange.links, "from", exchange.old.nodes.length), exchange.records, height, gap);
  const fresh = column(exchange.new.nodes, sums(exchange.links, "to", exchange.new.nodes.length), exchange.records, height, gap);
  const colour = (place) => `hsl(${Math.round(205 + (150 * place) / Math.max(exchange.old.nodes.length - 1, 1)) % 360} 58% 52%)`;
  const decided = exchange.links.some((link) => link.to !== null);
  const ribbons = exchange.links.filter((link) => link.to !== null && link.records > 0).map((link) => ribbon(link, old, fresh, exchange, colour(link.from)));
  return svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${height + 30}`, role: "img", "aria-label": `Records of ${exchange.exchange} from old to new subtasks`, "data-testid": "flow-picture" },
    svg("text", { x: MARGIN + NODE, y: 11, "text-anchor": "end", class: "strong" }, "before"),
    decided && svg("text", { x: WIDTH - MARGIN - NODE, y: 11, class: "strong" }, "after"),
    svg("g", { transform: "translate(0 22)" }, ribbons, boxes(old, MARGIN, "end", MARGIN - 6, colour), decided && boxes(fresh, WIDTH - MARGIN - NODE, "start", WIDTH - MARGIN + 6, () => "var(--soft)")),
  );
}

function sums(links, side, size) {
  const found = new Array(size).fill(0);
  for (const link of links) if (link[side] !== null) found[link[side]] += link.records;
  return found;
}

/** Boxes of a side's subtasks: as high as their share, always visible. */
function column(names, records, all, height, gap) {
  const least = 2;
  const room = height - gap * (names.length - 1) - least * names.length;
  let y = 0;
  return names.map((name, place) => {
    const thick = (room * records[place]) / Math.max(all, 1);
    const box = { name, records: records[place], y, height: thick + least, thick, used: least / 2 };
    y += box.height + gap;
    return box;
  });
}

function ribbon(link, old, fresh, exchange, fill) {
  const [from, to] = [old[link.from], fresh[link.to]];
  const left = (from.thick * link.records) / Math.max(from.records, 1);
  const right = (to.thick * link.records) / Math.max(to.records, 1);
  const [a, b] = [from.y + from.used, to.y + to.used];
  from.used += left;
  to.used += right;
  const [start, end] = [MARGIN + NODE, WIDTH - MARGIN - NODE];
  const middle = (start + end) / 2;
  const path = `M${start} ${a}C${middle} ${a} ${middle} ${b} ${end} ${b}V${b + right}C${middle} ${b + right} ${middle} ${a + left} ${start} ${a + left}Z`;
  return svg("path", { d: path, fill, class: "ribbon" }, svg("title", {}, `${exchange.old.nodes[link.from]} → ${exchange.new.nodes[link.to]}: ${count(link.records)} records, ${bytes(link.bytes)}`));
}

function boxes(column, x, anchor, at, colour) {
  const every = Math.ceil(column.length / 16);
  return column.map((box, place) =>
    svg(
      "g", {},
      svg("rect", { x, y: box.y, width: NODE, height: box.height, rx: 2, fill: colour(place) }, svg("title", {}, `subtask ${box.name}: ${count(box.records)} records`)),
      place % every === 0 && svg("text", { x: at, y: box.y + box.height / 2 + 4, "text-anchor": anchor }, box.name),
    ),
  );
}
