// @ts-check
/** The first page: whether all is well, what happened before, and what holds jobs up. */

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes, number, queue, span, word } from "./api.js";
import { Action, Chart, Empty, Fault, JobsLink, Link, Panel, Since, Table, Time, Use, moves, useAsked } from "./parts.js";

/** @param {any} stats @param {string} state */
const total = (stats, state) => stats.queues.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + (one.states[state] ?? 0), 0);

/** Queues with their waits, and with what an answer leaves out because it is the default. @param {any} api */
export const queuesOf = async (api) => (await api.get("/queues", { waits: true })).map((/** @type {any} */ one) => ({ states: {}, slots: 0, workers: 0, ...one }));

/** @type {Record<string, {name: string, step: string, seconds: number, points: number, chart: number}>} */
const RANGES = {
  hour: { name: "1 h", step: "minute", seconds: 60, points: 60, chart: 60 },
  day: { name: "24 h", step: "minute", seconds: 60, points: 1439, chart: 1440 },
  month: { name: "30 d", step: "hour", seconds: 3600, points: 743, chart: 744 },
};

/** @param {any} point */
const failed = (point) => (point.failed ?? 0) + (point.error ?? 0);

const RUNS = [
  { name: "ok", kind: "ok", of: (/** @type {any} */ point) => point.ok ?? 0 },
  { name: "to run again", kind: "retry", of: (/** @type {any} */ point) => point.retry ?? 0 },
  { name: "failed", kind: "bad", of: failed },
];
const LOAD = [
  { name: "queued", kind: "retry", of: (/** @type {any} */ point) => point.waiting ?? 0 },
  { name: "running", kind: "run", of: (/** @type {any} */ point) => point.running ?? 0 },
];
const ALIVE = [{ name: "alive", kind: "ok", of: (/** @type {any} */ point) => point.workers ?? 0 }];

/** @param {any} props */
export function Overview({ tenant, stats, who, can }) {
  const api = queue(tenant);
  const [range, setRange] = useState("hour");
  const chosen = RANGES[range];
  const queues = useAsked(() => queuesOf(api), [tenant], 3000, moves);
  const workers = useAsked(() => api.get("/workers"), [tenant], 4000).data;
  const history = useAsked(() => api.get("/history", { step: chosen.step, points: chosen.points }), [tenant, range], 15000).data;
  const health = useAsked(() => queue(who.tenant).get("/health"), [who.tenant], 10000).data;
  const points = history?.points ?? [];
  const sum = (/** @type {(point: any) => number} */ of) => points.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + of(one), 0);
  const slots = (workers ?? []).reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one.draining ? one.running : one.slots), 0);
  const last = Math.floor(Date.now() / 1000 / chosen.seconds) * chosen.seconds, first = last - chosen.chart * chosen.seconds;
  if (stats && !stats.queues.length && workers && !workers.length) return html`<${Start} />`;
  const oldest = (queues.data ?? []).map((/** @type {any} */ one) => one.waits?.oldest).filter(Boolean).sort()[0];
  const plot = { points, step: chosen.seconds, from: first, to: last };
  const ended = sum((one) => RUNS.reduce((all, series) => all + series.of(one), 0)), bad = sum(failed);
  const cards = stats && [
    ["Running", "running", slots ? html`of ${number(slots)} slots<${Use} used=${total(stats, "running")} of=${slots} label=${`${number(total(stats, "running"))} of ${number(slots)} slots are in use`} />` : "no workers"],
    ["Queued", "queued", oldest ? html`oldest for <${Since} at=${oldest} />` : "nothing waits"],
    ["Scheduled", "scheduled", "for a time, or to run again"],
    ["Blocked", "blocked", "wait for other jobs"],
    ["Failed", "failed", "kept"],
  ];
  return html`<div class="head"><h1>Overview</h1><span class="grow"></span><div class="row" role="group" aria-label="Period">${Object.entries(RANGES).map(([name, one]) => html`<button aria-pressed=${name === range} onClick=${() => setRange(name)}>${one.name}</button>`)}</div></div>
    <${Fault} fault=${queues.fault} /><div class="stack"><${Troubles} tenant=${tenant} queues=${queues.data ?? []} journal=${health?.journal} can=${can} again=${queues.again} />
    <div class="cards">${(cards ?? []).map((/** @type {any[]} */ [name, state, note]) => html`<a class="card" href=${`#/jobs?q=state:${state}`}><div class="label">${name}</div><div class="value">${number(total(stats, state))}</div><div class="note">${note}</div></a>`)}
      <div class="card"><div class="label">Runs, ${chosen.name}</div><div class="value">${number(ended)}</div><div class="note">${bad ? `${number(bad)} failed, ${((100 * bad) / ended).toFixed(1)} %` : "none failed"}</div></div>
      ${health?.store && html`<${Store} health=${health} />`}</div>
    <div class="charts"><${Panel} title="Runs"><div class="body"><${Chart} ...${plot} series=${RUNS} label="Runs" /></div><//>
      <${Panel} title="Jobs"><div class="body"><${Chart} ...${plot} series=${LOAD} label="Jobs" lines=${true} /></div><//></div>
    <${Panel} title="Queues"><${QueueTable} rows=${queues.data} tenant=${tenant} /><//>
    <div class="charts"><${HoldingLimits} tenant=${tenant} /><${Panel} title="Workers" actions=${html`<${Link} to="/workers">All<//>`}><div class="body"><${Chart} ...${plot} series=${ALIVE} label="Workers" lines=${true} /><${WorkerChanges} tenant=${tenant} /></div><//></div></div>`;
}

/** Jobs that always are on their way from the journal into the store. */
const FEW = 1000;

/** What needs a hand, each with what to do. @param {any} props */
function Troubles({ tenant, queues, journal, can, again }) {
  const health = useAsked(async () => { const answer = await fetch("/readyz"); return { ok: answer.ok, text: (await answer.text()).trim() }; }, [tenant], 10000).data;
  const tasks = useAsked(() => queue(tenant).get("/tasks"), [tenant], 10000);
  const stopped = (tasks.data ?? []).filter((/** @type {any} */ one) => one.paused);
  const workers = useAsked(() => queue(tenant).get("/workers"), [tenant], 10000);
  const resting = (workers.data ?? []).filter((/** @type {any} */ one) => one.orders.pause?.paused);
  const alone = queues.filter((/** @type {any} */ one) => (one.states.queued ?? 0) > 0 && !one.workers);
  const paused = queues.filter((/** @type {any} */ one) => one.paused);
  const detail = health && !health.ok ? problem(health.text) : health && health.text !== "ok" ? health.text : "";
  return html`${detail && html`<div class="note-line bad" role="status"><strong>Store:</strong> ${detail}</div>`}
    ${journal && (journal.fault || journal.waiting > FEW) && html`<div class="note-line warn" role="status"><strong>Journal:</strong> ${number(journal.waiting)} accepted ${journal.waiting === 1 ? "job is" : "jobs are"} not in the store yet${journal.fault ? `: ${journal.fault}` : ""}. They are safe on this server's disk.</div>`}
    ${alone.length > 0 && html`<div class="note-line warn"><strong>No worker</strong> takes jobs from ${alone.slice(0, 6).map((/** @type {any} */ one, /** @type {number} */ place) => html`${place ? ", " : ""}<${JobsLink} q=${`state:queued ${word("queue", one.queue)}`}>${one.queue}<//> (${number(one.states.queued)})`)}. Start one: <code>windlass worker MODULE:APP -q ${alone[0].queue}</code></div>`}
    ${paused.slice(0, 4).map((/** @type {any} */ one) => html`<${Pause} key=${queueKey(one)} one=${one} kind="queue" name=${one.queue} may=${can("operate")} again=${again} />`)}
    ${stopped.slice(0, 4).map((/** @type {any} */ one) => html`<${Pause} key=${one.task} one=${one} kind="task" name=${one.task} may=${can("operate") && (one.tenant === tenant || tenant === "-")} again=${tasks.again} />`)}
    ${resting.slice(0, 4).map((/** @type {any} */ one) => html`<${Pause} key=${one.id} one=${{ ...one.orders.pause, tenant: one.tenant }} kind="worker" name=${one.name} id=${one.id} may=${can("operate") && (one.tenant === tenant || tenant === "-")} again=${workers.again} />`)}`;
}

/** A queue, a task or a worker that is paused, and a button that ends it. @param {any} props */
const Pause = ({ one, kind, name, id, may, again }) => html`<div class="note-line warn row"><span><strong>Paused:</strong> ${kind} ${id ? html`<${Link} to="/workers">${name}<//>` : html`<${JobsLink} q=${`state:queued ${word(kind, name)}`}>${name}<//>`}${one.why ? ` (${one.why})` : ""}${one.until ? html`, goes on <${Time} at=${one.until} />` : ""}</span>
  ${may && html`<${Action} run=${async () => { await queue(one.tenant).patch(`/${kind}s/${id ?? name}`, { paused: false }); again(); return `${name} goes on`; }}>Resume<//>`}</div>`;

/** What an answer that says no says. @param {string} text */
function problem(text) {
  try {
    return JSON.parse(text).detail ?? text;
  } catch {
    return text;
  }
}

/** Limits that hold jobs back. @param {any} props */
function HoldingLimits({ tenant }) {
  const limits = useAsked(() => limitsOf(tenant), [tenant], 6000).data;
  const holding = (limits ?? []).filter((one) => one.paused || one.waiting > 0);
  return html`<${Panel} title="Limits that hold jobs back" actions=${html`<${Link} to="/limits">All<//>`}><${Table} label="Limits that hold jobs back" rows=${limits && holding} of=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} empty=${html`<${Empty} text=${limits?.length ? "None of the limits is reached." : "There are no limits."} />`} columns=${[
    { name: "Limit", show: (/** @type {any} */ one) => html`<${Link} to="/limits">${one.name}<//> ${one.paused && html`<span class="badge warn">paused</span>`}` },
    { name: "Running", num: true, show: (/** @type {any} */ one) => html`${number(one.inUse)}${one.running ? html`<span class="dim"> / ${number(one.running)}</span>` : ""}` },
    { name: "Waiting", num: true, show: (/** @type {any} */ one) => number(one.waiting) },
  ]} /><//>`;
}

const MOST_LIMITS = 20;

/** Limits with how they stand. @param {string} tenant */
export async function limitsOf(tenant) {
  const limits = await queue(tenant).get("/limits");
  const cards = await Promise.all(limits.slice(0, MOST_LIMITS).map((/** @type {any} */ one) => queue(one.tenant).get(`/limits/${one.name}`).catch(() => one)));
  return [...cards, ...limits.slice(MOST_LIMITS)].map((one) => ({
    ...one,
    inUse: (one.buckets ?? []).reduce((/** @type {number} */ all, /** @type {any} */ bucket) => all + (bucket.running ?? 0), 0),
    waiting: (one.buckets ?? []).reduce((/** @type {number} */ all, /** @type {any} */ bucket) => all + (bucket.waiting ?? 0), 0),
  }));
}

/** How full the store is, and what waits in front of it. @param {any} props */
function Store({ health: { store, journal } }) {
  const most = store.free === undefined ? 0 : store.used + store.free;
  return html`<div class="card"><div class="label">Store</div><div class="value">${bytes(store.used)}</div>
    <div class="note">${store.kind}${most ? `, ${bytes(store.free)} free` : ""}${journal ? html`<br />journal: ${journal.waiting ? number(journal.waiting) : "none"} waiting` : ""}${most ? html`<${Use} used=${store.used} of=${most} label=${`${bytes(store.used)} of ${bytes(most)}`} />` : ""}</div></div>`;
}

/** @type {Record<string, string>} */
const CHANGES = { joined: "ok", stopped: "", lost: "bad" };

/** The workers that came and went last. @param {any} props */
function WorkerChanges({ tenant }) {
  const found = useAsked(() => queue(tenant).get("/workers/changes", { limit: 6 }), [tenant], 5000).data;
  if (!found?.length) return null;
  return html`<ul class="plain-list gap-small" aria-label="Workers that came and went">${found.map((/** @type {any} */ one) => html`<li class="row" key=${`${one.worker} ${one.event}`}><span class=${`badge ${CHANGES[one.event]}`} title=${one.event === "lost" ? "It fell silent; when it runs again it joins as a new one." : ""}>${one.event}</span><span class="clip" title=${one.worker}>${one.name}</span><span class="dim small">${one.node}</span><span class="grow"></span><span class="dim small"><${Time} at=${one.at} /></span></li>`)}</ul>`;
}

const Start = () => html`<div class="head"><h1>Welcome</h1></div><section class="panel"><div class="body stack">
  <div>This queue has no jobs and no workers yet. Write a task:</div><pre>from windlass import Windlass

app = Windlass()


@app.task
def add(a: int, b: int) -> int:
    return a + b</pre><div>Start a worker, and queue a job:</div><pre>windlass worker shop:app
windlass enqueue add '[1, 2]' --wait</pre></div></section>`;

/** @param {any} one */
export const queueKey = (one) => `${one.tenant}/${one.queue}`;

/** A queue's name with what is wrong with it. @param {{one: any, tenant: string}} props */
export const QueueName = ({ one, tenant }) => html`<${JobsLink} q=${word("queue", one.queue)}>${one.queue}<//> ${tenant === "-" && html`<span class="tag">${one.tenant}</span> `}${one.paused && html`<span class="badge warn" title=${one.why ?? ""}>paused</span> `}${!one.workers && (one.states.queued ?? 0) > 0 && html`<span class="badge bad">no worker</span>`}`;

/** How long a job that came now would wait. @param {{one: any}} props */
export function NewWait({ one }) {
  const waits = one.waits;
  if (!waits) return html`<span class="dim">–</span>`;
  if (waits.seconds === null || waits.seconds === undefined) return html`<span class="dim" title="unknown">${waits.why === "worker" ? "no worker" : waits.why === "pause" ? "paused" : "–"}</span>`;
  return waits.seconds < 0.05 ? "none" : html`about ${span(waits.seconds)}`;
}

/** The places of each tier, and how many are taken. @param {{one: any}} props */
export const Tiers = ({ one }) => html`${(one.tiers ?? []).map((/** @type {any} */ tier) => {
  const cap = one.caps?.[tier.name] ?? 0, used = one.waits?.tiers?.[tier.name] ?? 0;
  return html`<div class="tier"><span>${tier.name} <span class="dim small">≤ ${span(tier.seconds)}</span></span><${Use} used=${used} of=${cap} label=${`${used} of ${cap} places of tier ${tier.name} are taken`} /><span class="figures small">${used} / ${cap}</span></div>`;
})}`;

/** @param {any} props */
function QueueTable({ rows, tenant }) {
  const tiers = (rows ?? []).some((/** @type {any} */ one) => one.tiers?.length);
  return html`<${Table} label="Queues" rows=${rows} of=${queueKey} empty=${html`<${Empty} text="No queue has jobs, workers or settings." />`} columns=${[
    { name: "Queue", show: (/** @type {any} */ one) => html`<${QueueName} one=${one} tenant=${tenant} />` },
    { name: "Queued", num: true, show: (/** @type {any} */ one) => number(one.states.queued ?? 0) },
    { name: "Running", num: true, show: (/** @type {any} */ one) => html`${number(one.states.running ?? 0)}<span class="dim"> / ${number(one.slots)}</span>` },
    { name: "Failed", num: true, wide: true, show: (/** @type {any} */ one) => number(one.states.failed ?? 0) },
    ...(tiers ? [{ name: "Tiers", wide: true, show: (/** @type {any} */ one) => html`<${Tiers} one=${one} />` }] : []),
    { name: "Oldest waits", tight: true, show: (/** @type {any} */ one) => html`<${Since} at=${one.waits?.oldest} />` },
    { name: "New job waits", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${NewWait} one=${one} />` },
  ]} />`;
}
