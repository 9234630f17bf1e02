// Runs the script of the drawing page against its server, in the place of a browser: draws, then talks to the shell.
const page = await (await fetch(process.argv[2])).text();
const elements = {};
const made = () => ({ textContent: "", value: "", className: "", children: [], append(one) { this.children.push(one); } });
const find = (id) => (elements[id] ??= made());
const said = (id) => find(id).children.map((one) => one.textContent).join("");
globalThis.document = { getElementById: find, createElement: made };
const native = fetch;
globalThis.fetch = (path) => native(new URL(path, process.argv[2]));
const blobs = [];
URL.createObjectURL = (blob) => { blobs.push(blob); return "blob:"; };
URL.revokeObjectURL = () => {};

const until = async (true_, what) => {
  for (let turn = 0; !true_(); turn++) {
    if (turn > 1200) { console.error("never", what, find("state").textContent, said("output"), said("said")); process.exit(1); }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};

new Function(page.match(/<script>(.*)<\/script>/s)[1])();
find("source").value = "write hello\ncircle 50 50 40 red\n";
find("draw").onclick();
await until(() => find("state").textContent === "drawn", "drawn");
console.log(said("output").trim(), (await blobs[0].text()).slice(0, 4));
find("open").onclick();
await until(() => said("said").includes("circle"), "open");
find("line").value = "circle 1 1 1";
find("type").onsubmit({ preventDefault() {} });
await until(() => said("said").includes("> 1 shapes"), "shapes");
find("open").onclick();
await until(() => find("shell-state").textContent === "closed", "closed");
console.log("shell closed");
process.exit(0);
