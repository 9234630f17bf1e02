// @ts-check
/** One job: what it waits for, what became of it, what it was given and gave back. */

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { FINISHED, bytes, clock, number, queue, span, used, word } from "./api.js";
import { live } from "./live.js";
import { Action, Fault, JobLink, JobsLink, Link, Menu, Panel, Since, State, Table, Time, ask, exact, json, moves, pretty, sure, useAsked, useNow } from "./parts.js";

const WAITING = ["queued", "scheduled", "blocked"];

/** @param {any} props */
export function Job({ tenant, id, can }) {
  const api = queue(tenant);
  const shown = useAsked(() => api.get(`/jobs/${id}`), [tenant, id], 1500, (name) => moves(name) || name === "progress");
  const job = shown.data;
  useEffect(() => { if (job && !FINISHED.includes(job.state)) live.resume(); }, [job?.state, job?.attempt]);
  if (!job) return html`<div class="head"><h1 class="mono">${id}</h1></div>${shown.fault ? html`<${Fault} fault=${shown.fault} />` : html`<div class="empty" aria-busy="true">…</div>`}`;
  return html`<div class="head"><h1>${job.task}</h1><${State} state=${job.state} /><code class="dim">${job.id}</code><span class="grow"></span>
      ${can("operate") && html`<${Actions} api=${api} job=${job} again=${shown.again} can=${can} />`}</div>
    ${shown.fault?.status === 404 && html`<div class="note-line bad" role="alert">Its record is gone. This is what was last known of it.</div>`}
    <div class="stack"><${Why} api=${api} job=${job} can=${can} />
      <div class="two"><div class="stack">
        ${job.progress && html`<${Progress} progress=${job.progress} />`}
        <${Result} api=${api} job=${job} /><${Attempts} job=${job} /><${Steps} api=${api} job=${job} /><${Family} api=${api} job=${job} /><${Output} job=${job} /><${Payload} api=${api} job=${job} /><${Files} api=${api} job=${job} /></div>
      <div class="stack"><${Timeline} api=${api} job=${job} can=${can} /><${Facts} job=${job} /></div></div></div>`;
}

/** @param {any} props */
function Actions({ api, job, again, can }) {
  const ended = FINISHED.includes(job.state), path = `/jobs/${job.id}`;
  const act = (/** @type {string} */ verb, /** @type {string} */ said) => async () => { const { stopping } = await api.post(`${path}/${verb}`); again(); return stopping ? "it is being stopped" : said; };
  const given = (/** @type {string} */ title, /** @type {string} */ go, /** @type {any[]} */ fields, /** @type {(given: any) => Promise<any>} */ send, /** @type {string} */ said) => async () => {
    if (!(await ask({ title, go, fields, act: send }))) return "";
    again();
    return said;
  };
  const remove = async () => {
    if (!(await sure("Delete this job?", job.state === "running" ? "It runs now, and is stopped first." : "Its record and its result go.", "Delete"))) return "";
    const { stopping } = await api.remove(path);
    location.hash = "/jobs";
    return stopping ? "it is being stopped" : "deleted";
  };
  const edit = async () => {
    const full = await api.get(path, { payload: true });
    const before = JSON.stringify(full.payload ?? null, null, 2), due = job.state === "scheduled" ? job.run_at : "";
    const fields = [
      { name: "payload", label: "Payload", long: true, value: before },
      { name: "priority", label: "Priority (lower goes first)", value: job.priority },
      { name: "queue", label: "Queue", value: job.queue, required: true },
      { name: "tags", label: "Tags", value: job.tags.join(" ") },
      { name: "run_at", label: "Not before (empty: as soon as it may run)", value: due, hint: "2027-01-31T12:00:00Z" },
    ];
    return given("Edit this job", "Save", fields, (one) => {
      /** @type {any} */
      const changes = { priority: Number(one.priority), queue: one.queue, tags: one.tags.split(/\s+/).filter(Boolean) };
      if (one.payload !== before) changes.payload = json(one.payload, "The payload");
      if (one.run_at !== due) Object.assign(changes, one.run_at ? { run_at: one.run_at } : { delay: 0 });
      return api.patch(path, changes);
    }, "edited")();
  };
  return html`${WAITING.includes(job.state) && html`<${Action} run=${edit}>Edit<//>`}${!ended && html`<${Action} run=${act("cancel", "cancelled")}>Cancel<//>`}${ended && html`<${Action} kind="main" run=${act("retry", "queued again")}>Retry<//>`}
    ${can("enqueue") && html`<${Action} run=${() => copy(api, job)}>Run a copy<//>`}
    <${Menu}>${job.state === "running" && html`
      <${Action} kind="plain" run=${given("End it as succeeded?", "Finish", [{ name: "result", label: "Its result (JSON)", long: true, value: "null" }], (one) => api.post(`${path}/finish`, { result: json(one.result, "The result") }), "finished by hand")}>Finish by hand<//>
      <${Action} kind="plain" run=${given("End it as failed?", "Fail", [{ name: "message", label: "Why" }], (one) => api.post(`${path}/fail`, { message: one.message }), "failed by hand")}>Fail by hand<//>
      <${Action} kind="plain" run=${given("Lower its time limit", "Lower", [{ name: "seconds", label: "Seconds that the run may take, from its start", required: true, number: true }], (one) => api.post(`${path}/timeout`, { timeout: Number(one.seconds) }), "lowered")}>Lower the time limit<//>`}
      <${Action} kind="plain" run=${given("Annotate this job", "Save", [{ name: "name", label: "Name", required: true, hint: "ticket" }, { name: "text", label: "Text (empty: remove it)" }], (one) => api.patch(path, { annotations: { [one.name]: one.text || null } }), "annotated")}>Annotate<//>
      <${Action} kind="plain danger" run=${remove}>Delete<//><//>`;
}

/** Why it does not run, how long that will last, and what can be done about it. @param {any} props */
function Why({ api, job, can }) {
  const waits = WAITING.includes(job.state);
  const asked = useAsked(() => (waits ? api.get(`/jobs/${job.id}/estimate`) : Promise.resolve(null)), [job.id, waits], waits ? 2000 : 0, (name) => moves(name) || name === "estimate");
  const now = useNow();
  if (job.state === "running") {
    const left = job.deadline ? (new Date(job.deadline).getTime() - now) / 1000 : undefined;
    return html`<div class="note-line run">Runs on ${job.node || "a worker"}${job.pid ? ` in process ${job.pid}` : ""} for <${Since} at=${job.started_at} />${left === undefined ? "" : `; it is stopped in ${span(Math.max(0, left))}`}.${job.usage ? ` It uses ${used(job.usage)}.` : ""}${job.reason ? ` It was ordered to stop or to take less time: ${job.reason}.` : ""}</div>`;
  }
  if (!waits) return null;
  const estimate = asked.data, passed = (now - asked.at) / 1000;
  const rest = (/** @type {number} */ seconds) => Math.round(seconds - Math.max(0, passed));
  const position = estimate?.position ? ` It is number ${number(estimate.position)} in line.` : "";
  const known = estimate && estimate.seconds !== null && estimate.seconds !== undefined && job.state !== "scheduled";
  return html`<div class="note-line warn why"><div><strong>Why it waits:</strong> ${estimate === undefined && job.state === "queued" ? "…" : reason(job, estimate)}.${position}</div>
    ${known && html`<div class="count-down">${rest(estimate.seconds) > 0 ? html`<b class="figures">${span(rest(estimate.seconds))}</b> <span>until it is expected to start</span>` : html`<span>It is expected to start any moment</span>`}${estimate.at_most && rest(estimate.at_most) > Math.max(0, rest(estimate.seconds)) ? `, ${span(rest(estimate.at_most))} at most` : ""}</div>`}
    <${Remedy} api=${api} job=${job} estimate=${estimate} can=${can} /></div>`;
}

/** @param {any} job @param {any} estimate */
function reason(job, estimate) {
  if (job.state === "scheduled") return html`${job.attempt ? `its next run, after ${job.reason ?? "a failed one"}, is due ` : "its time is "}<${Time} at=${job.run_at} />`;
  if (job.state === "blocked") return html`it comes after ${job.waits_for.length === 1 ? "a job that has" : `${job.waits_for.length} jobs that have`} not ended: ${job.waits_for.slice(0, 8).map((/** @type {string} */ id) => html`<${JobLink} id=${id} tenant=${job.tenant} /> `)}`;
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

/** The app of the first worker that names one, for a command. @param {any[]} workers */
const appOf = (workers) => workers.find((one) => one.app)?.app ?? "MODULE:APP";

/** A worker that takes none of the jobs of its queues. @param {any} props */
function PausedWorker({ api, one, can }) {
  const pause = one.orders.pause;
  if (!pause?.paused) return html`<div><${Link} to="/workers">${one.name}<//> would take it, and is ${one.orders.stop ? "stopping" : "paused by a signal or stopping"}.</div>`;
  return html`<div class="row"><span><${Link} to="/workers">${one.name}<//> would take it, and is paused${pause.why ? `: ${pause.why}` : ""}${pause.until ? html` until ${exact(pause.until)}` : ""}.</span>
    ${can("operate") && one.tenant !== "-" && html`<${Action} run=${async () => { await api.patch(`/workers/${one.id}`, {}); return `${one.name} goes on`; }}>Resume<//>`}</div>`;
}

/** What to do about a wait. @param {any} props */
function Remedy({ api, job, estimate, can }) {
  const why = job.state === "queued" ? estimate?.why : undefined;
  const paused = useAsked(async () => {
    if (why !== "pause") return null;
    const [line, task] = await Promise.all([api.get(`/queues/${job.queue}`), api.get(`/tasks/${job.task}`)]);
    return line.paused ? { what: `queue ${job.queue}`, path: `/queues/${job.queue}`, ...line } : task.paused ? { what: `task ${job.task}`, path: `/tasks/${job.task}`, ...task } : null;
  }, [job.id, why], why === "pause" ? 3000 : 0).data;
  const asksWorkers = why === "worker" || why === "handler" || why === "slots";
  const all = useAsked(() => (asksWorkers ? api.get("/workers") : Promise.resolve(null)), [job.id, why], asksWorkers ? 3000 : 0).data ?? [];
  const serving = all.filter((/** @type {any} */ one) => one.queues.includes(job.queue));
  if (why === "worker") return html`${serving.map((/** @type {any} */ one) => html`<${PausedWorker} key=${one.id} api=${api} one=${one} can=${can} />`)}<div>Start ${serving.length ? "another one" : "one"}: <code>windlass worker ${appOf(all)} -q ${job.queue}</code></div>`;
  const needs = [...new Set(all.flatMap((/** @type {any} */ one) => one.needs?.[job.task] ?? []))];
  if (why === "handler" && needs.length) return html`<div>Start one where that is: <code>windlass worker ${appOf(all)} -q ${job.queue} --offers ${needs.join(",")}</code></div>`;
  if (why === "handler") return html`<div><${Link} to="/workers">The workers<//> of its queue do not know the task ${job.task}: start one with an app that has it, or <${Link} to="/handlers">upload a handler<//>.</div>`;
  if (why === "limit") return html`<div><${Link} to="/limits">See the limit${estimate.name ? ` ${estimate.name}` : ""} and what it holds back<//></div>`;
  if (why === "tier") return html`<div><${JobsLink} q=${`state:running ${word("queue", job.queue)}`}>See what runs in ${job.queue}<//>, start another worker, or <${Link} to="/queues">give the tier a larger cap<//>.</div>`;
  if (why === "slots") return html`<div>See what runs on ${serving.length ? serving.map((/** @type {any} */ one, /** @type {number} */ place) => html`${place ? ", " : ""}<${JobsLink} q=${`state:running worker:${one.id}`}>${one.name}<//>`) : html`<${Link} to="/workers">the workers<//>`}, or start another worker.</div>`;
  if (why === "pause" && paused) {
    return html`<div class="row"><span>The ${paused.what} is paused${paused.why ? `: ${paused.why}` : ""}${paused.until ? html` until ${exact(paused.until)}` : ""}.</span>
      ${can("operate") && html`<${Action} run=${async () => { await api.patch(paused.path, { paused: false }); return `${paused.what} goes on`; }}>Resume<//>`}</div>`;
  }
  return null;
}

/** @param {any} props */
const Progress = ({ progress }) => html`<${Panel} title="Progress"><div class="body">
  <div class="bar" role="progressbar" aria-label="Progress" aria-valuenow=${progress.done ?? 0} aria-valuemax=${progress.total ?? undefined}><i style=${{ width: `${progress.total ? Math.min(100, (100 * (progress.done ?? 0)) / progress.total) : 0}%` }}></i></div>
  <div class="row gap-small"><span class="figures">${progress.done ?? 0}${progress.total ? ` of ${progress.total}` : ""}</span><span class="dim">${progress.note ?? ""}</span></div></div><//>`;

/** @param {any} props */
function Result({ api, job }) {
  const asks = job.state === "succeeded" && job.keep_result === "keep";
  const answer = useAsked(() => (asks ? api.get(`/jobs/${job.id}/result`) : Promise.resolve(undefined)), [job.id, job.state, job.finished_at], 0);
  if (job.state !== "succeeded") return null;
  const text = job.keep_result === "once" ? "It can be read once, so it is not shown here." : job.keep_result === "none" ? "It was not kept." : answer.fault ? answer.fault.message : "";
  return html`<${Panel} title="Result"><div class="body">${text ? html`<span class="dim">${text}</span>` : html`<pre>${answer.data ? pretty(answer.data.result) : "…"}</pre>`}</div><//>`;
}

/** Hidden until asked for: it may be private. @param {any} props */
function Payload({ api, job }) {
  const [open, set] = useState(false);
  const answer = useAsked(() => (open ? api.get(`/jobs/${job.id}`, { payload: true }) : Promise.resolve(undefined)), [job.id, open], 0);
  return html`<${Panel} title="Payload" actions=${html`<span class="dim small">${bytes(job.size)}</span><button onClick=${() => set(!open)} aria-expanded=${open}>${open ? "Hide" : "Show"}</button>`}>
    ${open && html`<div class="body">${answer.fault ? html`<${Fault} fault=${answer.fault} />` : html`<pre>${answer.data ? pretty(answer.data.payload) : "…"}</pre>`}</div>`}<//>`;
}

/** @param {any} props */
function Files({ api, job }) {
  const files = useAsked(() => api.get(`/jobs/${job.id}/files`), [job.id, job.state, job.attempt], 0).data;
  if (!files?.length) return null;
  return html`<${Panel} title="Files"><div class="body"><ul class="plain-list">${files.map((/** @type {any} */ one) => html`<li><a href=${api.url(`/jobs/${job.id}/files/${encodeURIComponent(one.name)}`)} download=${one.name}>${one.name}</a> <span class="dim small">${one.size === undefined ? "" : bytes(one.size)}</span></li>`)}</ul></div><//>`;
}

/** @param {any} props */
function Attempts({ job }) {
  if (!job.errors.length) return null;
  return html`<${Panel} title=${job.errors.length === 1 ? "Failed run" : `${job.errors.length} failed runs`}>${[...job.errors].reverse().map((error, place) => html`<div class="body attempt" key=${job.errors.length - place}>
    <div class="row"><strong>${error.attempt ? `Run ${error.attempt}` : "Not run"}</strong><span class="badge bad">${error.type || error.reason}</span><span class="grow"></span><${Time} at=${error.at} /></div>
    ${error.message && html`<div class="gap-small">${error.message}</div>`}
    <div class="dim small">${[error.node && `on ${error.node}`, error.pid && `process ${error.pid}`, error.peak_memory && `at most ${bytes(error.peak_memory)} of memory, ${span(error.cpu_time ?? 0)} of CPU time`, error.worker && `worker ${error.worker.slice(0, 8)}`, error.reason && `reason ${error.reason}`].filter(Boolean).join(" · ")}</div>
    ${error.traceback && html`<details open=${place === 0}><summary class="dim small">Traceback</summary><pre>${error.traceback}</pre></details>`}</div>`)}<//>`;
}

/** Milliseconds between two looks at the steps of a running job: they have no event. */
const STEPS_EVERY = 3000;

/** The durable steps that it has finished; their results are its own. @param {any} props */
function Steps({ api, job }) {
  const steps = useAsked(() => (job.attempt ? api.get(`/jobs/${job.id}/steps`) : Promise.resolve([])), [job.id, job.state, job.attempt], job.state === "running" ? STEPS_EVERY : 0).data;
  if (!steps?.length) return null;
  return html`<${Panel} title="Steps" actions=${html`<span class="dim small">${number(steps.length)} finished</span>`}><${Table} label="Steps" rows=${steps} of=${(/** @type {any} */ one) => one.name} empty="" columns=${[
    { name: "Step", fill: true, show: (/** @type {any} */ one) => one.name },
    { name: "Finished", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.finished_at} />` },
    { name: "Result", num: true, tight: true, show: (/** @type {any} */ one) => bytes(one.size) },
  ]} /><//>`;
}

const MOST_RELATIVES = 6;

/** Seconds after its end in which the follow-up of a job may not be there yet. */
const SOON = 5;

/** The job that `then` made, or will make. @param {any} api @param {any} job @param {any[]} newest jobs that were made since */
async function followUp(api, job, newest) {
  const id = job.follow_up, made = newest.find((one) => one.id === id);
  if (made) return made;
  if (!FINISHED.includes(job.state)) return { id, planned: true, task: "follow-up", state: "on success" };
  if (job.state !== "succeeded") return { id, planned: true, task: "follow-up", state: "never made" };
  if (clock.now() - new Date(job.finished_at).getTime() < 1000 * SOON) return { id, planned: true, task: "follow-up", state: "not made yet" };
  return api.get(`/jobs/${id}`).catch(() => ({ id, planned: true, task: "follow-up", state: "gone" }));
}

/** Jobs before and after this one, with lines between them. @param {any} props */
function Family({ api, job }) {
  const parents = job.after ?? [], pending = !FINISHED.includes(job.state);
  const family = useAsked(async () => {
    const before = await Promise.all(parents.slice(0, MOST_RELATIVES).map((/** @type {string} */ id) => api.get(`/jobs/${id}`).catch(() => ({ id, task: "gone", state: "gone" }))));
    const query = pending ? { state: "blocked" } : { created_after: job.created_at };
    const page = await api.get("/jobs", { ...query, order: "newest", limit: 200 });
    const after = page.jobs.filter((/** @type {any} */ one) => (one.after ?? []).includes(job.id));
    return { before, after: job.follow_up ? [await followUp(api, job, page.jobs), ...after] : after };
  }, [job.id, job.state], 5000, moves).data;
  if (!family || (!parents.length && !family.after.length)) return null;
  const node = (/** @type {any} */ one) => one.planned ? html`<span class="node planned" title=${one.id}><i class="dot"></i><span class="clip">${one.task}</span><span class="dim small">${one.state}</span></span>` : html`<a class=${`node ${one.id === job.id ? "self" : ""}`} href=${`#/job/${job.tenant}/${one.id}`} title=${one.id}><i class=${`dot ${one.state}`}></i><span class="clip">${one.task}</span><span class="dim small">${one.state}</span></a>`;
  const rest = (/** @type {number} */ count) => (count > MOST_RELATIVES ? [html`<span class="node dim">and ${count - MOST_RELATIVES} more</span>`] : []);
  const left = [...family.before.map(node), ...rest(parents.length)];
  const right = [...family.after.slice(0, MOST_RELATIVES).map(node), ...rest(family.after.length)];
  const tall = Math.max(left.length, right.length, 1);
  return html`<${Panel} title="Before and after"><div class="body scroll" tabindex="0" role="region" aria-label="Jobs before and after this one"><div class="graph">
    ${left.length > 0 && html`<div class="nodes">${left}</div><${Edges} from=${left.length} to=${1} tall=${tall} />`}
    <div class="nodes">${node(job)}</div>
    ${right.length > 0 && html`<${Edges} from=${1} to=${right.length} tall=${tall} /><div class="nodes">${right}</div>`}</div></div><//>`;
}

/** Lines from each node of a column to each of the next; nodes are 44 pixels apart. @param {{from: number, to: number, tall: number}} props */
function Edges({ from, to, tall }) {
  const height = tall * 44;
  const at = (/** @type {number} */ number, /** @type {number} */ count) => height / 2 + (number - (count - 1) / 2) * 44;
  const lines = [];
  for (let one = 0; one < from; one += 1) for (let other = 0; other < to; other += 1) lines.push(html`<path d=${`M0 ${at(one, from)}C20 ${at(one, from)} 20 ${at(other, to)} 40 ${at(other, to)}`} />`);
  return html`<svg class="edges" width="40" height=${height} aria-hidden="true">${lines}</svg>`;
}

/** @param {any} props */
function Output({ job }) {
  const [chunks, set] = useState(live.output);
  const box = useRef(/** @type {any} */ (null));
  const ended = FINISHED.includes(job.state);
  useEffect(() => {
    const listener = () => set(live.output);
    live.listeners.add(listener);
    listener();
    return () => { live.listeners.delete(listener); };
  }, [job.id]);
  const follows = !box.current || box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40;
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [chunks]);
  const mark = !ended && html`<span class="badge running">live</span>`;
  const values = chunks.filter((one) => one.stream === "values"), printed = chunks.filter((one) => one.stream !== "values");
  return html`${values.length > 0 && html`<${Panel} title="Values" actions=${mark}><div class="body"><pre class="output" tabindex="0" role="log" aria-label="Values">${values.map((one) => html`<span key=${one.n}>${one.text}</span>`)}</pre></div><//>`}
  ${printed.length > 0 && html`<${Panel} title="Output" actions=${mark}><div class="body"><pre class="output" ref=${box} tabindex="0" role="log" aria-label="Output">${printed.map((one) => html`<span key=${one.n} class=${one.stream === "stdout" ? "" : "err"}>${one.text}</span>`)}</pre></div><//>`}`;
}

/** What the audit log calls what was done to a job, in words. @type {Record<string, string>} */
const BY_HAND = { cancel: "cancelled", retry: "queued again", delete: "deleted", edit: "edited", finish: "finished", fail: "failed", "lower-timeout": "time limit lowered" };

/** What was asked for, besides of which job. @param {string} details of a line of the audit log */
function asked(details) {
  try {
    const { annotations = {}, changed = [], content_type: _, ...rest } = JSON.parse(details || "{}");
    return [...changed, ...Object.entries({ ...annotations, ...rest }).map(([name, value]) => (value === null ? `${name} removed` : `${name}: ${pretty(value)}`))].join(", ");
  } catch {
    return details; // it was cut
  }
}

/** @param {any} props */
function Timeline({ api, job, can }) {
  const now = useNow();
  const done = useAsked(() => (can("operate") ? api.get("/audit", { job: job.id }) : Promise.resolve(null)), [job.id], can("operate") ? 5000 : 0, moves).data;
  /** @type {{at: string, kind?: string, text: any, more?: string}[]} */
  const steps = [{ at: job.created_at, text: "queued" }];
  for (const line of done?.entries ?? []) steps.push({ at: line.at, kind: "hand", text: `${BY_HAND[line.action] ?? line.action} by ${line.note || line.by}`, more: asked(line.details) });
  for (const error of job.errors) steps.push({ at: error.at, kind: "failed", text: `${error.attempt ? `run ${error.attempt}: ` : ""}${error.reason ?? "failed"}${error.node ? ` on ${error.node}` : ""}`, more: error.worker ? `worker ${error.worker.slice(0, 8)}` : "" });
  if (job.started_at) steps.push({ at: job.started_at, kind: "running", text: `run ${job.attempt} started${job.node ? ` on ${job.node}` : ""}${job.assigned ? `, tier ${job.assigned}` : ""}` });
  if (job.adopted_at) steps.push({ at: job.adopted_at, kind: "running", text: "adopted by another worker", more: job.adopted_by ? `worker ${job.adopted_by.slice(0, 8)}` : "" });
  if (job.state === "running" && job.reason) steps.push({ at: job.updated_at, kind: "warn", text: job.reason });
  if (job.state === "scheduled" && job.run_at) steps.push({ at: job.run_at, text: job.attempt ? "runs again" : "may start" });
  if (job.finished_at) steps.push({ at: job.finished_at, kind: job.state, text: `${job.state}${job.reason && job.reason !== job.state ? `: ${job.reason}` : ""}` });
  steps.sort((a, b) => (a.at < b.at ? -1 : 1));
  return html`<${Panel} title="Timeline"><div class="body"><${Spans} job=${job} now=${now} /><ol class="timeline">${steps.map((one) => html`<li class=${one.kind ?? ""}>${one.text}<div class="dim small">${one.more && html`${one.more} · `}<${Time} at=${one.at} /></div></li>`)}</ol></div><//>`;
}

/** How long it waited and ran, as a bar. @param {any} props */
function Spans({ job, now }) {
  const time = (/** @type {string} */ at) => new Date(at).getTime() / 1000;
  const begun = time(job.created_at), end = job.finished_at ? time(job.finished_at) : now / 1000;
  const started = job.started_at && !(WAITING.includes(job.state)) ? time(job.started_at) : undefined;
  const waited = Math.max(0, (started ?? end) - begun), ran = started === undefined ? 0 : Math.max(0, end - started);
  const whole = Math.max(0.001, waited + ran);
  return html`<div class="spans" role="img" aria-label=${`waited ${span(waited)}, ran ${span(ran)}`}><i class="waited" style=${{ width: `${(100 * waited) / whole}%` }}></i>${ran > 0 && html`<i class=${`ran ${job.state}`} style=${{ width: `${(100 * ran) / whole}%` }}></i>`}</div>
    <div class="plot-labels"><span>${job.attempt > 1 ? "before the last run" : "waited"} ${span(waited)}</span>${started !== undefined && html`<span>ran ${span(ran)}</span>`}</div>`;
}

/** @param {number | null} seconds */
const kept = (seconds) => (seconds === null ? "forever" : `for ${span(seconds)}`);

/** Options that are shown where a job has others than usual: their name, label, usual value, and how they read. @type {[string, string, any, (value: any) => string][]} */
const UNUSUAL = [
  ["expires", "Expires", null, (value) => `if it has not started ${span(value)} after it was made`],
  ["owner_timeout", "Owner", null, (value) => `must ask for it every ${span(value)}`],
  ["unique", "Unique", null, (value) => (typeof value === "number" ? `for ${span(value)}` : `while it is ${value}`)],
  ["yielding", "Yielding", false, () => "may be halted for other jobs"],
  ["isolate", "Isolated", false, () => "a process of its own"],
  ["on_failure", "On failure", null, (value) => `a job of ${value}`],
  ["keep_success", "Success kept", 86400, kept],
  ["keep_failure", "Failure kept", 7 * 86400, kept],
  ["keep_result", "Result", "keep", (value) => (value === "once" ? "for one reading" : "not kept")],
  ["keep_result_for", "Result kept", null, kept],
  ["stdin", "Standard input", null, (value) => `a ${value}`],
  ["input", "Messages", false, () => "taken while it runs"],
];

/** When it is run again; a policy leaves out what is as usual. @param {any} job */
function retries({ max_retry, retry: { base = 10, factor = 2, cap = 3600, deadline } }) {
  if (max_retry === 0) return "";
  return `after ${span(base)}${factor === 1 ? "" : `, each wait ${factor} times the last, at most ${span(cap)}`}${deadline ? `, until it is ${span(deadline)} old` : ""}`;
}

/** @param {any} props */
function Facts({ job }) {
  /** @type {[string, any][]} */
  const facts = [
    ["Queue", html`<${JobsLink} q=${word("queue", job.queue)}>${job.queue}<//>`],
    ["Task", html`<${JobsLink} q=${word("task", job.task)}>${job.task}<//>`],
    ["Tenant", job.tenant],
    ["Priority", job.priority],
    ["Run", `${job.attempt || 0}${job.max_retry === null ? "" : ` of ${job.max_retry + 1}`}`],
    ["Run again", retries(job)],
    ["Timeout", job.timeout ? span(job.timeout) : ""],
    ["Tier", job.tier ?? ""],
    ["When lost", job.on_lost ?? ""],
    ["Worker", job.worker ? html`<${JobsLink} q=${`worker:${job.worker}`} title=${job.worker}>${job.worker.slice(0, 8)}…<//>` : ""],
    ["Node", job.node ?? ""],
    ["Process", job.pid ?? ""],
    ["Code", job.code ?? ""],
    ["Crashes", job.crashes || ""],
    ["Losses", job.losses || ""],
    ["Key", job.key ? html`<${JobsLink} q=${word("key", job.key)}>${job.key}<//>` : ""],
    ["Schedule", job.headers?.schedule ? html`<${Link} to="/schedules">${job.headers.schedule}<//>` : ""],
    ["Tags", (job.tags ?? []).map((/** @type {string} */ tag) => html`<${JobsLink} q=${word("tag", tag)}><span class="tag">${tag}</span><//> `)],
    ["Notes", Object.entries(job.annotations ?? {}).map(([name, value]) => html`<div>${name}: ${pretty(value)}</div>`)],
    ["Headers", Object.entries(job.headers ?? {}).filter(([name]) => name !== "schedule").map(([name, value]) => html`<div><span class="dim">${name}</span> ${pretty(value)}</div>`)],
    ["Edited", job.edits ? `${job.edits} ${job.edits === 1 ? "time" : "times"}` : ""],
    ["Handler", job.handler_version ? `version ${job.handler_version}` : ""],
    ["Sandbox", job.sandbox ?? ""],
    .../** @type {[string, any][]} */ (UNUSUAL.filter(([name, , usual]) => job[name] !== undefined && job[name] !== usual).map(([name, label, , text]) => [label, text(job[name])])),
    ["Made", exact(job.created_at)],
  ];
  return html`<${Panel} title="Details"><div class="body"><dl class="facts">${facts.filter(([, value]) => value !== "" && !(Array.isArray(value) && !value.length)).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></div><//>`;
}

/** Options of which null says something: without a limit, or forever. */
const NULLABLE = ["max_retry", "keep_success", "keep_failure"];

/** What a copy takes over. */
const OPTIONS = ["priority", "tags", "timeout", "tier", "yielding", "max_retry", "retry", "keep_result", "keep_result_for", "keep_success", "keep_failure", "expires", "owner_timeout", "isolate", "on_lost", "output", "input", "stdin", "most_input", "one_argument"];

/** The same job once more, with a payload that may be edited. @param {any} api @param {any} job */
async function copy(api, job) {
  const full = await api.get(`/jobs/${job.id}`, { payload: true });
  const made = await ask({
    title: `Run ${job.task} again`, text: "As a new job with the options of this one.", go: "Queue",
    fields: [{ name: "payload", label: "Payload (JSON)", long: true, value: JSON.stringify(full.payload ?? null, null, 2) }, { name: "queue", label: "Queue", value: job.queue, required: true }],
    act: (given) => {
      const options = Object.fromEntries(OPTIONS.filter((name) => job[name] !== undefined && (job[name] !== null || NULLABLE.includes(name))).map((name) => [name, job[name]]));
      return api.post("/jobs", { ...options, task: job.task, queue: given.queue, payload: json(given.payload, "The payload") }, { exact: true });
    },
  });
  if (!made) return "";
  location.hash = `/job/${job.tenant}/${made.id}`;
  return "queued";
}
