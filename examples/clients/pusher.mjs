// Enqueues a job over HTTP, follows it, and prints its result. Node 20, no packages.
//
//   WINDLASS_TOKEN=… node pusher.mjs greet '{"name": "Ada"}'

const server = process.env.WINDLASS_SERVER ?? 'http://127.0.0.1:7717';
const base = `${server}/v1/${process.env.WINDLASS_TENANT ?? 'default'}`;
const headers = {
  authorization: `Bearer ${process.env.WINDLASS_TOKEN}`,
  'content-type': 'application/json',
};

async function ask(verb, path, body) {
  const response = await fetch(base + path, { method: verb, headers, body: body && JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.title}: ${answer.detail} ${answer.at ?? ''}`);
  return answer;
}

// Every event of a job until it has ended. After a lost connection it resumes behind the last event.
async function* follow(id) {
  let last = '';
  while (true) {
    const response = await fetch(`${base}/jobs/${id}/events`, { headers: { ...headers, 'last-event-id': last } });
    if (response.status === 204) return;
    if (!response.ok) throw new Error((await response.json()).detail);
    let text = '';
    try {
      for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
        text += piece;
        const events = text.split('\n\n');
        text = events.pop();
        for (const event of events) {
          const fields = Object.fromEntries(event.split('\n').map((line) => line.split(/: ?(.*)/s)));
          if (!fields.data) continue;
          last = fields.id;
          yield { name: fields.event, data: JSON.parse(fields.data) };
        }
      }
    } catch (fault) {
      console.error(`again in a second: ${fault.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

async function run(task, payload) {
  const job = await ask('POST', '/jobs', { task, payload, timeout: 60, max_retry: 3 });
  console.error(`queued ${job.id}`);
  for await (const { name, data } of follow(job.id)) {
    if (name === 'output') console.error(data.text ?? `${data.base64} (base64)`);
    else console.error(name);
    if (['succeeded', 'failed', 'cancelled'].includes(name)) break;
  }
  return ask('GET', `/jobs/${job.id}/result?wait=10`);
}

const [task, payload = 'null'] = process.argv.slice(2);
if (!task) throw new Error('say which task: node pusher.mjs TASK [PAYLOAD]');
const ended = await run(task, JSON.parse(payload));
console.log(JSON.stringify(ended.state === 'succeeded' ? ended.result : ended.error));
process.exitCode = ended.state === 'succeeded' ? 0 : 1;
