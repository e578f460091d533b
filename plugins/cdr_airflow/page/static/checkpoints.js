// Recovery checkpoints: request one, which the drain takes; export a complete one.

import { act } from "./api.js";
import { card, empty, h, notice } from "./dom.js";
import { ago, clock, count, duration, kind, time, word } from "./format.js";

const OPEN = ["REQUESTED", "ACCEPTED"];
const SHOWN = 20;

/** `memory` outlives the redrawing: requests made here, and their outcomes. */
export function checkpoints(answer, memory, refresh) {
  settle(answer, memory);
  const why = answer.actions.take;
  const early = answer.commands.find((each) => each.waits_until);
  const waiting = memory.pending !== null || early !== undefined;
  const button = h("button", { class: "primary", disabled: why !== null || waiting || memory.busy, title: why, "data-testid": "take-checkpoint", onclick: (event) => take(answer, memory, refresh, event.currentTarget) }, early ? "Waiting for the drain …" : waiting ? "Taking a checkpoint …" : "Take a checkpoint");
  const message = early ? notice("warn", "checkpoint-message", `The drain has not started; the request waits until ${clock(early.waits_until)}.`) : memory.outcome && notice(memory.outcome.kind, "checkpoint-message", memory.outcome.what, memory.outcome.more);
  const body = answer.checkpoints.length ? table(answer, memory, refresh) : empty("No recovery checkpoints", "If the drain crashes, it resumes from the latest recovery checkpoint, which can be exported as a checkpoint in Flink's format.");
  return card("Recovery checkpoints", "checkpoints", [message && h("div", { class: "pad" }, message), body], { side: [why && h("span", { class: "quiet", "data-testid": "take-why" }, why), button], tight: true });
}

/** Looks up the command that was given here. */
function settle(answer, memory) {
  if (memory.pending === null) return;
  const command = answer.commands.find((each) => each.id === memory.pending);
  if (!command || OPEN.includes(command.state)) return;
  memory.pending = null;
  memory.outcome = command.state === "DONE" ? { kind: "good", what: `Recovery checkpoint ${command.checkpoint} is complete.` } : { kind: "bad", what: `No checkpoint was taken: ${command.reason ?? "no reason given"}.`, more: command.not_ready ? "Ask again while it drains." : "Ask again." };
}

async function take(answer, memory, refresh, button) {
  if (memory.busy !== false || memory.pending !== null) return;
  // Disabled at once: the page is redrawn only with the next response, and a second click would take a second checkpoint.
  button.disabled = true;
  memory.busy = true;
  memory.outcome = null;
  try {
    const given = await act(`recoveries/${encodeURIComponent(answer.recovery)}/checkpoints`);
    if (given.command) memory.pending = given.command.id;
    else memory.outcome = { kind: "good", what: `The drain is over; its last checkpoint is ${given.checkpoint}.` };
  } catch (error) {
    memory.outcome = refusal(error);
  }
  memory.busy = false;
  refresh(true);
}

async function save(answer, number, memory, refresh, button) {
  if (memory.busy !== false) return;
  button.disabled = true;
  memory.busy = number;
  memory.outcome = null;
  refresh(true);
  try {
    const made = await act(`recoveries/${encodeURIComponent(answer.recovery)}/checkpoints/${number}/export`);
    memory.outcome = made.state === "DONE"
      ? { kind: "good", what: `Checkpoint ${number} was exported: ${count(made.records)} records.`, more: made.directory }
      : { kind: "warn", what: `Checkpoint ${number} is still being exported.`, more: `It is whole when its _metadata is in ${made.directory}; this page then shows it.` };
  } catch (error) {
    memory.outcome = refusal(error);
  }
  memory.busy = false;
  refresh(true);
}

function refusal(error) {
  return { kind: "bad", what: `${error.message[0].toUpperCase()}${error.message.slice(1)}.`, more: error.hint ? `${error.hint[0].toUpperCase()}${error.hint.slice(1)}.` : "" };
}

function table(answer, memory, refresh) {
  const newest = [...answer.checkpoints].reverse().slice(0, SHOWN);
  const rows = newest.map((each) =>
    h(
      "tr", { "data-testid": "checkpoint-row", "data-checkpoint": each.id },
      h("td", {}, each.id), h("td", {}, h("span", { class: `pill ${kind(each.state)}` }, word(each.state))),
      h("td", {}, each.epoch), h("td", { class: "nowrap", title: time(each.triggered_at) }, ago(each.triggered_at)), h("td", { class: "num" }, duration(each.seconds)),
      h("td", { class: "wraps" }, each.exported && each.exported !== "…" ? ["exported to ", h("span", { class: "mono" }, each.exported)] : (each.export_error ?? each.reason ?? "")),
      h("td", { class: "num" }, exporting(answer, each, memory, refresh)),
    ),
  );
  const left = answer.checkpoints_in_all - newest.length;
  return [
    h("table", {}, h("thead", {}, h("tr", {}, ["Number", "State", "Epoch", "Triggered", "Took", "", ""].map((name) => h("th", { class: name === "Took" ? "num" : null }, name)))), h("tbody", {}, rows)),
    left > 0 && h("p", { class: "sub pad" }, `and ${count(left)} older ones`),
  ];
}

function exporting(answer, each, memory, refresh) {
  if (each.state !== "COMPLETED" || (each.exported && each.exported !== "…")) return null;
  const why = answer.actions.export;
  const busy = memory.busy === each.id || each.exported === "…";
  return h("button", { disabled: why !== null || memory.busy !== false || busy, title: why ?? "Write it as a checkpoint in Flink's format", "data-testid": `export-${each.id}`, onclick: (event) => save(answer, each.id, memory, refresh, event.currentTarget) }, busy ? "Exporting …" : "Export");
}
