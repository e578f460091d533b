// Recovery times of drills and ages of their checkpoints, one under the other on one axis of time.

import { empty, h, svg } from "./dom.js";
import { duration, kind, time, word } from "./format.js";

const WIDTH = 1100;
const HEIGHT = 130;
const LEFT = 72;
const RIGHT = 16;

export function trend(drills) {
  const measured = drills.filter((each) => each.rto_s !== null || each.rpo_s !== null).sort((a, b) => Date.parse(a.started_at) - Date.parse(b.started_at));
  if (!measured.length) return empty("Nothing measured yet", "A drill that ends adds a point.");
  return [
    plot("Took (RTO)", measured, "rto_s", "rto_limit_s", "trend-rto"),
    plot("Checkpoint's age (RPO)", measured, "rpo_s", "rpo_limit_s", "trend-rpo"),
    h("div", { class: "legend" }, ["PASSED", "FAILED", "TIMED_OUT", "COULD_NOT_RUN"].map((result) => h("span", { class: kind(result) }, word(result))), h("em", {}, "dashed: the limit")),
  ];
}

function plot(title, drills, name, limit, testid) {
  const points = drills.filter((each) => each[name] !== null);
  const dates = drills.map((each) => Date.parse(each.started_at));
  const [from, to] = [Math.min(...dates), Math.max(...dates)];
  const limits = [...new Set(drills.map((each) => each[limit]).filter(Boolean))].slice(0, 3);
  const top = nice(Math.max(1, ...points.map((each) => each[name]), ...limits) * 1.1);
  const x = (at) => (to === from ? (LEFT + WIDTH - RIGHT) / 2 : LEFT + ((WIDTH - LEFT - RIGHT) * (at - from)) / (to - from));
  const y = (value) => HEIGHT - (HEIGHT - 24) * (value / top);
  const plans = [...new Set(points.map((each) => each.plan || each.job))];
  const curve = (plan) => points.filter((each) => (each.plan || each.job) === plan).map((each, place) => `${place ? "L" : "M"}${x(Date.parse(each.started_at)).toFixed(1)} ${y(each[name]).toFixed(1)}`).join("");
  return svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 26}`, role: "img", "aria-label": title, "data-testid": testid },
    svg("text", { x: LEFT, y: 12, class: "strong" }, title),
    [0, 0.5, 1].map((part) => [svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * part), y2: y(top * part), class: "grid" }), svg("text", { x: LEFT - 8, y: y(top * part) + 4, "text-anchor": "end" }, part ? duration(top * part) : "0")]),
    limits.map((value) => svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "limit" }, svg("title", {}, `limit ${duration(value)}`))),
    plans.map((plan) => svg("path", { d: curve(plan), class: "curve" }, svg("title", {}, plan))),
    points.map((each) => svg("circle", { cx: x(Date.parse(each.started_at)), cy: y(each[name]), r: 4.5, class: `dot ${kind(each.result)}` }, svg("title", {}, `${each.plan || each.job || each.drill}, ${time(each.started_at)}: ${duration(each[name])}, ${word(each.result ?? "running")}`))),
    svg("text", { x: LEFT, y: HEIGHT + 20 }, time(new Date(from).toISOString()).slice(0, 16)),
    to > from && svg("text", { x: WIDTH - RIGHT, y: HEIGHT + 20, "text-anchor": "end" }, time(new Date(to).toISOString()).slice(0, 16)),
  );
}

/** A round number of a clock that is at least this. */
function nice(seconds) {
  const rounds = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];
  return rounds.find((each) => each >= seconds) ?? Math.ceil(seconds / 2592000) * 2592000;
}
