// @ts-check
/** The list of jobs with its query bar and facets, actions on many jobs, and failures in groups. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { FIELDS, FINISHED, PENDING, REASONS, STATES, asMatch, number, parseQuery, queue, statesOf, word, wordsOf } from "./api.js";
import { Action, Empty, Fault, JobLink, JobsLink, Paused, State, Table, Time, pause, sure, toast, useAsked } from "./parts.js";

/** Jobs of one answer. */
const ROWS = 50;

/** Rows that a page holds; of more it shows the last ones. */
const MOST_ROWS = 500;

/** The states that an action changes, and how its success reads. @type {Record<string, {name: string, states: string[], past: string}>} */
const ACTIONS = {
  retry: { name: "Retry", states: FINISHED, past: "queued again" },
  cancel: { name: "Cancel", states: PENDING, past: "cancelled" },
  delete: { name: "Delete", states: STATES, past: "deleted" },
};

/** @param {any} props */
export function Jobs({ tenant, can, query, stats }) {
  const text = query.get("q") ?? "";
  const [chosen, choose] = useState(/** @type {Map<string, any>} */ (new Map()));
  const [more, setMore] = useState(/** @type {any[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null | undefined} */ (undefined));
  const [still, setStill] = useState(false);
  useEffect(() => { choose(new Map()); setMore([]); setNext(undefined); }, [text]);
  const parsed = useMemo(() => parseQuery(text), [text]);
  const api = queue(tenant);
  const stands = still || chosen.size > 0 || next !== undefined;
  const list = useAsked(() => (parsed.wrong ? Promise.resolve({ jobs: [], next: null }) : api.get("/jobs", { ...parsed.query, limit: ROWS, order: "newest" })), [tenant, text], stands ? 0 : 2000, () => true);
  const nodes = nodesOf(useAsked(() => api.get("/workers"), [tenant], 4000).data ?? [], (/** @type {any} */ one) => tenant === "-" || one.tenant === tenant || !!stats?.alone);
  const go = (/** @type {string} */ to) => { location.hash = to ? `/jobs?q=${encodeURIComponent(to)}` : "/jobs"; };
  const rows = useMemo(() => [...(list.data?.jobs ?? []), ...more].slice(-MOST_ROWS), [list.data, more]);
  const beyond = next === undefined ? list.data?.next : next;
  const further = async () => {
    const page = await api.get("/jobs", { ...parsed.query, limit: ROWS, order: "newest", after: beyond });
    setMore((old) => [...old, ...page.jobs].slice(-MOST_ROWS));
    setNext(page.next);
  };
  const newest = () => { choose(new Map()); setMore([]); setNext(undefined); setStill(false); list.again(); scrollTo(0, 0); };
  const last = useRef(-1);
  const toggle = (/** @type {any} */ job, /** @type {boolean} */ range) => {
    const at = rows.indexOf(job), from = range && last.current >= 0 ? last.current : at;
    const some = rows.slice(Math.min(at, from), Math.max(at, from) + 1);
    const on = !chosen.has(keyOf(job));
    choose((old) => { const now = new Map(old); for (const one of some) { if (on) now.set(keyOf(one), one); else now.delete(keyOf(one)); } return now; });
    last.current = at;
  };
  const every = rows.length > 0 && rows.every((job) => chosen.has(keyOf(job)));
  const selected = [...chosen.values()];
  const act = (/** @type {string} */ verb) => async () => {
    const said = selected.length ? done(verb, await onJobs(selected, verb)) : await onAll(api, verb, parsed.query, text || "All jobs of this list.");
    if (said) newest();
    return said;
  };
  const columns = [
    ...(can("operate") ? [{ name: html`<input type="checkbox" aria-label="Select all rows" checked=${every} onChange=${() => choose(every ? new Map() : new Map(rows.map((job) => [keyOf(job), job])))} />`, tight: true,
      show: (/** @type {any} */ job) => html`<input type="checkbox" aria-label=${`Select ${job.id}`} checked=${chosen.has(keyOf(job))} onClick=${(/** @type {any} */ event) => toggle(job, event.shiftKey)} />` }] : []),
    { name: "State", tight: true, show: (/** @type {any} */ job) => html`<${State} state=${job.state} />` },
    { name: "Task", fill: true, show: (/** @type {any} */ job) => html`<a href=${`#/job/${job.tenant}/${job.id}`}>${job.task}</a>${job.tags.map((/** @type {string} */ tag) => html` <span class="tag">${tag}</span>`)}<div class="sub clip">${remark(job)}</div>` },
    ...(tenant === "-" ? [{ name: "Tenant", wide: true, show: (/** @type {any} */ job) => job.tenant }] : []),
    { name: "Queue", wide: true, tight: true, show: (/** @type {any} */ job) => job.queue },
    { name: "Run", num: true, wide: true, show: (/** @type {any} */ job) => (job.attempt ? `${job.attempt}${job.max_retry ? ` / ${job.max_retry + 1}` : ""}` : "") },
    { name: "Changed", tight: true, show: (/** @type {any} */ job) => html`<${Time} at=${job.finished_at ?? job.started_at ?? job.created_at} />` },
    { name: "Job", tight: true, wide: true, show: (/** @type {any} */ job) => html`<${JobLink} id=${job.id} tenant=${job.tenant} />` },
  ];
  const operate = can("operate");
  return html`<div class="head"><h1>Jobs</h1><span class="grow"></span>${parsed.query.task && tenant !== "-" && html`<${TaskPause} api=${api} task=${parsed.query.task} can=${can} />`}
      <button aria-pressed=${!stands} title="Follow what changes" onClick=${() => (stands ? newest() : setStill(true))}>${stands ? "Still" : "Live"}</button>
      <a class="button" href=${exportUrl(tenant, parsed.query)} download="jobs.ndjson" title="All that match, a line of JSON each">Export</a></div>
    <${QueryBar} text=${text} go=${go} stats=${stats} nodes=${nodes} key=${text} />
    ${parsed.wrong && html`<div class="note-line bad gap" role="alert">${parsed.wrong}</div>`}<${Fault} fault=${list.fault} />
    <div class="browse"><${Facets} stats=${stats} nodes=${nodes} query=${parsed.query} text=${text} go=${go} />
    <div><div class="facets" role="group" aria-label="Actions">
      <${Matching} api=${api} query=${parsed.query} stats=${stats} text=${text} /><span class="grow"></span>
      ${operate && html`<span class="dim small">${selected.length ? html`${selected.length} selected <button class="plain" onClick=${() => choose(new Map())}>Clear</button>` : "on all that match:"}</span>
      ${Object.entries(ACTIONS).map(([verb, one]) => html`<${Action} kind=${verb === "delete" ? "danger" : ""} run=${act(verb)} disabled=${!selected.length && !statesOf(parsed.query).some((state) => one.states.includes(state))}>${one.name}<//>`)}`}</div>
    <section class="panel"><${Table} label="Jobs" rows=${list.data ? rows : undefined} of=${keyOf} columns=${columns}
      empty=${text ? html`<${Empty} text="No job matches." />` : html`<${Empty} text="No jobs yet. Queue one:" command="windlass enqueue TASK PAYLOAD" />`} /></section>
    <div class="row gap">${beyond && html`<${Further} run=${further} />`}${next !== undefined && html`<button onClick=${newest}>Back to the newest</button>`}</div></div></div>`;
}

/** Whether the task of a list is paused, and a button for it. @param {any} props */
function TaskPause({ api, task, can }) {
  const path = `/tasks/${encodeURIComponent(task)}`;
  const card = useAsked(() => api.get(path), [task], 5000);
  const one = card.data;
  const change = async (/** @type {any} */ body) => { await api.patch(path, body); card.again(); };
  if (!one) return null;
  return html`${one.paused && html`<${Paused} one=${one} />`}${can("operate") && (one.paused
    ? html`<${Action} run=${() => change({ paused: false }).then(() => `${task} goes on`)}>Resume ${task}<//>`
    : html`<${Action} title="Start none of its jobs, in whatever queue" run=${pause(task, change)}>Pause ${task}<//>`)}`;
}

const keyOf = (/** @type {any} */ job) => `${job.tenant}/${job.id}`;

/** @param {any} job */
function remark(job) {
  if (job.state === "running" && job.progress) return `${job.progress.done ?? 0}${job.progress.total ? ` of ${job.progress.total}` : ""} ${job.progress.note ?? ""}`;
  if (job.error && job.state !== "succeeded") return `${job.error.type ? `${job.error.type}: ` : ""}${(job.error.message ?? "").slice(0, 160)}`;
  return job.progress?.note ?? "";
}

/** Loads what follows when it comes into view, or on a click. @param {any} props */
function Further({ run }) {
  const place = useRef(/** @type {any} */ (null));
  const newest = useRef(run);
  newest.current = run;
  useEffect(() => {
    let busy = false;
    const seen = new IntersectionObserver(async ([one]) => {
      if (!one.isIntersecting || busy || scrollY === 0) return;
      busy = true;
      await newest.current().catch(() => {});
      busy = false;
    }, { rootMargin: "300px" });
    seen.observe(place.current);
    return () => seen.disconnect();
  }, []);
  return html`<span ref=${place}><${Action} run=${run}>Show more<//></span>`;
}

/** How many match: from the counters where they know, else counted when asked. @param {any} props */
function Matching({ api, query, stats, text }) {
  const [found, set] = useState(/** @type {{text: string, count: number} | null} */ (null));
  const known = counts(stats, query);
  const count = known ? statesOf(query).reduce((sum, state) => sum + (known.state[state] ?? 0), 0) : found !== null && found.text === text ? found.count : undefined;
  if (count !== undefined) return html`<span class="small"><b class="figures">${number(count)}</b> ${count === 1 ? "job" : "jobs"}</span>`;
  return stats ? html`<${Action} kind="plain" run=${async () => { set({ text, count: (await api.get("/jobs/count", query)).count }); }}>Count<//>` : null;
}

/** The query with completion of fields and of values that are known. @param {any} props */
function QueryBar({ text, go, stats, nodes }) {
  const [typed, setTyped] = useState(text);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const found = useMemo(() => (open ? completions(typed, stats, nodes) : []), [typed, open, stats]);
  const take = (/** @type {{word: string}} */ one) => {
    const before = typed.slice(0, typed.length - lastWord(typed).length);
    const whole = /[:.]$/.test(one.word);
    setTyped(before + one.word + (whole ? "" : " "));
    setAt(-1);
  };
  const keys = (/** @type {any} */ event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      setAt(Math.max(-1, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if ((event.key === "Enter" && at >= 0) || (event.key === "Tab" && found.length && lastWord(typed))) {
      event.preventDefault();
      take(found[Math.max(0, at)]);
    } else if (event.key === "Escape") setOpen(false);
  };
  const submit = (/** @type {any} */ event) => { event.preventDefault(); setOpen(false); go(typed.trim()); };
  return html`<form class="row query-row" role="search" onSubmit=${submit}><div class="complete">
      <input class="query" role="combobox" aria-label="Query" aria-expanded=${found.length > 0} aria-controls="completions" aria-autocomplete="list" autocomplete="off" spellcheck="false"
        aria-activedescendant=${at >= 0 ? `completion-${at}` : undefined} placeholder=${'state:failed task:mail payload.customer:5 "timed out"'} value=${typed}
        onInput=${(/** @type {any} */ event) => { setTyped(event.target.value); setOpen(true); setAt(-1); }} onFocus=${() => setOpen(true)} onClick=${() => setOpen(true)} onBlur=${() => setTimeout(() => setOpen(false), 150)} onKeyDown=${keys} />
      <ul id="completions" role="listbox" aria-label="Completions" hidden=${!found.length}>${found.map((one, index) => html`<li id=${`completion-${index}`} role="option" aria-selected=${index === at}
        onMouseDown=${(/** @type {any} */ event) => { event.preventDefault(); take(one); }}><code>${one.word}</code><span class="dim small">${one.hint}</span></li>`)}</ul></div>
    <button class="main">Find</button>${text && html`<button type="button" onClick=${() => go("")}>Clear</button>`}</form>`;
}

const lastWord = (/** @type {string} */ typed) => /(?:[\w.-]+:"[^"]*|\S*)$/.exec(typed)?.[0] ?? "";

/** @param {string} typed @param {any} stats @param {Record<string, number | undefined>} nodes @returns {{word: string, hint: string}[]} */
function completions(typed, stats, nodes) {
  const last = lastWord(typed), colon = last.indexOf(":");
  const name = colon > 0 ? last.slice(0, colon) : "";
  const known = counts(stats, {});
  /** @type {Record<string, [string, string][]>} */
  const values = {
    state: [...STATES, "pending", "finished"].map((one) => [one, known?.state[one] ? number(known.state[one]) : ""]),
    task: Object.entries(known?.task ?? {}).map(([one, count]) => [one, number(count)]),
    queue: Object.entries(known?.queue ?? {}).map(([one, count]) => [one, number(count)]),
    node: Object.entries(nodes).map(([one, count]) => [one, count ? `${number(count)} running` : ""]),
    reason: REASONS.map((one) => [one, ""]),
  };
  const found = name ? (values[name] ?? []).map(([one, hint]) => ({ word: word(name, one), hint }))
    : Object.entries(FIELDS).map(([one, hint]) => ({ word: one.endsWith(".") ? one : `${one}:`, hint }));
  return found.filter((one) => one.word.startsWith(last) && one.word !== last).slice(0, 12);
}

/**
 * Jobs by state, by queue and by task, as far as the counters know; each leaves its own condition out.
 * @param {any} stats @param {Record<string, any>} query
 * @returns {{state: Record<string, number>, queue: Record<string, number>, task: Record<string, number>} | undefined}
 */
function counts(stats, query) {
  if (!stats || Object.keys(query).some((name) => !["state", "task", "queue"].includes(name))) return undefined;
  const wanted = statesOf(query);
  /** @type {any} */
  const found = { state: {}, queue: {}, task: {} };
  const add = (/** @type {string} */ facet, /** @type {string} */ name, /** @type {number} */ count) => { found[facet][name] = (found[facet][name] ?? 0) + count; };
  for (const one of stats.queues) {
    const task = !query.task || query.task === one.task, line = !query.queue || query.queue === one.queue;
    for (const [state, count] of Object.entries(one.states)) {
      if (task && line) add("state", state, Number(count));
      if (task && wanted.includes(state)) add("queue", one.queue, Number(count));
      if (line && wanted.includes(state)) add("task", one.task, Number(count));
    }
  }
  return found;
}

/**
 * How many jobs run on each node; unknown where a worker may also run those of other tenants.
 * @param {any[]} workers @param {(worker: any) => boolean} own whether all that it runs is shown here
 */
function nodesOf(workers, own) {
  /** @type {Record<string, number | undefined>} */
  const found = {};
  for (const one of workers.filter((each) => each.node)) {
    const before = one.node in found ? found[one.node] : 0;
    found[one.node] = before !== undefined && own(one) ? before + one.running : undefined;
  }
  return found;
}

const MOST_VALUES = 12;

/** What the list can be narrowed to, with counts. @param {any} props */
function Facets({ stats, nodes, query, text, go }) {
  const known = counts(stats, query) ?? counts(stats, {});
  const exact = counts(stats, query) !== undefined;
  const set = (/** @type {string} */ name, /** @type {string} */ value, /** @type {boolean} */ on) => {
    const both = name === "node" ? ["state", "node"] : [name]; // the jobs of a node are those that run there
    const others = wordsOf(text).filter((one) => !both.includes(one.split(":")[0]));
    const chosen = name === "node" ? ["state:running", word(name, value)] : [word(name, value)];
    go((on ? [...chosen, ...others] : others).join(" "));
  };
  const group = (/** @type {string} */ title, /** @type {string} */ name, /** @type {[string, number | undefined][]} */ values, counted = exact) => html`<div class="facet" role="group" aria-label=${title}><h2>${title}</h2>
    ${values.map(([value, count]) => {
      const on = name === "state" ? !!query.state?.includes(value) : query[name] === value;
      return html`<button type="button" class="plain" aria-pressed=${on} onClick=${() => set(name, value, !on)}>${name === "state" ? html`<i class=${`dot ${value}`}></i>` : ""}<span class="clip">${value}</span><span class="count">${counted && count !== undefined ? number(count) : ""}</span></button>`;
    })}</div>`;
  const top = (/** @type {Record<string, number | undefined>} */ all, /** @type {string} */ chosen) => {
    const sorted = Object.entries(all).sort((a, b) => (a[0] < b[0] ? -1 : 1));
    const largest = [...sorted].sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0)).slice(0, MOST_VALUES).map(([name]) => name);
    return sorted.filter(([name]) => largest.includes(name) || name === chosen);
  };
  return html`<aside class="facet-bar" aria-label="Filters">${group("States", "state", STATES.map((state) => [state, known?.state[state] ?? 0]))}
    ${known && group("Queues", "queue", top(known.queue, query.queue))}${known && group("Tasks", "task", top(known.task, query.task))}
    ${Object.keys(nodes).length > 0 && group("Running on", "node", top(nodes, query.node), Object.keys(query).every((name) => name === "node" || name === "state"))}</aside>`;
}

/** @param {string} tenant @param {Record<string, any>} query */
function exportUrl(tenant, query) {
  const words = new URLSearchParams({ order: "newest" });
  for (const [name, value] of Object.entries(query)) for (const one of Array.isArray(value) ? value : [value]) words.append(name, String(one));
  return `/dashboard/export/${encodeURIComponent(tenant)}/jobs.ndjson?${words}`;
}

/** What an action did: jobs that run are only ordered to stop. @param {string} verb @param {{changed: number, stopping?: number}} answer */
function done(verb, { changed, stopping = 0 }) {
  const ordered = `${number(stopping)} ${stopping === 1 ? "is" : "are"} being stopped`;
  return [(changed > stopping || !stopping) && `${number(changed - stopping)} ${ACTIONS[verb].past}`, stopping && ordered].filter(Boolean).join(", ");
}

/** Act on some jobs, tenant by tenant. @param {any[]} jobs @param {string} verb */
async function onJobs(jobs, verb) {
  let changed = 0, stopping = 0;
  for (const tenant of new Set(jobs.map((job) => job.tenant))) {
    const ids = jobs.filter((job) => job.tenant === tenant).map((job) => job.id);
    for (let start = 0; start < ids.length; start += 500) {
      const answer = await bulk(queue(tenant), verb, { ids: ids.slice(start, start + 500) });
      changed += answer.changed;
      stopping += answer.stopping ?? 0;
    }
  }
  return { changed, stopping };
}

/**
 * Act on all that match: count first, ask, then say how far it is. The server does it in one request; how many are left
 * is counted meanwhile.
 * @param {any} api @param {string} verb @param {Record<string, any>} query @param {string} about
 */
async function onAll(api, verb, query, about) {
  const { name, states, past } = ACTIONS[verb];
  const wanted = statesOf(query).filter((state) => states.includes(state));
  if (!wanted.length) return `none of these can be ${past}`;
  const narrowed = { ...query, state: wanted };
  const { changed: total, stopping = 0 } = await bulk(api, verb, { ...asMatch(narrowed), dry_run: true });
  if (!total) return "no job to change";
  const text = stopping ? `${about} · ${number(stopping)} ${stopping === 1 ? "runs, and is" : "run, and are"} stopped first` : about;
  if (!(await sure(`${name} ${number(total)} ${total === 1 ? "job" : "jobs"}?`, text, `${name} ${number(total)}`))) return "";
  let ended = false, least = total;
  const watch = async () => {
    while (!ended) {
      toast(`${name}: ${number(total - least)} of ${number(total)} …`, { stays: true });
      await new Promise((resolve) => setTimeout(resolve, 1000));
      if (!ended) least = Math.min(least, await api.get("/jobs/count", narrowed).then((/** @type {any} */ one) => one.count, () => least));
    }
  };
  watch();
  try {
    return done(verb, await bulk(api, verb, asMatch(narrowed)));
  } finally {
    ended = true;
  }
}

/** @param {any} api @param {string} verb @param {any} body */
const bulk = (api, verb, body) => (verb === "delete" ? api.remove("/jobs", body) : api.post(`/jobs/${verb}`, body));

/** Pages of groups that one look at the failures reads. */
const MOST_PAGES = 3;

/** @param {any} api */
async function groupsOf(api) {
  /** @type {Map<string, any>} */
  const groups = new Map();
  /** @type {string | undefined} */
  let after;
  let scanned = 0;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    /** @type {any} */
    const found = await api.get("/failures", { limit: 200, after });
    scanned += found.scanned;
    for (const one of found.groups) {
      const name = `${one.tenant}/${one.fingerprint}`, known = groups.get(name);
      const versions = { ...known?.versions };
      for (const [version, count] of Object.entries(one.versions ?? {})) versions[version] = (versions[version] ?? 0) + count;
      groups.set(name, known ? { ...known, versions, count: known.count + one.count, first_at: one.first_at < known.first_at ? one.first_at : known.first_at } : one);
    }
    after = found.next;
    if (!after) break;
  }
  return { groups: [...groups.values()].sort((a, b) => b.count - a.count || (a.last_at < b.last_at ? 1 : -1)), scanned, more: !!after };
}

/** Events that make or remove a failure. @param {string} name */
const ends = (name) => ["failed", "queued", "retrying", "deleted", "gap"].includes(name);

/** @param {any} props */
export function Failures({ tenant, can }) {
  const api = queue(tenant);
  const list = useAsked(() => groupsOf(api), [tenant], 5000, ends);
  const [open, set] = useState("");
  const name = (/** @type {any} */ group) => `${group.tenant}/${group.fingerprint}`;
  const act = (/** @type {any} */ group, /** @type {string} */ verb) => async () => {
    const said = await onAll(queue(group.tenant), verb, { state: ["failed"], task: group.task, fingerprint: group.fingerprint }, `${group.task}: ${group.type}`);
    list.again();
    return said;
  };
  const columns = [
    { name: "Jobs", num: true, tight: true, show: (/** @type {any} */ group) => html`<b>${number(group.count)}</b>` },
    { name: "Failure", show: (/** @type {any} */ group) => html`<${JobsLink} q=${`state:failed fingerprint:${group.fingerprint}`}>${group.task}<//> <span class="badge bad">${group.type}</span>${group.where && html` <code class="dim">${group.where}</code>`}
      ${tenant === "-" && html` <span class="tag">${group.tenant}</span>`}<div class="sub">${group.message}</div><${Versions} of=${group.versions ?? {}} />
      ${open === name(group) && html`<${Sample} group=${group} />`}` },
    { name: "First", tight: true, wide: true, show: (/** @type {any} */ group) => html`<${Time} at=${group.first_at} />` },
    { name: "Last", tight: true, show: (/** @type {any} */ group) => html`<${Time} at=${group.last_at} />` },
    { name: "", tight: true, show: (/** @type {any} */ group) => html`<div class="doing"><button aria-expanded=${open === name(group)} onClick=${() => set(open === name(group) ? "" : name(group))}>Traceback</button>
      ${can("operate") && html`<${Action} run=${act(group, "retry")}>Retry<//><${Action} kind="danger" run=${act(group, "delete")}>Delete<//>`}</div>` },
  ];
  const sum = list.data?.groups.reduce((all, one) => all + one.count, 0);
  return html`<div class="head"><h1>Failures</h1>${list.data && html`<span class="dim">${number(sum)} failed ${sum === 1 ? "job" : "jobs"}, by task, error and place in the code${list.data.more ? `; the newest ${number(list.data.scanned)} were read` : ""}</span>`}</div><${Fault} fault=${list.fault} />
    <section class="panel"><${Table} label="Failures" rows=${list.data?.groups} of=${name} columns=${columns} empty=${html`<${Empty} text="Nothing has failed." />`} /></section>`;
}

/** Which versions of the handler failed, the newest first. @param {{of: Record<string, number>}} props */
function Versions({ of }) {
  const all = Object.entries(of).sort((a, b) => Number(b[0]) - Number(a[0]));
  if (!all.length) return null;
  return html`<div class="sub">handler ${all.map(([version, count]) => html`<span class="tag">version ${version}${all.length > 1 ? `: ${number(count)}` : ""}</span> `)}</div>`;
}

/** The newest job of a group. @param {any} props */
function Sample({ group }) {
  const job = useAsked(() => queue(group.tenant).get(`/jobs/${group.sample}`), [group.sample], 0).data;
  if (!job) return html`<div class="empty">…</div>`;
  return html`<div class="gap-small"><pre>${job.error?.traceback || job.error?.message || "It left no traceback."}</pre><div class="small">Newest: <${JobLink} id=${job.id} tenant=${job.tenant} />${job.node ? html`<span class="dim"> on ${job.node}</span>` : ""}</div></div>`;
}
