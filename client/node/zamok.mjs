// Locks of a zamok cluster for Node 18 or newer, with fetch only. Copy this file; docs/guide/http.md explains it.
//
//   import { withLock } from './zamok.mjs';
//   const nodes = ['http://node1:5752', 'http://node2:5752', 'http://node3:5752'];
//   await withLock('stock', { nodes }, async (lock) => {
//     await write(data, { token: lock.token, signal: lock.signal }); // a storage that compares tokens refuses a late write
//     lock.check(); // throws Lost if the lock may be another's by now
//   });
//
// To nodes with TLS write https, with the authority in the environment: NODE_EXTRA_CA_CERTS. tokenFile names a file with the
// token that says who this is, read for each request; see docs/guide/access.md. Without TLS it is sent to this machine only.
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';

export class Lost extends Error {} // the lock is not certain any more: another program may hold it
export class Unavailable extends Error {} // no node has answered in time
export class Refused extends Error {} // a node has said no; code is why: not_acquired, no_session, invalid, …

const now = () => performance.now() / 1000; // a clock that nobody sets
const seconds = (text) => { // "1m54.5s" is 114.5
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s|(\d+)ms)?$/.exec(text);
  if (!text || !parts) throw new Error(`${JSON.stringify(text)} is no duration`);
  return [3600, 60, 1, 0.001].reduce((sum, unit, i) => sum + unit * (parts[i + 1] ?? 0), 0);
};

function checkNodes({ nodes, tokenFile }) {
  for (const node of nodes) {
    const { protocol, hostname } = new URL(node);
    const isHere = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname); // the address of this machine
    if (tokenFile && protocol !== 'https:' && !isHere) {
      throw new TypeError(`${node}: a token is sent over https only, or to this machine: others could read it on the way`);
    }
  }
}

let first = 0; // the node that answered last is asked first

// request sends the same request to one node after another until one answers it.
async function request({ nodes, tokenFile }, path, body, until, timeout, headers = {}) {
  let problem;
  let pause = 0.2;
  do {
    if (problem) await sleep(pause * 1000);
    for (const _ of nodes) {
      const [sent, signal] = [now(), AbortSignal.timeout(Math.ceil(timeout * 1000))];
      try {
        if (tokenFile) headers.Authorization = `Bearer ${(await readFile(tokenFile, 'utf8')).trim()}`;
        const response = await fetch(nodes[first % nodes.length] + path, { method: 'POST', body: JSON.stringify(body), headers, signal, redirect: 'error' });
        const answer = await response.json();
        if (response.ok) return { ...answer, sent, status: response.status };
        const refused = Object.assign(new Refused(), answer, { repeated: problem !== undefined });
        if (![429, 502, 503, 504].includes(response.status)) throw refused;
        pause = Number(response.headers.get('Retry-After')) || pause;
        problem = refused;
      } catch (error) {
        if (error instanceof Refused) throw error;
        problem = error; // the answer is lost; the request may have arrived
      }
      first++;
    }
  } while (now() + pause < until);
  throw new Unavailable('no node has answered in time', { cause: problem });
}

// withLock calls body while it holds a lock, and returns what body does. wait is in seconds, or Infinity; fields are others of
// POST /v1/acquire, such as mode or meta.
export async function withLock(name, { nodes, tokenFile, wait = 30, ttl = 15, ...fields }, body) {
  const to = { nodes, tokenFile };
  checkNodes(to);
  const wanted = { name, ttl: `${ttl}s`, wait: wait === Infinity ? 'forever' : `${wait}s`, poll: `${ttl / 3}s`, ...fields };
  const headers = { 'Idempotency-Key': randomBytes(16).toString('hex') }; // the right to the lock: a secret
  const giveUp = now() + wait + ttl;
  let answer;
  do { // while it waits: the same request under the same key keeps its place
    answer = await request(to, '/v1/acquire', wanted, giveUp, ttl / 3 + 5, headers);
  } while (answer.status === 202);

  const { session, secret } = answer;
  const token = BigInt(answer.token);
  const grant = { session, secret, token: answer.token }; // the body of renew and release
  const valid = seconds(answer.valid_for);
  const end = answer.hold_left ? answer.sent + seconds(answer.hold_left) : Infinity; // of max_hold
  const lost = new AbortController();
  const left = new AbortController(); // body has returned
  let until, watch; // the lock is certain until then; what says when that is over
  const confirm = ({ sent, valid_for }) => {
    until = Math.min(sent + seconds(valid_for), end); // from before the request was sent: so old the lease may be
    clearTimeout(watch);
    if (!left.signal.aborted) watch = setTimeout(lose, Math.max(0, (until - now()) * 1000));
  };
  const lose = () => lost.abort(new Lost('the lock was lost: another program may hold it'));
  const check = () => {
    if (now() >= until) lose(); // body may have kept the timer from firing
    lost.signal.throwIfAborted();
  };
  const renew = async () => confirm(await request(to, '/v1/renew', grant, until, valid / 3 / nodes.length));
  const keep = async () => {
    while (!lost.signal.aborted) {
      await sleep((valid / 3) * 1000, undefined, { signal: left.signal });
      await renew();
    }
  };
  const release = async () => {
    left.abort();
    clearTimeout(watch);
    try {
      const { reason = 'dropped' } = await request(to, '/v1/release', grant, now() + 5, 2);
      if (!['dropped', 'closed'].includes(reason)) lose(); // it had ended before
    } catch (error) { // Unavailable: it is free one ttl after the last renewal
      if (error instanceof Refused && !error.repeated) lose(); // else the request before may have released it
    }
  };

  confirm(answer);
  keep().catch(() => left.signal.aborted || lose());
  let result;
  try {
    if (now() > answer.sent + valid / 2) await renew(); // the answer took long
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
