"""Locks of a zamok cluster for Python 3.8 or newer, with the standard library only. Copy this file; see docs/guide/http.md.

    with zamok.lock("stock", ["http://node1:5752", "http://node2:5752", "http://node3:5752"]) as lock:
        write(…, token=lock.token)     # a storage that compares tokens refuses a late write
        lock.check()                   # raises zamok.Lost if the lock may be another's by now

To nodes with TLS write https, with the authority in the environment: SSL_CERT_FILE. token_file=… names a file with the token
that says who this is, read for each request; see docs/guide/access.md. Without TLS it is sent to this machine only.
"""
import http.client, ipaddress, json, re, secrets, threading, time, urllib.parse

class Lost(Exception): "The lock is not certain any more: another program may hold it."
class Refused(Exception): "A node has said no. args: the message, the code, whether another node had been asked before."

def now(): # a clock that nobody sets, and that continues while the machine is suspended, if there is one
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

def seconds(text): # "1m54.5s" is 114.5
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s|(\d+)ms)?", text)
    if not text or not parts: raise ValueError(f"{text!r} is no duration")
    return sum(float(n or 0) * unit for n, unit in zip(parts.groups(), (3600, 60, 1, 0.001)))

def is_here(host): # the address of this machine
    try: return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError: return False

def check_nodes(nodes, token_file):
    for node in nodes:
        url = urllib.parse.urlsplit(node)
        if token_file and url.scheme != "https" and not is_here(url.hostname):
            raise ValueError(f"{node}: a token is sent over https only, or to this machine: others could read it on the way")

def request(nodes, path, body, until, timeout, token_file=None, **headers):
    "Sends the same request to one node after another until one answers it: when it was sent, the status, the answer."
    problem, pause = None, 0.2
    while problem is None or now() < until:
        for node in nodes:
            url, sent = urllib.parse.urlsplit(node), now()
            connection = getattr(http.client, url.scheme.upper() + "Connection")(url.netloc, timeout=min(timeout, 2))
            try:
                if token_file:
                    with open(token_file) as file: headers["Authorization"] = "Bearer " + file.read().strip()
                connection.connect() # a node that is off costs two seconds
                connection.sock.settimeout(timeout)
                connection.request("POST" if body else "GET", path, body and json.dumps(body), headers)
                response = connection.getresponse()
                answer = json.load(response)
                if response.status < 300: return sent, response.status, answer
                if response.status not in (429, 502, 503, 504): raise Refused(answer["message"], answer["code"], problem is not None)
                problem, pause = answer, float(response.headers.get("Retry-After", pause))
            except (OSError, http.client.HTTPException, ValueError) as error: # the answer is lost; the request may have arrived
                problem = error
            finally: connection.close()
        time.sleep(pause)
    raise TimeoutError(f"no node has answered in time; the last one: {problem}")

class lock:
    "A lock for a block. wait: seconds, or None for as long as it takes. fields: others of POST /v1/acquire, such as meta."
    def __init__(self, name, nodes, wait=30, ttl=15, token_file=None, **fields):
        check_nodes(nodes, token_file)
        self.nodes, self.ttl, self.patience, self.token_file = nodes, ttl, float("inf") if wait is None else wait, token_file
        self.body = dict(name=name, ttl=f"{ttl}s", wait="forever" if wait is None else f"{wait}s", poll=f"{ttl / 3}s", **fields)
        self.lost, self.left = threading.Event(), threading.Event() # the lock is lost; the block has been left

    def __enter__(self):
        end, status, key = now() + self.patience + self.ttl, 202, {"Idempotency-Key": secrets.token_hex(16)} # a key is secret
        while status == 202: # it waits; the same request under the same key keeps its place
            sent, status, self.grant = request(self.nodes, "/v1/acquire", self.body, end, self.ttl / 3 + 5, self.token_file, **key)
        self.token, self.valid = int(self.grant["token"]), seconds(self.grant["valid_for"])
        self.end = sent + seconds(self.grant.get("hold_left", "87600h")) # of max_hold, if that is given
        self.until = min(sent + self.valid, self.end) # from before the request was sent: so old the lease may be
        if now() > sent + self.valid / 2: self.renew() # the answer took long
        for job in self.keep, self.watch: threading.Thread(target=job, daemon=True).start()
        return self

    def renew(self):
        sent, _, answer = request(self.nodes, "/v1/renew", self.grant, self.until, self.valid / 3 / len(self.nodes), self.token_file)
        self.until = min(sent + seconds(answer["valid_for"]), self.end)

    def keep(self): # a thread: renews after each third of the time for which the lock is certain
        try:
            while not self.left.wait(self.valid / 3) and not self.lost.is_set(): self.renew()
        except Exception: self.lost.set()

    def watch(self): # a thread: says when that time is over, whatever the requests are doing
        while not self.left.wait(min(self.until - now(), 1)) and not self.lost.is_set():
            if now() >= self.until: self.lost.set()

    def check(self):
        if self.lost.is_set() or now() >= self.until: raise Lost("the lock was lost: another program may hold it")

    def __exit__(self, kind, *_): # releases; says that the lock was lost unless the block ends with another exception
        self.left.set()
        lost = self.lost.is_set() or now() >= self.until
        try: reason = request(self.nodes, "/v1/release", self.grant, now() + 5, 2, self.token_file)[2].get("reason")
        except TimeoutError: reason = None # it was held to the end of the block, and is free one ttl after the last renewal
        except Refused as error: reason = None if error.args[2] else "ended" # None: the request before may have released it
        if kind is None and (lost or reason not in (None, "dropped", "closed")): raise Lost("another program may have held the lock")
