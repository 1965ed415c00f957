// Locks of a zamok cluster for Node 18 or newer, with fetch only. Copy this file;
// docs/guide/http.md explains it.
//
//   import { withLock } from './zamok.mjs';
//   const nodes = ['http://node1:5752', 'http://node2:5752', 'http://node3:5752'];
//   await withLock('stock', { nodes }, async (lock) => {
//     // a storage that compares tokens refuses a late write
//     await write(data, { token: lock.token, signal: lock.signal });
//     lock.check(); // throws Lost if the lock may be another's by now
//   });
//
// To nodes with TLS write https, with the authority in the environment: NODE_EXTRA_CA_CERTS.
// tokenFile names a file with the token that says who this is, read for each request; see
// docs/guide/access.md. Without TLS it is sent to this machine only.
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import os from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

export class Lost extends Error {} // the lock is not certain any more: another program may hold it
export class Unavailable extends Error {} // no node has answered in time
// a node has said no; code is why: not_acquired, no_session, invalid, …
export class Refused extends Error {}

// A clock that nobody sets. performance.now stands while the machine is suspended, and os.uptime
// goes on.
const uptime = () => os.uptime() - performance.now() / 1000;
const before = uptime();
let suspended = 0;
const now = () => {
  suspended = Math.max(suspended, uptime() - before);
  return performance.now() / 1000 + suspended;
};
const seconds = (text) => { // "1m54.5s" is 114.5
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s|(\d+)ms)?$/.exec(text);
  if (!text || !parts) throw new Error(`${JSON.stringify(text)} is no duration`);
  return [3600, 60, 1, 0.001].reduce((sum, unit, i) => sum + unit * (parts[i + 1] ?? 0), 0);
};

function checkNodes({ nodes, tokenFile }) {
  if (!Array.isArray(nodes) || nodes.length === 0) {
    throw new TypeError(`nodes is ${nodes}, and not a list as ['http://node1:5752']`);
  }
  for (const node of nodes) {
    if (!/^https?:\/\/[^@/]+(\/|$)/.test(node)) {
      throw new TypeError(`${node} is no address of a node, as http://node1:5752`);
    }
    const { protocol, hostname } = new URL(node);
    // the address of this machine
    const isHere = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);
    if (tokenFile && protocol !== 'https:' && !isHere) {
      throw new TypeError(`${node}: a token is sent over https only, or to this machine: ` +
        'others could read it on the way');
    }
  }
}

// Codes of errors after which nothing was sent, and of those which a node does not cause.
const notSent = /^(ENOENT|ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|ERR_SSL.*|ERR_TLS.*|.*CERT.*|.*SIGNATURE)$/;
const noNode = /^(HPE_.*|ERR_SSL.*|ERR_TLS.*|.*CERT.*|.*SIGNATURE)$/;

// Of each list of nodes: the cluster that answered first. In another one, another program may hold
// the same lock.
const clusters = new Map();
let first = 0; // the node that answered last is tried first

// request sends the same request to one node after another until one answers it. inDoubt of its
// errors: an attempt may have taken effect whose answer is not known.
async function request({ nodes, tokenFile }, path, body, until, timeout, headers = {}) {
  const list = nodes.join(' ');
  let inDoubt = false;
  let pause = 0.2;
  for (;;) {
    const problems = []; // of each node
    let wrong = 0; // how many of them are no nodes
    for (const _ of nodes) {
      const node = nodes[first++ % nodes.length].replace(/\/$/, '');
      const [sent, signal] = [now(), AbortSignal.timeout(Math.ceil(timeout * 1000))];
      let response, text, answer;
      try {
        if (tokenFile) {
          headers.Authorization = `Bearer ${(await readFile(tokenFile, 'utf8')).trim()}`;
        }
        if (clusters.has(list)) headers['Zamok-Cluster'] = clusters.get(list);
        response = await fetch(node + path, {
          method: 'POST', body: JSON.stringify(body), headers, signal, redirect: 'error',
        });
        text = await response.text();
      } catch (error) {
        const code = error.cause?.code ?? error.code ?? '';
        inDoubt ||= !notSent.test(code);
        if (noNode.test(code)) wrong++;
        const hint = /^HPE/.test(code) ? '; is that the port for gRPC?' : '';
        problems.push(`${node}: ${error.cause?.message || code || error.message}${hint}`);
        continue;
      }
      try { answer = JSON.parse(text); } catch { /* it is no node's */ }
      if ([429, 502, 503, 504].includes(response.status)) {
        pause = Number(response.headers.get('Retry-After')) || pause;
        inDoubt ||= answer?.outcome !== 'not_done';
        problems.push(`${node}: ${answer?.message ?? text}`);
        continue;
      }
      const cluster = response.headers.get('Zamok-Cluster');
      if (cluster && !clusters.has(list)) clusters.set(list, cluster);
      if (cluster && cluster !== clusters.get(list)) {
        const message = `${node} belongs to cluster ${cluster}, ` +
          `and another node of the list to ${clusters.get(list)}`;
        answer = { code: 'wrong_cluster', message };
      } else if (response.ok && cluster && answer) {
        first--;
        return { answer, sent, status: response.status };
      }
      if (answer?.code) {
        first--;
        throw Object.assign(new Refused(), answer, {
          inDoubt: inDoubt && answer.outcome !== 'not_done', // by no attempt then
        });
      }
      inDoubt = true;
      wrong++;
      problems.push(`${node}: it does not answer as a node does: ${text.slice(0, 100)}`);
    }
    const all = problems.join('; ');
    if (wrong === nodes.length && path === '/v1/acquire') {
      throw Object.assign(new TypeError(`no address of a node: ${all}`), { inDoubt: false });
    }
    if (now() + pause >= until) {
      throw Object.assign(new Unavailable(`no node has answered in time: ${all}`), { inDoubt });
    }
    await sleep(pause * 1000);
  }
}

// withLock calls body while it holds a lock, and returns what body does. wait is in seconds, or
// Infinity; fields are others of POST /v1/acquire, such as mode or meta.
export async function withLock(name, { nodes, tokenFile, wait = 30, ttl = 15, ...fields }, body) {
  const to = { nodes, tokenFile };
  checkNodes(to);
  const wanted = {
    name, ttl: `${ttl}s`, wait: wait === Infinity ? 'forever' : `${wait}s`, poll: `${ttl / 3}s`,
    ...fields,
  };
  const newKey = () => randomBytes(16).toString('hex'); // the right to the lock: a secret
  const headers = { 'Idempotency-Key': newKey() };
  const lost = new AbortController();
  const left = new AbortController(); // body has returned
  let grant; // the body of renew and release
  let until, pause; // the lock is certain until then; it is renewed so often
  let timer;
  const confirm = ({ answer, sent }) => {
    const valid = seconds(answer.valid_for);
    until = sent + valid; // from before the request was sent: so old the lease may be
    pause = Math.max(valid / 3, 0.2);
  };
  const lose = () => lost.abort(new Lost('the lock was lost: another program may hold it'));
  const check = () => {
    if (now() >= until) lose(); // body may have kept the timer from firing
    lost.signal.throwIfAborted();
  };
  // a timer stands while the machine is suspended: so it looks at the clock each second
  const watch = () => {
    if (now() >= until) lose();
    else timer = setTimeout(watch, Math.min(until - now(), 1) * 1000);
  };
  const acquire = async (wanted, until, timeout) => {
    const { answer, ...how } = await request(to, '/v1/acquire', wanted, until, timeout, headers);
    const { session, secret, token, cluster } = answer;
    grant = { session, secret, token, cluster };
    return { answer, ...how };
  };
  const renew = async () =>
    confirm(await request(to, '/v1/renew', grant, until, pause / nodes.length));
  const keep = async () => {
    while (!lost.signal.aborted) {
      await sleep(pause * 1000, undefined, { signal: left.signal });
      await renew();
    }
  };
  const release = async () => {
    left.abort();
    clearTimeout(timer);
    try {
      const { reason = 'dropped' } = (await request(to, '/v1/release', grant, now() + 5, 2)).answer;
      if (!['dropped', 'closed'].includes(reason)) lose(); // it had ended before
    } catch (error) { // Unavailable: it is free one ttl after the last renewal
      if (error instanceof Refused && !error.inDoubt) {
        lose(); // else the attempt before may have released it
      }
    }
  };

  let token;
  try {
    let granted;
    const giveUp = now() + wait + ttl;
    do { // while it waits: the same request under the same key keeps its place
      granted = await acquire(wanted, giveUp, ttl / 3 + 5).catch((error) => {
        if (error.code !== 'no_session' || !grant) throw error;
        // granted and lost unnoticed: it begins anew
        [grant, headers['Idempotency-Key']] = [undefined, newKey()];
        return { status: 202 };
      });
    } while (granted.status === 202);
    token = BigInt(grant.token);
    confirm(granted);
    if (now() > granted.sent + (until - granted.sent) / 2) await renew(); // the answer took long
    check();
  } catch (error) {
    // ends what was acquired, or still waits, or is in doubt
    if (grant || error.inDoubt !== false) {
      if (!grant) await acquire({ ...wanted, poll: '1ms' }, now(), 2).catch(() => {});
      if (grant) await release();
    }
    throw error;
  }
  let result;
  watch();
  keep().catch(() => left.signal.aborted || lose());
  try {
    result = await body({ token, signal: lost.signal, check });
    check();
  } catch (error) {
    await release();
    throw error; // a loss does not hide it
  }
  await release();
  lost.signal.throwIfAborted();
  return result;
}
