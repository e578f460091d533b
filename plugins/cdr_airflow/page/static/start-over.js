// Start over: replace a recovery that has published nothing by a new generation with other options.

import { card, h, notice } from "./dom.js";

const DAG = "cdr_recover";

/** `memory` outlives the redrawing: whether the form is open, what was typed, and what came of it. */
export function startOver(answer, memory, refresh) {
  const why = answer.actions.start_over;
  if (why !== null && !memory.outcome) {
    const wanted = answer.state === "FAILED" || answer.state === "CANCELLED";
    return h("p", { class: "quiet", hidden: !wanted, "data-testid": "start-over-why" }, `Start over: ${why}`);
  }
  const toggle = h("button", { disabled: why !== null || memory.busy, title: why, "data-testid": "start-over", onclick: () => { memory.open = !memory.open; refresh(true); } }, memory.open ? "Keep this recovery" : "Start over …");
  const message = memory.outcome && notice(memory.outcome.kind, "start-over-message", memory.outcome.what, memory.outcome.more);
  return card("Other options needed?", "start-over-card", [message && h("div", { class: "pad" }, message), memory.open ? form(answer, memory, refresh) : h("p", { class: "quiet" }, "Start over replaces this recovery by a new one of the same checkpoint and target. Nothing was published yet, so nothing is lost.")], { side: toggle });
}

function form(answer, memory, refresh) {
  memory.wished ??= { parallelism: answer.parallelism, on_corrupt: answer.options.on_corrupt ?? "fail", trust_key: answer.trust_key };
  const wished = memory.wished;
  const parallelism = h("input", { type: "text", value: wished.parallelism, "data-testid": "over-parallelism", oninput: (event) => (wished.parallelism = event.target.value) });
  const corrupt = h(
    "select", { "data-testid": "over-corrupt", onchange: (event) => (wished.on_corrupt = event.target.value) },
    ["fail", "quarantine"].map((value) => h("option", { value, selected: wished.on_corrupt === value }, value)),
  );
  const trust = h("input", { type: "checkbox", checked: wished.trust_key, "data-testid": "over-trust", onchange: (event) => (wished.trust_key = event.target.checked) });
  return h(
    "div", { class: "form" },
    h("label", {}, "New parallelism ", parallelism), h("label", {}, "On corrupt data ", corrupt), h("label", {}, trust, " Trust the key"),
    h("button", { class: "primary", disabled: memory.busy, "data-testid": "over-submit", onclick: (event) => submit(answer, memory, refresh, event.currentTarget) }, "Replace it and start"),
  );
}

async function submit(answer, memory, refresh, button) {
  if (memory.busy) return;
  button.disabled = memory.busy = true;
  const { parallelism, on_corrupt, trust_key } = memory.wished;
  const conf = { checkpoint: answer.source, spec: answer.spec, parallelism, to: answer.target, checkpoint_interval: answer.checkpoint_interval, drain_order: answer.drain_order, on_corrupt, trust_key, replace: true };
  try {
    const run = await trigger(conf);
    memory.outcome = { kind: "good", what: `Run ${run} replaces this recovery.`, more: "This page shows the new recovery when its first task has begun." };
    memory.open = false;
  } catch (error) {
    memory.outcome = { kind: "bad", what: "The new run was not started.", more: error.message };
  }
  memory.busy = false;
  refresh(true);
}

/** Airflow's own API, as its form uses it: the user's own rights decide. */
async function trigger(conf) {
  const response = await fetch(new URL(`../api/v2/dags/${DAG}/dagRuns`, document.baseURI), {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    credentials: "same-origin",
    body: JSON.stringify({ logical_date: null, conf }),
  });
  const given = await response.json().catch(() => ({}));
  if (response.ok) return given.dag_run_id;
  const detail = typeof given.detail === "string" ? given.detail : JSON.stringify(given.detail ?? response.status);
  throw new Error(`Airflow answered: ${detail.slice(0, 500)}`);
}
