// @ts-check
/** One job: what it waits for, what became of it, what it was given and gave back. */

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes, queue, span } from "./api.js";
import { Action, Fault, JobLink, Link, Panel, State, Time, ask, pretty, useAsked, useNow } from "./parts.js";

const ENDED = ["succeeded", "failed", "cancelled"];

/** @param {any} props */
export function Job({ tenant, id, can }) {
  const api = queue(tenant);
  const shown = useAsked(() => api.get(`/jobs/${id}`), [tenant, id], 1500);
  const job = shown.data;
  if (!job) return html`<div class="head"><h1 class="mono">${id}</h1></div>${shown.fault ? html`<${Fault} fault=${shown.fault} />` : html`<div class="empty">…</div>`}`;
  const ended = ENDED.includes(job.state);
  const act = (/** @type {string} */ verb, /** @type {string} */ said) => async () => { await api.post(`/jobs/${id}/${verb}`); shown.again(); return said; };
  const remove = async () => {
    if (!(await ask({ title: "Delete this job?", text: job.state === "running" ? "It runs now, and is stopped first." : "Its record and result go.", go: "Delete", danger: true }))) return "";
    await api.remove(`/jobs/${id}`);
    history.back();
    return "deleted";
  };
  return html`<div class="head"><h1>${job.task}</h1><${State} state=${job.state} /><code class="dim">${job.id}</code><span class="grow"></span>
      ${can("operate") && html`${!ended && html`<${Action} run=${act("cancel", "cancelled")}>Cancel<//>`}${ended && html`<${Action} kind="main" run=${act("retry", "queued again")}>Retry<//>`}
        <${Action} run=${() => again(api, job)}>Run a copy<//><${Action} kind="danger" run=${remove}>Delete<//>`}</div>
    <div class="stack"><${Why} api=${api} job=${job} />
      <div class="two"><div class="stack">
        ${job.progress && html`<${Progress} progress=${job.progress} />`}
        <${Result} api=${api} job=${job} /><${Attempts} job=${job} /><${Output} api=${api} job=${job} /><${Payload} api=${api} job=${job} /></div>
      <div class="stack"><${Timeline} job=${job} /><${Facts} job=${job} tenant=${tenant} /></div></div></div>`;
}

/** Why it does not run, in one line. @param {any} props */
function Why({ api, job }) {
  const waits = ["queued", "scheduled", "blocked"].includes(job.state);
  const estimate = useAsked(() => (waits ? api.get(`/jobs/${job.id}/estimate`) : Promise.resolve(null)), [job.id, waits], 2000).data;
  const now = useNow();
  if (job.state === "running") {
    const left = job.deadline ? (new Date(job.deadline).getTime() - now) / 1000 : undefined;
    return html`<div class="note-line run">Runs on ${job.node || "a worker"}${job.pid ? ` in process ${job.pid}` : ""} since <${Time} at=${job.started_at} />${left === undefined ? "" : `; it is stopped in ${span(Math.max(0, left))}`}.${job.reason ? ` It was ordered to stop: ${job.reason}.` : ""}</div>`;
  }
  if (!waits) return null;
  const position = estimate?.position ? ` It is number ${estimate.position}.` : "";
  const wait = estimate?.seconds === null || estimate?.seconds === undefined ? "" : ` Expected to start in ${span(estimate.seconds)}${estimate.at_most && estimate.at_most !== estimate.seconds ? `, ${span(estimate.at_most)} at most` : ""}.`;
  return html`<div class="note-line warn"><strong>Why it waits:</strong> ${reason(job, estimate)}.${position}${wait}</div>`;
}

/** @param {any} job @param {any} estimate */
function reason(job, estimate) {
  if (job.state === "scheduled") return html`${job.attempt ? `its next run, after ${job.reason ?? "a failed one"}, is due ` : "its time is "}<${Time} at=${job.run_at} />`;
  if (job.state === "blocked") return html`it comes after ${job.waits_for.map((/** @type {string} */ id) => html`<${JobLink} id=${id} tenant=${job.tenant} /> `)}`;
  const why = estimate?.why;
  if (!why) return "a worker has not taken it yet";
  return `${WHY[why] ?? why}${estimate.name ? ` (${estimate.name})` : ""}`;
}

/** @type {Record<string, string>} */
const WHY = {
  slots: "all slots of the workers that take it are in use",
  limit: "a limit holds it back",
  tier: "its tier is full",
  time: "its time has not come",
  jobs: "other jobs are ahead of it",
  pause: "its queue, task or limit is paused",
  worker: "no worker takes jobs from its queue",
  handler: "no worker of its queue runs its task",
};

/** @param {any} props */
const Progress = ({ progress }) => html`<${Panel} title="Progress"><div class="body">
  <div class="bar"><i style=${{ width: `${progress.total ? Math.min(100, (100 * progress.done) / progress.total) : 0}%` }}></i></div>
  <div class="row gap"><span>${progress.done ?? ""}${progress.total ? ` of ${progress.total}` : ""}</span><span class="dim">${progress.note ?? ""}</span></div></div><//>`;

/** @param {any} props */
function Result({ api, job }) {
  const asks = job.state === "succeeded" && job.keep_result === "keep";
  const answer = useAsked(() => (asks ? api.get(`/jobs/${job.id}/result`) : Promise.resolve(undefined)), [job.id, job.state, job.finished_at], 0).data;
  if (job.state !== "succeeded") return null;
  const text = job.keep_result === "once" ? "It can be read once, so it is not shown here." : job.keep_result === "none" ? "It was not kept." : "";
  return html`<${Panel} title="Result"><div class="body">${text ? html`<span class="dim">${text}</span>` : html`<pre>${answer ? pretty(answer.result) : "…"}</pre>`}</div><//>`;
}

/** Hidden until asked for: it may be private. @param {any} props */
function Payload({ api, job }) {
  const [open, set] = useState(false);
  const answer = useAsked(() => (open ? api.get(`/jobs/${job.id}`, { payload: true }) : Promise.resolve(undefined)), [job.id, open], 0).data;
  return html`<${Panel} title="Payload" actions=${html`<span class="dim small">${bytes(job.size)}</span><button onClick=${() => set(!open)} aria-expanded=${open}>${open ? "Hide" : "Show"}</button>`}>
    ${open && html`<div class="body"><pre>${answer ? pretty(answer.payload) : "…"}</pre></div>`}<//>`;
}

/** @param {any} props */
function Attempts({ job }) {
  if (!job.errors.length) return null;
  return html`<${Panel} title=${job.errors.length === 1 ? "Failed run" : `${job.errors.length} failed runs`}>${[...job.errors].reverse().map((error, place) => html`<div class="body">
    <div class="row"><strong>Run ${error.attempt || "?"}</strong><span class="badge bad">${error.type || error.reason}</span><span>${error.message}</span><span class="grow"></span><${Time} at=${error.at} /></div>
    <div class="dim small">${[error.node && `on ${error.node}`, error.pid && `process ${error.pid}`, error.reason && `reason ${error.reason}`].filter(Boolean).join(", ")}</div>
    ${error.traceback && html`<details open=${place === 0}><summary class="dim small">Traceback</summary><pre>${error.traceback}</pre></details>`}</div>`)}<//>`;
}

/** @param {any} props */
function Output({ api, job }) {
  const [chunks, set] = useState(/** @type {any[]} */ ([]));
  const ended = ENDED.includes(job.state);
  useEffect(() => {
    let after = 0, stopped = false;
    /** @type {any} */
    let timer;
    set([]);
    const read = async () => {
      try {
        const page = await api.get(`/jobs/${job.id}/output`, { after });
        if (page.chunks.length && !stopped) { after = page.next; set((old) => [...old, ...page.chunks].slice(-500)); }
        if (stopped || (page.ended && !page.chunks.length)) return;
      } catch { /* the line at the top says so */ }
      if (!stopped) timer = setTimeout(read, ended ? 10 : 700);
    };
    read();
    return () => { stopped = true; clearTimeout(timer); };
  }, [job.id, job.attempt, ended]);
  const live = !ended && html`<span class="badge running">live</span>`;
  return [["Values", true], ["Output", false]].map(([title, values]) => {
    const shown = chunks.filter((chunk) => (chunk.stream === "values") === values);
    return shown.length > 0 && html`<${Panel} title=${title} actions=${live}><div class="body"><pre class="output">${shown.map((chunk) => html`<span class=${chunk.stream === "stderr" ? "err" : ""}>${text(chunk)}</span>`)}</pre></div><//>`;
  });
}

/** @param {any} chunk */
function text(chunk) {
  if (typeof chunk.text === "string") return chunk.text;
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(chunk.data ?? chunk.base64 ?? ""), (one) => one.charCodeAt(0)));
  } catch {
    return String(chunk.data ?? "");
  }
}

/** @param {any} props */
function Timeline({ job }) {
  /** @type {{at: string, kind?: string, text: any}[]} */
  const steps = [{ at: job.created_at, text: "queued" }];
  for (const error of job.errors) steps.push({ at: error.at, kind: "failed", text: `run ${error.attempt || "?"}: ${error.reason ?? "failed"}${error.node ? ` on ${error.node}` : ""}` });
  if (job.started_at) steps.push({ at: job.started_at, kind: "running", text: `run ${job.attempt} started${job.node ? ` on ${job.node}` : ""}${job.assigned ? `, tier ${job.assigned}` : ""}` });
  if (job.state === "scheduled" && job.run_at) steps.push({ at: job.run_at, text: job.attempt ? "runs again" : "may start" });
  if (job.finished_at) steps.push({ at: job.finished_at, kind: job.state, text: `${job.state}${job.reason && job.reason !== job.state ? `: ${job.reason}` : ""}${job.started_at ? ` after ${span((new Date(job.finished_at).getTime() - new Date(job.started_at).getTime()) / 1000)}` : ""}` });
  steps.sort((a, b) => (a.at < b.at ? -1 : 1));
  return html`<${Panel} title="Timeline"><div class="body"><ol class="timeline">${steps.map((one) => html`<li class=${one.kind ?? ""}>${one.text}<div class="dim small"><${Time} at=${one.at} /></div></li>`)}</ol></div><//>`;
}

/** @param {any} props */
function Facts({ job, tenant }) {
  /** @type {[string, any][]} */
  const facts = [
    ["Queue", html`<${Link} to=${`/jobs?q=queue:${job.queue}`}>${job.queue}<//>`],
    ["Tenant", job.tenant],
    ["Priority", job.priority],
    ["Run", `${job.attempt || 0}${job.max_retry === null ? "" : ` of ${job.max_retry + 1}`}`],
    ["Timeout", job.timeout ? span(job.timeout) : ""],
    ["Tier", job.tier ?? ""],
    ["Worker", job.worker ?? ""],
    ["Node", job.node ?? ""],
    ["Process", job.pid ?? ""],
    ["Code", job.code ?? ""],
    ["Key", job.key ?? ""],
    ["Schedule", job.headers?.schedule ? html`<${Link} to="/schedules">${job.headers.schedule}<//>` : ""],
    ["After", (job.after ?? []).length ? job.after.map((/** @type {string} */ id) => html`<${JobLink} id=${id} tenant=${tenant} /> `) : ""],
    ["Then", job.then?.task ?? ""],
    ["Tags", (job.tags ?? []).map((/** @type {string} */ tag) => html`<span class="tag">${tag}</span> `)],
    ["Notes", Object.entries(job.annotations ?? {}).map(([name, value]) => html`<div>${name}: ${pretty(value)}</div>`)],
    ["Sandbox", job.sandbox ?? ""],
  ];
  return html`<${Panel} title="Details"><div class="body"><dl class="facts">${facts.filter(([, value]) => value !== "" && !(Array.isArray(value) && !value.length)).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></div><//>`;
}

/** The same job once more, with a payload that may be edited. @param {any} api @param {any} job */
async function again(api, job) {
  const full = await api.get(`/jobs/${job.id}`, { payload: true });
  const given = await ask({ title: `Run ${job.task} again`, text: "As a new job, with this payload (JSON).", go: "Queue", fields: [{ name: "payload", label: "Payload", long: true, value: JSON.stringify(full.payload ?? null, null, 2) }, { name: "queue", label: "Queue", value: job.queue }] });
  if (!given) return "";
  const made = await api.post("/jobs", { task: job.task, queue: given.queue, payload: JSON.parse(given.payload), priority: job.priority, tags: job.tags, timeout: job.timeout, max_retry: job.max_retry, isolate: job.isolate });
  location.hash = `/job/${job.tenant}/${made.id}`;
  return "queued";
}
