// @ts-check
/** Queues, workers, schedules, limits, handlers, tokens and the audit log. */

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { bytes, clock, number, queue, span, used, word } from "./api.js";
import { NewWait, QueueName, Tiers, limitsOf, queueKey, queuesOf } from "./overview.js";
import { Action, Empty, Fault, JobLink, JobsLink, Panel, Paused, Since, Spark, Table, Time, Use, ask, exact, json, moves, pause, pretty, sure, useAsked, useNow } from "./parts.js";

/** Tiers as lines of a form: `short 10s 100%`. @param {any[]} tiers */
const tierLines = (tiers) => tiers.map((one) => `${one.name} ${one.seconds} ${one.cap ?? "100%"}`).join("\n");

/** @param {string} text */
function readTiers(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const [name, seconds, cap = "100%"] = line.trim().split(/\s+/);
    if (!(Number(seconds) > 0)) throw new Error(`"${line.trim()}" is no tier: write its name, its seconds and its cap, such as: short 10 100%`);
    return { name, seconds: Number(seconds), cap: cap.endsWith("%") ? cap : Number(cap) };
  });
}

const DAY = 86400;

/** Settings of a queue that a form edits: their name, what is shown, and what is sent. @type {[string, import("./parts.js").Field, (given: any) => any][]} */
const SETTINGS = [
  ["policy", { name: "policy", label: "Order: by priority, or fair turns of tenants and tasks", options: ["", "priority", "fair"] }, (given) => given],
  ["on_lost", { name: "on_lost", label: "When a run is lost", options: ["retry", "requeue", "fail", "adopt"] }, (given) => given],
  ["timeout", { name: "timeout", label: "Timeout in seconds (empty: none)", number: true }, Number],
  ["keep_success", { name: "keep_success", label: `Seconds that a success is kept (empty: a day, ${DAY})`, number: true }, Number],
  ["keep_failure", { name: "keep_failure", label: `Seconds that a failure is kept (empty: a week, ${7 * DAY})`, number: true }, Number],
  ["tiers", { name: "tiers", label: "Tiers, shortest first: name, seconds, cap", long: true, hint: "short 10 100%\nlong 600 25%" }, readTiers],
  ["announcement", { name: "announcement", label: "Announcement" }, (given) => given],
  ["isolate", { name: "isolate", label: "Each job in a process of its own", flag: true }, (given) => given],
];

/** What a form shows of a queue's settings. @param {any} one @param {string} name */
function setting(one, name) {
  if (name === "tiers") return tierLines(one.tiers ?? []);
  if (name === "isolate") return !!one.isolate;
  return String(one[name] ?? (name === "on_lost" ? "retry" : ""));
}

/** @param {any} props */
export function Queues({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => queuesOf(api), [tenant], 2000, moves);
  const past = useAsked(() => api.get("/history", { points: 60, by_queue: true }), [tenant], 15000).data;
  const change = async (/** @type {any} */ one, /** @type {any} */ body) => { await queue(one.tenant).patch(`/queues/${one.queue}`, body); list.again(); };
  const edit = (/** @type {any} */ one) => async () => {
    const done = await ask({
      title: `Settings of ${one.queue}`, go: "Save", fields: SETTINGS.map(([name, field]) => ({ ...field, value: setting(one, name) })),
      act: async (given) => {
        /** @type {any} */
        const body = {}, clear = [];
        for (const [name, , read] of SETTINGS) {
          if (given[name] === setting(one, name)) continue;
          if (given[name] === "") clear.push(name);
          else body[name] = read(given[name]);
        }
        if (clear.length) body.clear = clear;
        if (Object.keys(body).length) await change(one, body);
      },
    });
    return done ? "saved" : "";
  };
  const about = (/** @type {any} */ one) => [one.policy && (one.policy === "fair" ? "fair turns" : "by priority"), one.on_lost && one.on_lost !== "retry" && `lost runs: ${one.on_lost}`, one.timeout && `timeout ${span(one.timeout)}`, one.isolate && "a process for each job", one.announcement].filter(Boolean).join(" · ");
  return html`<div class="head"><h1>Queues</h1></div><${Fault} fault=${list.fault} /><section class="panel">
    <${Table} label="Queues" rows=${list.data} of=${queueKey} empty=${html`<${Empty} text="No queue has jobs, workers or settings." command="windlass enqueue TASK --queue NAME" />`} columns=${[
      { name: "Queue", show: (/** @type {any} */ one) => html`<${QueueName} one=${one} tenant=${tenant} /><${Paused} one=${one} /><div class="sub">${about(one)}</div><${Tiers} one=${one} />` },
      ...["queued", "running", "scheduled", "blocked", "failed"].map((state) => ({ name: state[0].toUpperCase() + state.slice(1), num: true, wide: state === "blocked" || state === "scheduled", show: (/** @type {any} */ one) => html`${one.states[state] ? html`<${JobsLink} q=${`state:${state} ${word("queue", one.queue)}`}>${number(one.states[state])}<//>` : html`<span class="dim">0</span>`}${state === "running" ? html`<span class="dim"> / ${number(one.slots)}</span>` : ""}` })),
      { name: "Last hour", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Past} history=${past} one=${one} />` },
      { name: "Oldest waits", tight: true, show: (/** @type {any} */ one) => html`<${Since} at=${one.waits?.oldest} />` },
      { name: "New job waits", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${NewWait} one=${one} />` },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing">${one.paused ? html`<${Action} run=${() => change(one, { paused: false }).then(() => `${one.queue} goes on`)}>Resume<//>` : html`<${Action} run=${pause(one.queue, (body) => change(one, body))}>Pause<//>`} <${Action} run=${edit(one)}>Edit<//></div>` }] : []),
    ]} /></section>`;
}

/** The runs of a queue, minute by minute. @param {any} props */
function Past({ history, one }) {
  const own = (history?.queues ?? []).filter((/** @type {any} */ each) => each.queue === one.queue && [each.tenant, "-"].includes(one.tenant));
  if (!own.length) return html`<span class="dim">–</span>`;
  const sum = (/** @type {string} */ name) => own[0][name].map((/** @type {number} */ _, /** @type {number} */ place) => own.reduce((/** @type {number} */ all, /** @type {any} */ each) => all + each[name][place], 0));
  return html`<${Spark} all=${sum("ended")} bad=${sum("failed")} most=${60} />`;
}

/** @param {any} props */
export function Workers({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/workers"), [tenant]);
  /** @type {Map<string, any[]>} */
  const nodes = new Map();
  for (const one of list.data ?? []) nodes.set(one.node, [...(nodes.get(one.node) ?? []), one]);
  const sum = (/** @type {any[]} */ all, /** @type {(one: any) => number} */ of) => all.reduce((found, one) => found + of(one), 0);
  const sorted = [...nodes].sort((a, b) => (a[0] < b[0] ? -1 : 1));
  return html`<div class="head"><h1>Workers</h1>${list.data && html`<span class="dim">${number(list.data.length)} on ${nodes.size} ${nodes.size === 1 ? "node" : "nodes"}</span>`}</div><${Fault} fault=${list.fault} />
    ${list.data && !list.data.length ? html`<section class="panel"><${Empty} text="No worker is alive. Start one:" command="windlass worker MODULE:APP" /></section>` : ""}
    <div class="stack">${sorted.map(([node, all]) => html`<${Panel} key=${node} title=${node || "unnamed node"} actions=${html`<span class="dim small figures">${[`${number(sum(all, (one) => one.running))} of ${number(sum(all, (one) => one.slots))} slots`, all.some((one) => one.usage) && bytes(sum(all, (one) => one.usage?.memory ?? 0)), all.some((one) => one.usage) && `${Math.round(100 * sum(all, (one) => one.usage?.cpu ?? 0))} % of a CPU`].filter(Boolean).join(" · ")}</span>`}>
      <${WorkerTable} rows=${all} api=${api} orders=${(/** @type {any} */ one) => can("operate") && html`<${WorkerOrders} one=${one} api=${api} tenant=${tenant} />`} /><//>`)}</div>`;
}

/** @param {any} props */
function WorkerOrders({ one, api, tenant }) {
  if (tenant !== "-" && one.tenant !== tenant) return null; // it serves all tenants
  const change = (/** @type {any} */ pause) => api.patch(`/workers/${one.id}`, pause);
  const stop = async () => {
    const done = await ask({
      title: `Stop ${one.name}?`, text: "It takes no more jobs and exits once what runs has ended, or its grace is over. Whatever keeps it running may start another one in its place.", go: "Stop", danger: true,
      fields: [{ name: "now", label: "Give running jobs back at once", flag: true }],
      act: (given) => api.post(`/workers/${one.id}/stop`, { now: given.now }),
    });
    return done ? `${one.name} is ordered to stop` : "";
  };
  return html`<div class="doing">${one.orders.pause?.paused ? html`<${Action} run=${() => change({}).then(() => `${one.name} goes on`)}>Resume<//>` : html`<${Action} run=${pause(one.name, change)}>Pause<//>`} ${!one.url && html`<${Action} kind="danger" run=${stop}>Stop<//>`}</div>`;
}

/** Whether a worker takes jobs, and if not, why. @param {any} props */
function Draining({ one }) {
  const ordered = one.orders.stop ? "stopping" : one.orders.pause?.paused && !one.draining ? "pausing" : "";
  return html`${(ordered || one.draining) && html`<span class="badge warn">${ordered || "draining"}</span>`}<${Paused} one=${one.orders.pause ?? {}} />`;
}

/** @param {any} props */
function WorkerTable({ rows, api, orders }) {
  const [open, set] = useState("");
  const tasks = (/** @type {any} */ one) => (one.tasks ? one.tasks.slice(0, 6).join(", ") + (one.tasks.length > 6 ? ` and ${one.tasks.length - 6} more` : "") : "any task");
  return html`<${Table} label="Workers" rows=${rows} of=${(/** @type {any} */ one) => one.id} empty="" columns=${[
    { name: "Worker", show: (/** @type {any} */ one) => html`<span title=${one.id}>${one.name}</span> <${Draining} one=${one} /><div class="sub">${[one.pid && `process ${one.pid}`, one.app, one.url && `pushed to ${one.url}`, one.sandbox && `sandbox ${one.sandbox}`].filter(Boolean).join(" · ")}</div>
      ${Object.entries(one.unable ?? {}).map(([language, why]) => html`<div class="sub warn-text">cannot run ${language}: ${why}</div>`)}
      ${open === one.id && html`<${RunningJobs} api=${api} worker=${one.id} />`}` },
    { name: "Takes from", wide: true, show: (/** @type {any} */ one) => html`${one.queues.map((/** @type {string} */ name) => html`<${JobsLink} q=${word("queue", name)}>${name}<//> `)}<div class="sub">${[tasks(one), one.handlers && "handlers", one.offers?.length && `offers ${one.offers.join(", ")}`].filter(Boolean).join(" · ")}</div>` },
    { name: "Running", tight: true, show: (/** @type {any} */ one) => html`<button class="plain figures" aria-expanded=${open === one.id} onClick=${() => set(open === one.id ? "" : one.id)}>${one.running} of ${one.slots}</button><${Use} used=${one.running} of=${one.slots} label=${`${one.running} of ${one.slots} slots are in use`} />` },
    { name: "Memory", num: true, tight: true, show: (/** @type {any} */ one) => (one.usage ? bytes(one.usage.memory) : html`<span class="dim">–</span>`) },
    { name: "CPU", num: true, tight: true, show: (/** @type {any} */ one) => (one.usage ? `${Math.round(one.usage.cpu * 100)} %` : html`<span class="dim">–</span>`) },
    { name: "Since", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.registered_at} />` },
    { name: "Seen", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.seen_at} />` },
    ...(rows.some(orders) ? [{ name: "", tight: true, show: orders }] : []),
  ]} />`;
}

const MOST_RUNNING = 20;

/** @param {any} props */
function RunningJobs({ api, worker }) {
  const page = useAsked(() => api.get("/jobs", { worker, state: "running", limit: MOST_RUNNING, order: "newest" }), [worker], 2000).data;
  if (!page) return html`<div class="sub">…</div>`;
  if (!page.jobs.length) return html`<div class="sub">runs nothing now</div>`;
  return html`<ul class="plain-list gap-small">${page.jobs.map((/** @type {any} */ job) => html`<li class="row"><a href=${`#/job/${job.tenant}/${job.id}`}>${job.task}</a><span class="dim small">for <${Since} at=${job.started_at} /></span><span class="dim small">${[used(job.usage), job.progress?.note].filter(Boolean).join(" · ")}</span></li>`)}
    ${page.next && html`<li><${JobsLink} q=${`state:running worker:${worker}`}>all of them<//></li>`}</ul>`;
}

/** @param {any} one */
const times = (one) => (one.every ? `every ${span(one.every)}` : `${one.cron} ${one.tz ?? "UTC"}`);

/** @param {any} props */
export function Schedules({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/schedules"), [tenant], 2000, moves);
  const of = (/** @type {any} */ one) => queue(one.tenant);
  const edit = (/** @type {any} */ one) => async () => {
    const done = await ask({
      title: one ? `Change ${one.name}` : "New schedule", go: "Save", text: one?.app ? `The code of ${one.app} declares it; the change stays over deployments.` : "", fields: [
        ...(one ? [] : [{ name: "name", label: "Name", required: true }, { name: "task", label: "Task", required: true }]),
        { name: "payload", label: "Payload (JSON)", long: true, value: JSON.stringify(one?.job.payload ?? null, null, 2) },
        { name: "cron", label: "Cron (minute hour day month weekday)", value: one?.cron ?? "", hint: "0 3 * * *" }, { name: "tz", label: "Time zone", value: one?.tz ?? "UTC" },
        { name: "every", label: "Or every so many seconds", value: one?.every ?? "", number: true },
        { name: "overlap", label: "While an earlier job is pending", value: one?.overlap ?? "skip", options: ["skip", "queue", "replace"] },
        { name: "catch_up", label: "Missed ticks", value: one?.catch_up ?? "once", options: ["once", "skip", "all"] },
        { name: "start", label: "Not before (empty: at once)", value: one?.start ?? "", hint: "2026-12-24T00:00:00Z" }, { name: "end", label: "Not after (empty: forever)", value: one?.end ?? "", hint: "2026-12-24T00:00:00Z" },
        { name: "jitter", label: "Each job up to so many seconds later", value: one?.jitter ?? 0, number: true }],
      act: async (given) => {
        const job = { ...(one ? one.job : { task: given.task }), payload: json(given.payload, "The payload") };
        delete job.content_type;
        /** @type {any} */
        const body = { job, overlap: given.overlap, catch_up: given.catch_up, exact: one?.exact ?? false, jitter: Number(given.jitter || 0), ...(given.start ? { start: given.start } : {}), ...(given.end ? { end: given.end } : {}) };
        if (given.every) body.every = Number(given.every);
        else { body.cron = given.cron; body.tz = given.tz; }
        await (one ? of(one) : api).put(`/schedules/${one ? one.name : given.name}`, body);
      },
    });
    list.again();
    return done ? "saved" : "";
  };
  const act = (/** @type {() => Promise<any>} */ what, /** @type {string} */ said) => async () => { await what(); list.again(); return said; };
  const change = (/** @type {any} */ one, /** @type {any} */ body) => of(one).patch(`/schedules/${one.name}`, body).then(list.again);
  const removal = (/** @type {any} */ one) => async () => {
    if (!(await sure(one.app ? `Take back the changes to ${one.name}?` : `Remove ${one.name}?`, one.app ? "It is as its code declares it again." : "It makes no more jobs.", one.app ? "Take back" : "Remove"))) return "";
    return act(() => of(one).remove(`/schedules/${one.name}`), one.app ? "as declared again" : "removed")();
  };
  return html`<div class="head"><h1>Schedules</h1><span class="grow"></span>${can("operate") && tenant !== "-" && html`<${Action} kind="main" run=${edit(undefined)}>New schedule<//>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} label="Schedules" rows=${list.data} of=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} empty=${html`<${Empty} text="No schedules. Declare one with @app.cron, or make one:" command="windlass schedules set nightly TASK --cron '0 3 * * *'" />`} columns=${[
      { name: "Schedule", show: (/** @type {any} */ one) => html`<b>${one.name}</b> ${one.paused && html`<span class="badge warn">paused</span>`} ${one.edited && html`<span class="tag">edited</span>`}<div class="sub">${times(one)} · ${one.job.task}${one.app ? ` · ${one.app}` : ""}</div><${Paused} one=${one} />` },
      { name: "Next", tight: true, show: (/** @type {any} */ one) => html`<span title=${(one.next ?? []).map(exact).join("\n")}><${Time} at=${one.next?.[0]} /></span>` },
      { name: "Last runs", tight: true, show: (/** @type {any} */ one) => html`<${Runs} one=${one} />` },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing"><${Action} run=${act(() => of(one).post(`/schedules/${one.name}/run`), "queued")}>Run now<//>
        ${one.paused ? html`<${Action} run=${() => change(one, { paused: false }).then(() => `${one.name} goes on`)}>Resume<//>` : html`<${Action} run=${pause(one.name, (body) => change(one, body))}>Pause<//>`}
        <${Action} run=${edit(one)}>Edit<//>${(!one.app || one.edited) && html`<${Action} kind="danger" run=${removal(one)}>${one.app ? "Undo edit" : "Remove"}<//>`}</div>` }] : []),
    ]} /></section>`;
}

/** @param {string} from @param {string} to */
const between = (from, to) => span(Math.max(0, (new Date(to).getTime() - new Date(from).getTime()) / 1000));

/** What became of a tick, besides when that was. @param {any} run @returns {string[]} */
const became = (run) => [
  run.state ?? (run.job ? "" : "no job"), run.note,
  run.attempt === 1 && !run.joined && `${between(run.tick, run.started_at)} late`, run.attempt > 1 && `run ${run.attempt}`,
  run.finished_at && run.attempt && `took ${between(run.started_at, run.finished_at)}`, run.gone && "its record is gone",
].filter(Boolean);

/** A sign for each end, for those who do not see colours. @type {Record<string, string>} */
const SIGNS = { succeeded: "✓", failed: "✕", cancelled: "–", running: "▸", none: "○" };

/** The last ticks of a schedule, the newest at the right. @param {any} props */
function Runs({ one }) {
  const runs = one.runs ?? [], [newest] = runs;
  if (!newest) return html`<span class="dim">none yet</span>`;
  const cell = (/** @type {any} */ run) => {
    const kind = run.state ?? (run.job ? "" : "none"), text = [exact(run.tick), ...became(run)].join(", "), sign = SIGNS[kind] ?? "·";
    return run.job && !run.gone ? html`<a class=${`badge ${kind}`} href=${`#/job/${one.tenant}/${run.job}`} title=${text} aria-label=${text}>${sign}</a>` : html`<span class=${`badge ${kind}`} role="img" title=${text} aria-label=${text}>${sign}</span>`;
  };
  return html`<ol class="runs" aria-label=${`Last runs of ${one.name}`}>${[...runs].reverse().map((run) => html`<li key=${`${run.tick} ${run.job}`}>${cell(run)}</li>`)}</ol>
    <div class="sub"><${Time} at=${newest.tick} />: ${became(newest).join(", ")}</div>`;
}

/** @param {any} props */
export function Limits({ tenant, can }) {
  const list = useAsked(() => limitsOf(tenant), [tenant], 3000);
  const edit = (/** @type {any} */ one) => async () => {
    const done = await ask({
      title: one ? `Change ${one.name}` : "New limit", go: "Save", text: one ? "In force at once, for waiting jobs too." : "A limit of that name is replaced.",
      fields: [
        ...(one ? [] : [{ name: "name", label: "Name", required: true }]),
        { name: "match", label: "Which jobs, as JSON: task, queue, tag, payload (empty: all)", long: true, value: Object.keys(one?.match ?? {}).length ? JSON.stringify(one.match, null, 2) : "", hint: '{"task": "send_mail"}' },
        { name: "running", label: "At most so many at once", value: one?.running ?? "", number: true },
        { name: "count", label: "At most so many starts …", value: one?.rate?.count ?? "", number: true }, { name: "per", label: "… in so many seconds", value: one?.rate ? one.rate.per ?? 1 : 60, number: true },
        { name: "burst", label: "After a quiet time so many at once (empty: never more than that)", value: one?.rate?.burst ?? "", number: true },
        { name: "key", label: "A bucket for each", value: one?.key ?? "", hint: "payload.customer", suggested: ["tenant", "queue", "task", "payload."] }],
      act: async (given) => {
        /** @type {any} */
        const body = { match: json(given.match || "{}", "Which jobs") };
        if (given.running) body.running = Number(given.running);
        if (given.count) body.rate = { count: Number(given.count), per: Number(given.per || 1), ...(given.burst ? { burst: Number(given.burst) } : {}) };
        if (given.key) body.key = given.key;
        await queue(one?.tenant ?? tenant).put(`/limits/${one?.name ?? given.name}`, body);
      },
    });
    list.again();
    return done ? "saved" : "";
  };
  const change = (/** @type {any} */ one, /** @type {any} */ body) => queue(one.tenant).patch(`/limits/${one.name}`, body).then(list.again);
  const removal = (/** @type {any} */ one) => async () => {
    if (!(await sure(`Remove ${one.name}?`, `${number(one.waiting)} jobs that it holds back may start at once.`, "Remove"))) return "";
    await queue(one.tenant).remove(`/limits/${one.name}`);
    list.again();
    return "removed";
  };
  const bound = (/** @type {any} */ one) => [one.running && `${number(one.running)} at once`, one.rate && `${number(one.rate.count)} starts in ${span(one.rate.per ?? 1)}${one.rate.burst ? `, ${number(one.rate.burst)} after a quiet time` : ""}`, one.key && `for each ${one.key}`].filter(Boolean).join(", ");
  return html`<div class="head"><h1>Limits</h1><span class="grow"></span>${can("operate") && tenant !== "-" && html`<${Action} kind="main" run=${edit(undefined)}>New limit<//>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} label="Limits" rows=${list.data} of=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} empty=${html`<${Empty} text="No limits: every job may start as soon as a slot is free." command="windlass limits set mailer --task send_mail --running 5" />`} columns=${[
      { name: "Limit", show: (/** @type {any} */ one) => html`<b>${one.name}</b> ${one.paused && html`<span class="badge warn">paused</span>`} ${one.sorting && html`<span class="tag" title="Jobs that waited before it came are being sorted.">sorting</span>`}${tenant === "-" && html` <span class="tag">${one.tenant}</span>`}<div class="sub">${bound(one)}</div><${Matched} match=${one.match} /><${Paused} one=${one} />` },
      { name: "In use", show: (/** @type {any} */ one) => html`<${Buckets} one=${one} />` },
      { name: "Waiting", num: true, tight: true, show: (/** @type {any} */ one) => (one.waiting ? html`<b>${number(one.waiting)}</b>` : html`<span class="dim">0</span>`) },
      ...(can("operate") ? [{ name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing">${one.paused ? html`<${Action} run=${() => change(one, { paused: false }).then(() => `${one.name} goes on`)}>Resume<//>` : html`<${Action} run=${pause(one.name, (body) => change(one, body))}>Pause<//>`}
        <${Action} run=${edit(one)}>Edit<//><${Action} kind="danger" run=${removal(one)}>Remove<//></div>` }] : []),
    ]} /></section>`;
}

/** Which jobs a limit is about; a link to them where a query can say so. @param {any} props */
function Matched({ match }) {
  const entries = Object.entries(match ?? {});
  if (!entries.length) return html`<div class="sub">all jobs</div>`;
  const plain = entries.every(([name, value]) => ["task", "queue"].includes(name) && typeof value === "string");
  return html`<div class="sub">${plain ? html`<${JobsLink} q=${entries.map(([name, value]) => word(name, String(value))).join(" ")}>${entries.map(([name, value]) => `${name} ${value}`).join(", ")}<//>` : html`<code>${JSON.stringify(match)}</code>`}</div>`;
}

const MOST_BUCKETS = 6;

/** @param {any} props */
function Buckets({ one }) {
  const buckets = [...(one.buckets ?? [])].sort((a, b) => (b.waiting ?? 0) - (a.waiting ?? 0) || (b.running ?? 0) - (a.running ?? 0));
  if (!buckets.length) return html`<span class="dim">nothing</span>`;
  return html`${buckets.slice(0, MOST_BUCKETS).map((bucket) => html`<div class="tier"><span class="clip">${bucket.key === null || bucket.key === undefined ? "" : html`<code>${bucket.key}</code>`}</span>
      ${one.running ? html`<${Use} used=${bucket.running ?? 0} of=${one.running} label=${`${bucket.running ?? 0} of ${one.running} run`} />` : html`<span></span>`}
      <span class="figures small">${number(bucket.running ?? 0)}${one.running ? ` / ${number(one.running)}` : " running"}${bucket.waiting ? html`<span class="warn-text">, ${number(bucket.waiting)} held back</span>` : ""}${bucket.free_at ? html` <span class="dim">next <${Time} at=${bucket.free_at} /></span>` : ""}</span></div>`)}
    ${buckets.length > MOST_BUCKETS && html`<div class="sub">and ${buckets.length - MOST_BUCKETS}${buckets.length === 100 ? " or more" : ""} other buckets</div>`}`;
}

/** Earlier jobs whose payloads may be tried again. */
const MOST_SAMPLES = 4;

const SAMPLES = "def run(payload):\n    return payload\n";

/** @param {any} props */
export function Handlers({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/handlers"), [tenant], 5000);
  const [open, set] = useState(/** @type {any} */ (null));
  const upload = (/** @type {any} */ one) => async () => {
    const kept = one && await queue(one.tenant).get(`/handlers/${one.task}`);
    const done = await ask({
      title: one ? `A new version of ${one.task}` : "Upload a handler", go: "Upload", fields: [
        ...(one ? [] : [{ name: "task", label: "Task", required: true }]),
        { name: "lang", label: "Language", value: kept?.lang ?? "python", options: ["python", "node", "php", "sh", "http"] },
        { name: "body", label: "Source that defines run(payload); of sh a script, of http the URL", long: true, value: kept?.body ?? SAMPLES }],
      act: (given) => {
        const more = kept ? Object.fromEntries(["before", "beforeEach", "afterEach", "eid", "options"].filter((name) => kept[name] !== undefined).map((name) => [name, kept[name]])) : {};
        return queue(one?.tenant ?? tenant).put(`/handlers/${one?.task ?? given.task}`, { ...more, lang: given.lang, body: given.body });
      },
    });
    list.again();
    return done ? `version ${done.version} is in force` : "";
  };
  const attempt = (/** @type {any} */ one) => async () => {
    const at = queue(one.tenant);
    const last = can("read") ? (await at.get("/jobs", { task: one.task, order: "newest", limit: MOST_SAMPLES })).jobs : [];
    const samples = last.map((/** @type {any} */ job) => ({ name: `${job.state}, ${span(Math.max(1, (clock.now() - new Date(job.created_at).getTime()) / 1000))} old`, load: async () => JSON.stringify((await at.get(`/jobs/${job.id}`, { payload: true })).payload ?? null, null, 2) }));
    const made = await ask({ title: `Try ${one.task}`, go: "Queue", text: "A job of this task, in the queue default.", fields: [{ name: "payload", label: "Payload (JSON)", long: true, value: "null", samples }], act: (given) => at.post("/jobs", { task: one.task, payload: json(given.payload, "The payload") }) });
    if (!made) return "";
    location.hash = `/job/${one.tenant}/${made.id}`;
    return "queued";
  };
  const removal = (/** @type {any} */ one) => async () => {
    if (!(await sure(`Remove ${one.task}?`, "All its versions. Jobs of the task wait for another.", "Remove"))) return "";
    await queue(one.tenant).remove(`/handlers/${one.task}`);
    set(null);
    list.again();
    return "removed";
  };
  const key = (/** @type {any} */ one) => `${one.tenant}/${one.task}`;
  const shown = open && (list.data ?? []).find((/** @type {any} */ one) => key(one) === open);
  return html`<div class="head"><h1>Handlers</h1><span class="dim">code that is kept in the queue</span><span class="grow"></span>${can("admin") && tenant !== "-" && html`<${Action} kind="main" run=${upload(undefined)}>Upload<//>`}</div><${Fault} fault=${list.fault} />
    <div class="stack"><section class="panel"><${Table} label="Handlers" rows=${list.data} of=${key} empty=${html`<${Empty} text="No code is kept in this queue." command="windlass handlers set TASK FILE" />`} columns=${[
      { name: "Task", show: (/** @type {any} */ one) => html`<button class="plain link" aria-expanded=${open === key(one)} onClick=${() => set(open === key(one) ? null : key(one))}>${one.task}</button>${tenant === "-" && html` <span class="tag">${one.tenant}</span>`}${one.needs?.length ? html`<div class="sub">needs ${one.needs.join(", ")}</div>` : ""}` },
      { name: "Language", tight: true, show: (/** @type {any} */ one) => one.lang },
      { name: "Version", num: true, tight: true, show: (/** @type {any} */ one) => one.version },
      { name: "Since", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.created_at} />` },
      { name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing">${can("enqueue") && html`<${Action} run=${attempt(one)}>Try<//>`}${can("admin") && html`<${Action} run=${upload(one)}>Edit<//><${Action} kind="danger" run=${removal(one)}>Remove<//>`}</div>` },
    ]} /></section>${shown && html`<${Source} key=${key(shown)} one=${shown} />`}</div>`;
}

/** @param {any} props */
function Source({ one }) {
  const [version, set] = useState(one.version);
  const kept = useAsked(() => queue(one.tenant).get(`/handlers/${one.task}`, { version }), [one.task, version, one.version], 0);
  const handler = kept.data;
  const versions = handler?.versions ?? [];
  return html`<${Panel} title=${`Source of ${one.task}`} actions=${html`<label class="row small">Version <select onChange=${(/** @type {any} */ event) => set(Number(event.target.value))}>${versions.map((/** @type {any} */ each) => html`<option value=${each.version} selected=${each.version === version}>${each.version}, ${new Date(each.created_at).toLocaleString()}</option>`)}</select></label>`}>
    <div class="body stack"><${Fault} fault=${kept.fault} />${["before", "beforeEach", "body", "afterEach"].map((name) => handler?.[name] && html`<div>${name !== "body" && html`<div class="dim small">${name}</div>`}<pre>${handler[name]}</pre></div>`)}
    ${handler?.options && Object.keys(handler.options).length > 0 && html`<dl class="facts">${Object.entries(handler.options).map(([name, value]) => html`<dt>${name}</dt><dd>${pretty(value)}</dd>`)}</dl>`}</div><//>`;
}

/** @param {any} props */
export function Tokens({ tenant }) {
  const api = queue(tenant);
  const list = useAsked(() => api.get("/tokens"), [tenant], 5000);
  const now = useNow();
  const [made, set] = useState("");
  const add = async () => {
    const issued = await ask({
      title: "New token", go: "Make", fields: [{ name: "scopes", label: "What it allows", checks: ["enqueue", "work", "read", "operate", "admin"], value: ["enqueue", "read"] }, { name: "days", label: "Valid for so many days (empty: forever)", number: true }, { name: "note", label: "What it is for" }, ...(tenant === "-" ? [{ name: "tenant", label: "Tenant", value: "default", required: true }] : [])],
      act: (given) => queue(given.tenant ?? tenant).post("/tokens", { scopes: given.scopes, note: given.note, ...(given.days ? { expires: 86400 * Number(given.days) } : {}) }),
    });
    if (issued) set(issued.token);
    list.again();
    return "";
  };
  const removal = (/** @type {any} */ one) => async () => {
    if (!(await sure("Remove this token?", `${one.key}${one.note ? `, ${one.note}` : ""}: it stops working within a second.`, "Remove"))) return "";
    await queue(one.tenant).remove(`/tokens/${one.key}`);
    list.again();
    return "removed";
  };
  return html`<div class="head"><h1>Tokens</h1><span class="grow"></span><${Action} kind="main" run=${add}>New token<//></div><${Fault} fault=${list.fault} />
    <div class="stack">${made && html`<div class="note-line run row" role="status"><span>It is shown only this once:</span> <code>${made}</code><button onClick=${() => navigator.clipboard?.writeText(made)}>Copy</button></div>`}<section class="panel"><${Table} label="Tokens" rows=${list.data} of=${(/** @type {any} */ one) => one.key} empty=${html`<${Empty} text="No tokens. On this machine the server's own token is used." command="windlass tokens add enqueue read" />`} columns=${[
      { name: "Token", show: (/** @type {any} */ one) => html`<code>${one.key}</code><div class="sub">${one.note}</div>` },
      { name: "Tenant", tight: true, show: (/** @type {any} */ one) => (one.tenant === "-" ? "all" : one.tenant) },
      { name: "Allows", show: (/** @type {any} */ one) => one.scopes.map((/** @type {string} */ scope) => html`<span class="tag">${scope}</span> `) },
      { name: "Made", tight: true, wide: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.created_at} />` },
      { name: "Expires", tight: true, show: (/** @type {any} */ one) => (one.expires_at ? html`<${Time} at=${one.expires_at} />${new Date(one.expires_at).getTime() < now ? html` <span class="badge bad">expired</span>` : ""}` : "never") },
      { name: "", tight: true, show: (/** @type {any} */ one) => html`<div class="doing"><${Action} kind="danger" run=${removal(one)}>Remove<//></div>` },
    ]} /></section></div>`;
}

const LINES = 100;

/** @param {any} props */
export function Audit({ tenant }) {
  const api = queue(tenant);
  const [more, setMore] = useState(/** @type {any[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null | undefined} */ (undefined));
  const [text, setText] = useState("");
  const list = useAsked(() => api.get("/audit", { limit: LINES }), [tenant], next === undefined ? 4000 : 0);
  const beyond = next === undefined ? list.data?.next : next;
  const what = (/** @type {any} */ one) => [one.name, one.ids?.length ? "" : one.match && (Object.keys(one.match).length ? JSON.stringify(one.match) : "all jobs"), one.details, one.error && `stopped: ${one.error}`].filter(Boolean).join("  ");
  const all = [...(list.data?.entries ?? []), ...more];
  const rows = all.map((one, place) => ({ ...one, place: all.length - place })).filter((one) => `${one.by} ${one.note} ${one.action} ${what(one)} ${one.ids ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  const further = async () => { const page = await api.get("/audit", { limit: LINES, after: beyond }); setMore((old) => [...old, ...page.entries]); setNext(page.next); };
  return html`<div class="head"><h1>Audit</h1><span class="dim">what was changed by hand, newest first</span><span class="grow"></span><input type="search" aria-label="Find in these lines" placeholder="Find in these lines" onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} label="Audit log" cards=${true} rows=${list.data && rows} of=${(/** @type {any} */ one) => `${one.at} ${one.place}`} empty=${html`<${Empty} text=${text ? "No line has this." : "Nothing was changed by hand yet."} />`} columns=${[
      { name: "When", tight: true, show: (/** @type {any} */ one) => html`<${Time} at=${one.at} />` },
      { name: "Who", tight: true, show: (/** @type {any} */ one) => html`${one.by}<div class="sub">${one.note}</div>` },
      { name: "What", tight: true, show: (/** @type {any} */ one) => html`<span class=${`badge ${/^(remove|delete|cancel|fail)/.test(one.action) ? "bad" : ""}`}>${one.action}</span>` },
      { name: "Jobs", num: true, tight: true, show: (/** @type {any} */ one) => (one.count === null || one.count === undefined ? "" : number(one.count)) },
      { name: "Of what", show: (/** @type {any} */ one) => html`<span class="mono">${what(one)}</span> ${(one.ids ?? []).slice(0, 3).map((/** @type {string} */ id) => html`<${JobLink} id=${id} tenant=${one.tenant} /> `)}` },
    ]} /></section>${beyond && html`<div class="row gap"><${Action} run=${further}>Show more<//></div>`}`;
}
