// Requests to the server. A failure is an Error with the server's own sentence and hint.

export class Failure extends Error {
  constructor(status, sentence, hint) {
    super(sentence);
    this.status = status;
    this.hint = hint;
  }
}

export function get(path) {
  return call(path, { headers: { Accept: "application/json" } });
}

/** An action. A form on another site cannot send this header. */
export function act(path, body = {}) {
  return call(path, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json", "X-Cdr-Action": "1" },
    body: JSON.stringify(body),
  });
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(new URL(`api/v1/${path}`, document.baseURI), { ...options, credentials: "same-origin", cache: "no-store" });
  } catch {
    throw new Failure(0, "Airflow does not answer", "this page tries again by itself");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const sentence = answer.error ?? answer.detail ?? `Airflow answered with status ${response.status}`;
  throw new Failure(response.status, String(sentence), answer.hint ?? "");
}
