// A context of Node: reads commands on descriptor 3, runs them, answers on descriptor 4.
//
// Started in the context's own folder. The protocol is in docs/functions-protocol.md.
"use strict";
const fs = require("node:fs");
const childProcess = require("node:child_process");
const { syncBuiltinESMExports } = require("node:module");
const net = require("node:net");
const util = require("node:util");
const vm = require("node:vm");

const COMMANDS = 3;
const ANSWERS = 4;
const MONITOR = 5;
const RETRY = 100;
const OK = 200;
const FAILED = 400;
const ERROR = 500;
const HALF = /(?<!\\)(?:\\\\)*\\ud/; // a surrogate without its other half, as JSON.stringify writes it

class Retry extends Error {
  constructor(message = "the function asked to be run again", { after = null } = {}) {
    if (after !== null && !(Number.isFinite(after) && after >= 0)) throw new TypeError("after is a number of seconds");
    super(message);
    this.name = "Retry";
    this.code = RETRY;
    this.after = after;
  }
}

class Fail extends Error {
  constructor(message = "the function failed", { code = FAILED } = {}) {
    super(message);
    this.name = "Fail";
    this.code = code;
  }
}

Object.assign(globalThis, { Retry, Fail, require });

const loader = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
const loaded = new Map();
let handler = null;
let trouble = null; // why no job of this batch can be run
let broken = false;
let mark = Buffer.alloc(0);
let started = false; // whether a process has been started since the last check

// Processes that a function starts are noticed: those of a job end with it.
function notice(object, name) {
  const original = object[name];
  object[name] = function (...given) {
    started = true;
    return original.apply(this, given);
  };
}
notice(childProcess.ChildProcess.prototype, "spawn");
for (const name of ["spawnSync", "execSync", "execFileSync"]) notice(childProcess, name);
syncBuiltinESMExports();

// Has the monitor end what was started ("s"), or leave it alone from here on ("k").
function askMonitor(what) {
  if (!started) return;
  started = false;
  try {
    fs.writeSync(MONITOR, what);
    fs.readSync(MONITOR, Buffer.alloc(1));
  } catch {
    // it is gone
  }
}

// A promise that a piece of source leaves as its value is waited for.
async function execute(which, part) {
  if (!which[part]) return;
  const options = { filename: `<${which.task}:${part}>` };
  if (loader) options.importModuleDynamically = loader;
  await vm.runInThisContext(which[part], options);
}

async function load(number, source) {
  const found = JSON.parse(source);
  loaded.set(number, found);
  mark = Buffer.from(`\x1e${found.mark}\n`);
  try {
    await execute(found, "before");
    await execute(found, "body");
    found.run = vm.runInThisContext("typeof run === 'function' ? run : undefined");
    if (!found.run) throw new TypeError("its body defines no run(payload)");
  } catch (fault) {
    found.fault = { fault };
    broken = true;
  }
  askMonitor("k");
}

async function begin(number) {
  handler = loaded.get(number);
  trouble = handler.fault || null;
  if (trouble) return;
  try {
    await execute(handler, "beforeEach");
  } catch (fault) {
    trouble = { fault };
  }
  askMonitor("k");
}

async function run(number, kind, data) {
  let answer;
  try {
    if (trouble) throw trouble.fault;
    answer = resultLine(await handler.run(read(kind, data)));
  } catch (fault) {
    answer = errorLine(fault);
  }
  askMonitor("s");
  separate();
  send(`done ${number} ${answer}\n`);
}

async function end() {
  if (!trouble) {
    try {
      await execute(handler, "afterEach");
    } catch (fault) {
      broken = true;
      console.error(fault);
    }
  }
  separate();
  send(broken ? "end broken\n" : "end\n");
}

// What is printed from here on is the next job's.
function separate() {
  for (const output of [1, 2]) {
    try {
      write(output, mark);
    } catch {
      // closed by the function: then nothing more comes of it
    }
  }
}

function send(text) {
  write(ANSWERS, Buffer.from(text));
}

function write(descriptor, bytes) {
  for (let at = 0; at < bytes.length; ) at += fs.writeSync(descriptor, bytes, at);
}

function read(kind, data) {
  if (kind === "text") return data;
  if (kind === "text64") return Buffer.from(data, "base64").toString();
  if (kind === "base64") return Buffer.from(data, "base64");
  try {
    return JSON.parse(data);
  } catch (fault) {
    throw new Fail(`its payload is no JSON: ${fault.message}`);
  }
}

function resultLine(value) {
  if (value instanceof Uint8Array) return `${OK} base64 ${Buffer.from(value).toString("base64")}`;
  const text = JSON.stringify(value) ?? "null";
  if (text.includes("\\ud") && HALF.test(text)) throw new TypeError("its result has half a character in it");
  return `${OK} json ${text}`;
}

function errorLine(fault) {
  const code = fault && fault.code;
  const known = Number.isInteger(code) && ((code >= RETRY && code < OK) || (code >= FAILED && code < ERROR + 100));
  const whole = fault instanceof Error;
  const error = {
    type: whole ? wellFormed(fault.name) : "Error",
    message: wellFormed(whole ? fault.message : inWords(fault)),
    traceback: whole ? trace(fault) : "",
    after: fault && typeof fault.after === "number" ? fault.after : null,
  };
  return `${known ? code : ERROR} error ${JSON.stringify(error)}`;
}

// What is thrown need not be an error.
function inWords(thrown) {
  if (typeof thrown !== "object" || thrown === null) return String(thrown);
  return typeof thrown.message === "string" ? thrown.message : util.inspect(thrown);
}

// Half a character is none in JSON.
function wellFormed(value) {
  return Buffer.from(String(value)).toString();
}

// Without the lines that are of this file.
function trace(fault) {
  const lines = wellFormed(fault.stack).split("\n");
  return lines.filter((line) => !line.includes(__filename)).join("\n");
}

function obey(line) {
  const words = line.split(" ", 3);
  switch (words[0]) {
    case "job":
      return run(words[1], words[2], line.slice(words.join(" ").length + 1));
    case "load":
      return load(words[1], line.slice(words[0].length + words[1].length + 2));
    case "batch":
      return begin(words[1]);
    case "end":
      return end();
  }
}

// The lines that have come, some at a time.
async function* lines(stream) {
  let pieces = [];
  for await (const chunk of stream) {
    const last = chunk.lastIndexOf(10);
    pieces.push(chunk.subarray(0, last + 1));
    if (last === -1) pieces.push(chunk);
    else {
      yield Buffer.concat(pieces).toString().slice(0, -1).split("\n");
      pieces = [chunk.subarray(last + 1)];
    }
  }
}

async function main() {
  // Else what does not fit into the pipe is kept for later, and an answer overtakes what was printed before it.
  for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
  for await (const some of lines(new net.Socket({ fd: COMMANDS, readable: true, writable: false })))
    for (const line of some) await obey(line);
  process.exit(0);
}

main();
