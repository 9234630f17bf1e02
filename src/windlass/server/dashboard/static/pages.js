// @ts-check
/** Overview, queues, workers, schedules, limits, handlers, tokens and the audit log. */

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes, number, queue, span } from "./api.js";
import { Action, Chart, Empty, Fault, JobLink, Link, Panel, State, Table, Time, ask, useAsked, useNow } from "./parts.js";

/** @param {any} stats @param {string} state */
const total = (stats, state) => stats.queues.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.states[state] ?? 0), 0);

/** Queues, with what an answer leaves out because it is the default. @param {any} api */
const queuesOf = async (api) => (await api.get("/queues")).map((/** @type {any} */ one) => ({ states: {}, slots: 0, workers: 0, ...one }));

/** @type {Record<string, {name: string, step: string, seconds: number, points: number}>} */
const RANGES = {
  hour: { name: "1 h", step: "minute", seconds: 60, points: 60 },
  day: { name: "24 h", step: "minute", seconds: 60, points: 1439 },
  month: { name: "30 d", step: "hour", seconds: 3600, points: 743 },
};

/** @param {any} props */
export function Overview({ tenant, can }) {
  const api = queue(tenant);
  const [range, setRange] = useState("hour");
  const chosen = RANGES[range];
  const stats = useAsked(() => api.get("/stats"), [tenant]).data;
  const queues = useAsked(() => queuesOf(api), [tenant]);
  const workers = useAsked(() => api.get("/workers"), [tenant], 3000).data;
  const history = useAsked(() => api.get("/history", { step: chosen.step, points: chosen.points }), [tenant, range], 15000).data;
  const points = history?.points ?? [];
  const sum = (/** @type {string[]} */ names) => points.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + names.reduce((some, name) => some + (one[name] ?? 0), 0), 0);
  const slots = (workers ?? []).reduce((/** @type {number} */ all, /** @type {any} */ one) => all + one.slots, 0);
  const last = Math.floor(Date.now() / 1000 / chosen.seconds) * chosen.seconds;
  const alone = (queues.data ?? []).filter((/** @type {any} */ one) => (one.states.queued ?? 0) > 0 && !one.workers);
  const paused = (queues.data ?? []).filter((/** @type {any} */ one) => one.paused);
  if (stats && !stats.queues.length && workers && !workers.length && !can("nothing")) return html`<${Start} />`;
  return html`<div class="head"><h1>Overview</h1></div><${Fault} fault=${queues.fault} /><div class="stack">
    ${alone.length > 0 && html`<div class="note-line warn"><strong>No worker</strong> takes jobs from ${alone.map((/** @type {any} */ one) => html`<${Link} to=${`/jobs?q=queue:${one.queue} state:queued`}>${one.queue}<//> (${number(one.states.queued)}) `)}. Start one: <code>windlass worker MODULE:APP -q ${alone[0].queue}</code></div>`}
    ${paused.length > 0 && html`<div class="note-line warn"><strong>Paused:</strong> ${paused.map((/** @type {any} */ one) => html`<${Link} to="/queues">${one.queue}<//>${one.why ? ` (${one.why})` : ""} `)}</div>`}
    <div class="cards">${stats && [["Running", "running", slots ? `of ${number(slots)} slots` : "no workers"], ["Queued", "queued", ""], ["Scheduled", "scheduled", ""], ["Blocked", "blocked", "wait for other jobs"], ["Failed", "failed", "kept"]].map(([name, state, note]) => html`<a class="card" href=${`#/jobs?q=state:${state}`}><div class="label">${name}</div><div class="value">${number(total(stats, state))}</div><div class="note">${note}</div></a>`)}
      <div class="card"><div class="label">Runs, ${chosen.name}</div><div class="value">${number(sum(["ok", "failed", "error", "retry"]))}</div><div class="note">${number(sum(["failed", "error"]))} failed</div></div></div>
    <${Panel} title="Runs over time" actions=${html`<span class="legend"><span><i class="ok"></i>ok</span><span><i class="bad"></i>failed</span><span><i class="retry"></i>again</span></span>
      ${Object.entries(RANGES).map(([name, one]) => html`<button aria-pressed=${name === range} onClick=${() => setRange(name)}>${one.name}</button>`)}`}>
      <div class="body"><${Chart} points=${points} step=${chosen.seconds} from=${last - chosen.points * chosen.seconds} to=${last} /></div><//>
    <${Panel} title="Queues"><${QueueTable} api=${api} rows=${queues.data} tenant=${tenant} /><//></div>`;
}

const Start = () => html`<div class="head"><h1>Welcome</h1></div><section class="panel"><div class="body stack">
  <p>This queue has no jobs and no workers yet. Write a task:</p><pre>from windlass import Windlass

app = Windlass()


@app.task
def add(a: int, b: int) -> int:
    return a + b</pre><p>Start a worker, and queue a job:</p><pre>windlass worker shop:app
windlass enqueue add '[1, 2]' --wait</pre></div></section>`;

/** @param {any} props */
function QueueTable({ api, rows, tenant }) {
  return html`<${Table} rows=${rows} of=${(/** @type {any} */ one) => one.queue} empty=${html`<${Empty} text="No queue has jobs, workers or settings." />`} columns=${[
    { name: "Queue", show: (/** @type {any} */ one) => html`<${Link} to=${`/jobs?q=queue:${one.queue}`}>${one.queue}<//> ${one.paused && html`<span class="badge warn">paused</span>`} ${!one.workers && (one.states.queued ?? 0) > 0 && html`<span class="badge bad">no worker</span>`}` },
    { name: "Queued", num: true, show: (/** @type {any} */ one) => number(one.states.queued ?? 0) },
    { name: "Running", num: true, show: (/** @type {any} */ one) => html`${number(one.states.running ?? 0)}<span class="dim"> / ${number(one.slots)}</span>` },
    { name: "Scheduled", num: true, wide: true, show: (/** @type {any} */ one) => number(one.states.scheduled ?? 0) },
    { name: "Failed", num: true, show: (/** @type {any} */ one) => number(one.states.failed ?? 0) },
    { name: "Workers", num: true, wide: true, show: (/** @type {any} */ one) => one.workers },
    { name: "A new job waits", tight: true, show: (/** @type {any} */ one) => html`<${NewWait} api=${api} queue=${one.queue} tenant=${tenant} />` },
  ]} />`;
}

/** @param {any} props */
function NewWait({ api, queue: name, tenant }) {
  const found = useAsked(() => (tenant === "-" ? Promise.resolve(null) : api.get(`/queues/${name}/estimate`)), [tenant, name], 5000).data;
  if (!found || found.seconds === null || found.seconds === undefined) return html`<span class="dim">–</span>`;
  return found.seconds < 0.05 ? "none" : html`about ${span(found.seconds)}`;
}

/** @param {any} props */
export function Queues({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => queuesOf(api), [tenant]);
  const change = async (/** @type {string} */ name, /** @type {any} */ body) => { await api.patch(`/queues/${name}`, body); list.again(); };
  const pause = (/** @type {any} */ one) => async () => {
    const given = await ask({ title: `Pause ${one.queue}?`, text: "What runs goes on; what is queued waits.", go: "Pause", fields: [{ name: "why", label: "Why", hint: "shown in listings" }, { name: "minutes", label: "For how many minutes (empty: until it is resumed)" }] });
    if (!given) return "";
    const until = given.minutes ? new Date(Date.now() + 60000 * Number(given.minutes)).toISOString() : null;
    await change(one.queue, { paused: true, why: given.why, ...(until ? { until } : {}) });
    return `${one.queue} is paused`;
  };
  const edit = (/** @type {any} */ one) => async () => {
    const given = await ask({ title: `Settings of ${one.queue}`, go: "Save", fields: [
      { name: "policy", label: "Order", value: one.policy ?? "fair", options: ["priority", "fair"] },
      { name: "on_lost", label: "When a run is lost", value: one.on_lost ?? "retry", options: ["retry", "requeue", "fail", "adopt"] },
      { name: "timeout", label: "Timeout in seconds (empty: none)", value: one.timeout ?? "" }] });
    if (!given) return "";
    /** @type {any} */
    const body = { policy: given.policy, on_lost: given.on_lost };
    if (given.timeout) body.timeout = Number(given.timeout);
    else if (one.timeout) body.clear = ["timeout"];
    await change(one.queue, body);
    return "saved";
  };
  const tiers = (/** @type {any} */ one) => (one.tiers ?? []).map((/** @type {any} */ tier) => `${tier.name} ≤ ${span(tier.seconds)}, ${one.caps?.[tier.name] ?? tier.cap} at once`).join("; ");
  return html`<div class="head"><h1>Queues</h1></div><${Fault} fault=${list.fault} /><section class="panel">
    <${Table} rows=${list.data} of=${(/** @type {any} */ one) => one.queue} empty=${html`<${Empty} text="No queue has jobs, workers or settings." command="windlass enqueue TASK --queue NAME" />`} columns=${[
      { name: "Queue", show: (/** @type {any} */ one) => html`<${Link} to=${`/jobs?q=queue:${one.queue}`}>${one.queue}<//> ${one.paused && html`<span class="badge warn" title=${one.why}>paused${one.until ? "" : ""}</span>`} ${!one.workers && (one.states.queued ?? 0) > 0 && html`<span class="badge bad">no worker</span>`}<div class="sub">${[one.policy === "priority" && "by priority", one.on_lost && one.on_lost !== "retry" && `lost runs: ${one.on_lost}`, one.timeout && `timeout ${span(one.timeout)}`, tiers(one), one.why].filter(Boolean).join(" · ")}</div>` },
      ...["queued", "running", "scheduled", "blocked", "failed"].map((state) => ({ name: state[0].toUpperCase() + state.slice(1), num: true, wide: state === "blocked", show: (/** @type {any} */ one) => html`<${Link} to=${`/jobs?q=queue:${one.queue} state:${state}`}>${number(one.states[state] ?? 0)}<//>` })),
      { name: "Slots", num: true, show: (/** @type {any} */ one) => number(one.slots) },
      { name: "A new job waits", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${NewWait} api=${api} queue=${one.queue} tenant=${tenant} />` },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing">${one.paused ? html`<${Action} run=${() => change(one.queue, { paused: false }).then(() => `${one.queue} goes on`)}>Resume<//>` : html`<${Action} run=${pause(one)}>Pause<//>`} <${Action} run=${edit(one)}>Edit<//></div>` }] : []),
    ]} /></section>`;
}

/** @param {any} props */
export function Workers({ tenant }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/workers"), [tenant]);
  const nodes = new Set((list.data ?? []).map((/** @type {any} */ one) => one.node));
  return html`<div class="head"><h1>Workers</h1>${list.data && html`<span class="dim">${list.data.length} on ${nodes.size} ${nodes.size === 1 ? "node" : "nodes"}</span>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} rows=${list.data} of=${(/** @type {any} */ one) => one.id} empty=${html`<${Empty} text="No worker is alive. Start one:" command="windlass worker MODULE:APP" />`} columns=${[
      { name: "Worker", show: (/** @type {any} */ one) => html`${one.name} ${one.draining && html`<span class="badge warn">draining</span>`}<div class="sub">${one.node}, process ${one.pid}${one.url ? `, pushed to ${one.url}` : ""}</div>` },
      { name: "Takes from", show: (/** @type {any} */ one) => html`${one.queues.join(", ")}<div class="sub">${[one.tasks ? one.tasks.slice(0, 8).join(", ") + (one.tasks.length > 8 ? " …" : "") : "any task", one.handlers && "handlers", one.offers.length && `offers ${one.offers.join(", ")}`].filter(Boolean).join(" · ")}</div>` },
      { name: "Running", tight: true, show: (/** @type {any} */ one) => html`<${Link} to=${`/jobs?q=worker:${one.id} state:running`}>${one.running} of ${one.slots}<//><div class="bar"><i style=${{ width: `${Math.min(100, (100 * one.running) / one.slots)}%` }}></i></div>` },
      { name: "Memory", num: true, wide: true, show: (/** @type {any} */ one) => (one.usage ? bytes(one.usage.memory) : "") },
      { name: "CPU", num: true, wide: true, show: (/** @type {any} */ one) => (one.usage ? `${Math.round(one.usage.cpu * 100)} %` : "") },
      { name: "Since", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.registered_at} />` },
      { name: "Seen", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.seen_at} />` },
    ]} /></section>`;
}

/** @param {any} one */
const times = (one) => (one.every ? `every ${span(one.every)}` : `${one.cron} ${one.tz ?? "UTC"}`);

/** @param {any} props */
export function Schedules({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/schedules"), [tenant]);
  const of = (/** @type {any} */ one) => queue(one.tenant);
  const edit = (/** @type {any} */ one) => async () => {
    const given = await ask({ title: one ? `Change ${one.name}` : "New schedule", go: "Save", text: one?.app ? `The code of ${one.app} declares it; the change stays over deployments.` : "", fields: [
      ...(one ? [] : [{ name: "name", label: "Name", required: true }, { name: "task", label: "Task", required: true }, { name: "payload", label: "Payload (JSON)", value: "null" }]),
      { name: "cron", label: "Cron (minute hour day month weekday)", value: one?.cron ?? "" }, { name: "tz", label: "Time zone", value: one?.tz ?? "UTC" },
      { name: "every", label: "Or every so many seconds", value: one?.every ?? "" },
      { name: "overlap", label: "While an earlier job is pending", value: one?.overlap ?? "skip", options: ["skip", "queue", "replace"] },
      { name: "catch_up", label: "Missed ticks", value: one?.catch_up ?? "once", options: ["once", "skip", "all"] },
      { name: "start", label: "Not before (empty: at once)", value: one?.start ?? "", hint: "2026-12-24T00:00:00Z" }, { name: "end", label: "Not after (empty: forever)", value: one?.end ?? "", hint: "2026-12-24T00:00:00Z" },
      { name: "jitter", label: "Each job up to so many seconds later", value: one?.jitter ?? 0 }] });
    if (!given) return "";
    const job = one ? one.job : { task: given.task, payload: JSON.parse(given.payload || "null") };
    delete job.content_type;
    /** @type {any} */
    const body = { job, overlap: given.overlap, catch_up: given.catch_up, exact: one?.exact ?? false, jitter: Number(given.jitter || 0), ...(given.start ? { start: given.start } : {}), ...(given.end ? { end: given.end } : {}) };
    if (given.every) body.every = Number(given.every);
    else { body.cron = given.cron; body.tz = given.tz; }
    await (one ? of(one) : api).put(`/schedules/${one ? one.name : given.name}`, body);
    list.again();
    return "saved";
  };
  const act = (/** @type {any} */ one, /** @type {() => Promise<any>} */ what, /** @type {string} */ said) => async () => { await what(); list.again(); return said; };
  return html`<div class="head"><h1>Schedules</h1><span class="grow"></span>${can("operate") && tenant !== "-" && html`<${Action} kind="main" run=${edit(undefined)}>New schedule<//>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} rows=${list.data} of=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} empty=${html`<${Empty} text="No schedules. Declare one with @app.cron, or make one:" command="windlass schedules set nightly TASK --cron '0 3 * * *'" />`} columns=${[
      { name: "Schedule", show: (/** @type {any} */ one) => html`${one.name} ${one.paused && html`<span class="badge warn" title=${one.why}>paused</span>`} ${one.edited && html`<span class="tag">edited</span>`}<div class="sub">${times(one)} · ${one.job.task}${one.app ? ` · ${one.app}` : ""}</div>` },
      { name: "Next", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.next?.[0]} />` },
      { name: "Last runs", show: (/** @type {any} */ one) => html`<span class="row">${(one.runs ?? []).slice(0, 6).map((/** @type {any} */ run) => (run.job ? html`<a href=${`#/job/${one.tenant}/${run.job}`} title=${new Date(run.tick).toLocaleString()}><${State} state=${run.state ?? "gone"} /></a>` : html`<span class="badge" title=${`${new Date(run.tick).toLocaleString()}: ${run.note}`}>none</span>`))}</span>` },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing"><${Action} run=${act(one, () => of(one).post(`/schedules/${one.name}/run`), "queued")}>Run now<//>
        <${Action} run=${act(one, () => of(one).patch(`/schedules/${one.name}`, { paused: !one.paused }), one.paused ? "resumed" : "paused")}>${one.paused ? "Resume" : "Pause"}<//>
        <${Action} run=${edit(one)}>Edit<//>${(!one.app || one.edited) && html`<${Action} kind="danger" run=${act(one, () => of(one).remove(`/schedules/${one.name}`), "removed")}>${one.app ? "Undo edit" : "Remove"}<//>`}</div>` }] : []),
    ]} /></section>`;
}

/** @param {any} props */
export function Limits({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(async () => {
    const limits = await api.get("/limits");
    return tenant === "-" ? limits : Promise.all(limits.map((/** @type {any} */ one) => api.get(`/limits/${one.name}`)));
  }, [tenant], 3000);
  const make = async () => {
    const given = await ask({ title: "New limit", go: "Save", text: "A limit of that name is replaced.", fields: [{ name: "name", label: "Name", required: true }, { name: "task", label: "Task (empty: any)" }, { name: "queue", label: "Queue (empty: any)" }, { name: "running", label: "At most so many at once" }, { name: "rate", label: "Or so many starts per minute" }, { name: "key", label: "A bucket for each", hint: "payload.customer" }] });
    if (!given) return "";
    /** @type {any} */
    const body = { match: { ...(given.task ? { task: given.task } : {}), ...(given.queue ? { queue: given.queue } : {}) } };
    if (given.running) body.running = Number(given.running);
    if (given.rate) body.rate = { count: Number(given.rate), per: 60 };
    if (given.key) body.key = given.key;
    await api.put(`/limits/${given.name}`, body);
    list.again();
    return "saved";
  };
  const bound = (/** @type {any} */ one) => [one.running && `${one.running} at once`, one.rate && `${one.rate.count} per ${span(one.rate.per ?? 1)}`, one.key && `for each ${one.key}`].filter(Boolean).join(", ");
  const match = (/** @type {any} */ one) => (Object.keys(one.match ?? {}).length ? JSON.stringify(one.match) : "all jobs");
  return html`<div class="head"><h1>Limits</h1><span class="grow"></span>${can("operate") && html`<${Action} kind="main" run=${make}>New limit<//>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} rows=${list.data} of=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} empty=${html`<${Empty} text="No limits: every job may start as soon as a slot is free." command="windlass limits set mailer --task send_mail --running 5" />`} columns=${[
      { name: "Limit", show: (/** @type {any} */ one) => html`${one.name} ${one.paused && html`<span class="badge warn" title=${one.why}>paused</span>`}<div class="sub">${bound(one)} · <span class="mono">${match(one)}</span></div>` },
      { name: "In use", show: (/** @type {any} */ one) => (one.buckets ?? []).slice(0, 5).map((/** @type {any} */ bucket) => html`<div>${bucket.key === null || bucket.key === undefined ? "" : html`<code>${bucket.key}</code> `}${number(bucket.running ?? 0)} running, ${number(bucket.waiting ?? 0)} held back</div>`) },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing"><${Action} run=${async () => { await queue(one.tenant).patch(`/limits/${one.name}`, { paused: !one.paused }); list.again(); return one.paused ? "resumed" : "paused"; }}>${one.paused ? "Resume" : "Pause"}<//>
        <${Action} kind="danger" run=${async () => { if (!(await ask({ title: `Remove ${one.name}?`, text: "Jobs that it holds back may start at once.", go: "Remove", danger: true }))) return ""; await queue(one.tenant).remove(`/limits/${one.name}`); list.again(); return "removed"; }}>Remove<//></div>` }] : []),
    ]} /></section>`;
}

/** @param {any} props */
export function Handlers({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/handlers"), [tenant], 5000);
  const [open, set] = useState("");
  const shown = useAsked(() => (open ? queue(open.split("/")[0]).get(`/handlers/${open.split("/")[1]}`) : Promise.resolve(null)), [open], 0).data;
  const upload = async () => {
    const given = await ask({ title: "Upload a handler", go: "Upload", fields: [{ name: "task", label: "Task", required: true }, { name: "lang", label: "Language", value: "python", options: ["python", "node", "php", "sh", "http"] }, { name: "body", label: "Source, or the URL", long: true, value: "def run(payload):\n    return payload\n" }] });
    if (!given) return "";
    await api.put(`/handlers/${given.task}`, { lang: given.lang, body: given.body });
    list.again();
    return "uploaded";
  };
  const attempt = (/** @type {any} */ one) => async () => {
    const given = await ask({ title: `Try ${one.task}`, go: "Queue", fields: [{ name: "payload", label: "Payload (JSON)", long: true, value: "null" }] });
    if (!given) return "";
    const made = await queue(one.tenant).post("/jobs", { task: one.task, payload: JSON.parse(given.payload) });
    location.hash = `/job/${one.tenant}/${made.id}`;
    return "queued";
  };
  return html`<div class="head"><h1>Handlers</h1><span class="grow"></span>${can("operate") && tenant !== "-" && html`<${Action} kind="main" run=${upload}>Upload<//>`}</div><${Fault} fault=${list.fault} />
    <div class="stack"><section class="panel"><${Table} rows=${list.data} of=${(/** @type {any} */ one) => `${one.tenant}/${one.task}`} empty=${html`<${Empty} text="No code is stored in this queue." command="windlass handlers set TASK FILE" />`} columns=${[
      { name: "Task", show: (/** @type {any} */ one) => html`<button class="plain" onClick=${() => set(open === `${one.tenant}/${one.task}` ? "" : `${one.tenant}/${one.task}`)}>${one.task}</button>` },
      { name: "Language", show: (/** @type {any} */ one) => one.lang },
      { name: "Version", num: true, show: (/** @type {any} */ one) => one.version },
      { name: "Since", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.created_at} />` },
      ...(can("enqueue") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing"><${Action} run=${attempt(one)}>Try<//></div>` }] : []),
    ]} /></section>${shown && html`<${Panel} title=${`Source of ${shown.task}, version ${shown.version}`}><div class="body"><pre>${shown.body}</pre></div><//>`}</div>`;
}

/** @param {any} props */
export function Tokens({ tenant }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/tokens"), [tenant], 5000);
  const now = useNow(60000);
  const [made, set] = useState("");
  const add = async () => {
    const given = await ask({ title: "New token", go: "Make", fields: [{ name: "scopes", label: "Scopes", value: "enqueue read" }, { name: "days", label: "Valid for so many days (empty: forever)" }, { name: "note", label: "What it is for" }, ...(tenant === "-" ? [{ name: "tenant", label: "Tenant", value: "default" }] : [])] });
    if (!given) return "";
    const issued = await queue(given.tenant ?? tenant).post("/tokens", { scopes: given.scopes.split(/[\s,]+/), note: given.note, ...(given.days ? { expires: 86400 * Number(given.days) } : {}) });
    set(issued.token);
    list.again();
    return "";
  };
  return html`<div class="head"><h1>Tokens</h1><span class="grow"></span><${Action} kind="main" run=${add}>New token<//></div><${Fault} fault=${list.fault} />
    <div class="stack">${made && html`<div class="note-line run">It is shown only this once: <code>${made}</code></div>`}<section class="panel"><${Table} rows=${list.data} of=${(/** @type {any} */ one) => one.key} empty=${html`<${Empty} text="No tokens. On this machine the server's own token is used." command="windlass tokens add enqueue read" />`} columns=${[
      { name: "Token", show: (/** @type {any} */ one) => html`<code>${one.key}</code><div class="sub">${one.note}</div>` },
      { name: "Tenant", show: (/** @type {any} */ one) => one.tenant },
      { name: "Scopes", show: (/** @type {any} */ one) => one.scopes.join(" ") },
      { name: "Made", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.created_at} />` },
      { name: "Expires", tight: true, show: (/** @type {any} */ one) => (one.expires_at ? html`<${Time} at=${one.expires_at} />${new Date(one.expires_at).getTime() < now ? html` <span class="badge bad">expired</span>` : ""}` : "never") },
      { name: "", tight: true, show: (/** @type {any} */ one) => html`<${Action} kind="danger" run=${async () => { if (!(await ask({ title: "Remove this token?", text: "It stops working within a second.", go: "Remove", danger: true }))) return ""; await queue(one.tenant).remove(`/tokens/${one.key}`); list.again(); return "removed"; }}>Remove<//>` },
    ]} /></section></div>`;
}

/** @param {any} props */
export function Audit({ tenant }) {
  const list = useAsked(() => queue(tenant).get("/audit", { limit: 200 }), [tenant], 4000);
  const what = (/** @type {any} */ one) => [one.name, one.ids?.length ? "" : one.match && (Object.keys(one.match).length ? JSON.stringify(one.match) : "all jobs"), one.details, one.error && `stopped: ${one.error}`].filter(Boolean).join("  ");
  return html`<div class="head"><h1>Audit</h1><span class="dim">what was changed by hand, newest first</span></div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} rows=${list.data?.entries} of=${(/** @type {any} */ one) => `${one.at}${one.action}${one.name}${one.ids}`} empty=${html`<${Empty} text="Nothing was changed by hand yet." />`} columns=${[
      { name: "When", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.at} />` },
      { name: "Who", tight: true, show: (/** @type {any} */ one) => html`${one.by}<div class="sub">${one.note}</div>` },
      { name: "What", tight: true, show: (/** @type {any} */ one) => one.action },
      { name: "Jobs", num: true, show: (/** @type {any} */ one) => (one.count === null || one.count === undefined ? "" : number(one.count)) },
      { name: "", show: (/** @type {any} */ one) => html`<span class="mono">${what(one)}</span> ${(one.ids ?? []).slice(0, 3).map((/** @type {string} */ id) => html`<${JobLink} id=${id} tenant=${one.tenant} /> `)}` },
    ]} /></section>`;
}
