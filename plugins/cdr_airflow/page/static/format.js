// Formats numbers and times for display. Unknown is a dash, which differs from zero.

export const DASH = "–";
const whole = new Intl.NumberFormat("en");
const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];

export function count(value) {
  return value === null || value === undefined ? DASH : whole.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  let unit = 0;
  let shown = value;
  while (shown >= 1000 && unit < UNITS.length - 1) {
    shown /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${whole.format(value)} ${value === 1 ? "byte" : "bytes"}` : `${shown < 10 ? shown.toFixed(2) : shown < 100 ? shown.toFixed(1) : Math.round(shown)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 120) return `${rounded} s`;
  const minutes = Math.floor(rounded / 60);
  if (minutes < 120) return rounded % 60 && minutes < 10 ? `${minutes} min ${rounded % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return days < 14 && hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

export function percent(fraction) {
  if (fraction === null || fraction === undefined) return DASH;
  const shown = 100 * fraction;
  return `${shown > 0 && shown < 99.95 && shown % 1 > 0.05 ? shown.toFixed(1) : Math.round(shown)} %`;
}

export function ago(iso, now = Date.now()) {
  if (!iso) return DASH;
  const seconds = (now - Date.parse(iso)) / 1000;
  if (seconds < 10) return "just now";
  // Coarse on purpose: a text that changes every second is redrawn every second.
  const step = seconds < 60 ? 10 : seconds < 3600 ? 60 : seconds < 172800 ? 3600 : 86400;
  const rounded = Math.floor(seconds / step) * step;
  return `${rounded === 60 ? "1 min" : duration(rounded)} ago`;
}

export function time(iso) {
  if (!iso) return DASH;
  const at = new Date(iso);
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function clock(iso) {
  return iso ? time(iso).slice(11) : DASH;
}

/** The last parts of a long path: paths mostly share the beginning. */
export function tail(path, parts = 2) {
  const split = String(path).replace(/\/+$/, "").split("/");
  return split.length <= parts + 1 ? path : `…/${split.slice(-parts).join("/")}`;
}

const KINDS = {
  DONE: "good", COMPLETED: "good", PASSED: "good", balanced: "good", PUBLISHED: "good",
  FAILED: "bad", unbalanced: "bad", ABORTED: "bad",
  FENCED: "warn", partial: "warn", TIMED_OUT: "warn", NOT_RUN: "warn",
  READING: "busy", FILTERING: "busy", SPILLING: "busy", DRAINING: "busy", COMMITTING: "busy", RUNNING: "busy", TRIGGERED: "busy",
};
const WORDS = { TIMED_OUT: "too slow", COULD_NOT_RUN: "could not run", NOT_RUN: "not run", NOT_CONFIGURED: "not configured" };

/** The style of a state: good, bad, warn, busy or idle. */
export function kind(state) {
  return KINDS[state] ?? "idle";
}

export function word(state) {
  return WORDS[state] ?? String(state).toLowerCase();
}
