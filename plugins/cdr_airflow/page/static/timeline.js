// The five phases on one axis of time: start, progress and expected end of each.

import { across, h } from "./dom.js";
import { bytes, count, duration, percent, word } from "./format.js";

const NARROWEST = 0.006;
const UNKNOWN = 0.2; // the moving share of the bar while a phase's progress is unknown

export function timeline(answer) {
  const begun = answer.phases.filter((phase) => phase.started_at);
  const from = begun.length ? Math.min(...begun.map((phase) => Date.parse(phase.started_at))) : Date.now();
  const ends = begun.map((phase) => end(phase));
  const to = Math.max(from + 1000, ...ends);
  const lanes = answer.phases.map((phase) => lane(phase, from, to));
  const axis = begun.length > 0 && h("div", { class: "axis" }, h("span", {}, "0"), h("span", {}, duration((to - from) / 1000)));
  return [h("div", { class: "timeline" }, lanes.flat(), h("span"), axis || h("span"))];
}

/** When a phase ended, or may end if the rest takes as long as what is done took. */
function end(phase) {
  const begun = Date.parse(phase.started_at);
  if (phase.ended_at) return Date.parse(phase.ended_at);
  return begun + 1000 * ((phase.seconds ?? 0) + (phase.eta_s ?? 0));
}

function lane(phase, from, to) {
  const look = { DONE: "good", FAILED: "bad", RUNNING: phase.fraction === null ? "busy unknown" : "busy" }[phase.state] ?? "";
  const track = h("div", { class: `track ${look}`, "data-testid": `phase-${phase.name}-bar`, role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": phase.fraction === null ? null : Math.round(100 * phase.fraction) });
  if (phase.started_at) {
    const left = (Date.parse(phase.started_at) - from) / (to - from);
    const width = Math.max((end(phase) - Date.parse(phase.started_at)) / (to - from), NARROWEST);
    const filled = phase.state === "FAILED" ? 1 : (phase.fraction ?? UNKNOWN);
    const span = across(h("i", {}, across(h("b"), { width: filled })), { left: Math.min(left, 1 - NARROWEST), width });
    track.append(span);
  }
  return [
    h("div", { class: "name" }, phase.name),
    h("div", { class: "lane" }, track),
    h("div", { class: "said", "data-testid": `phase-${phase.name}` }, h("span", { "data-testid": `phase-${phase.name}-state` }, word(phase.state)), progressText(phase)),
  ];
}

function progressText(phase) {
  if (phase.state === "PENDING") return "";
  if (phase.state === "DONE") return ` · ${count(phase.records)} records · ${duration(phase.seconds)}`;
  const parts = [phase.fraction === null ? "" : percent(phase.fraction), phase.total ? `${count(phase.done)} of ${count(phase.total)} units` : "", phase.bytes ? bytes(phase.bytes) : ""];
  if (phase.state === "FAILED") parts.push(`after ${duration(phase.seconds)}`);
  if (phase.state === "RUNNING") parts.push(phase.eta_s === null ? `${duration(phase.seconds)} so far` : `about ${duration(phase.eta_s)} left`);
  // A line breaks between two parts, never within one.
  return ` · ${parts.filter(Boolean).map((part) => part.replaceAll(" ", "\u00a0")).join(" · ")}`;
}
