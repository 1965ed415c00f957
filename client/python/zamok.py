"""Locks of a zamok cluster for Python 3.8 or newer, with the standard library only.
Copy this file; see docs/guide/http.md.

    with zamok.lock("stock", ["http://node1:5752", "http://node2:5752",
                              "http://node3:5752"]) as lock:
        write(…, token=lock.token)     # a storage that compares tokens refuses a late write
        lock.check()                   # raises zamok.Lost if the lock may be another's by now

To nodes with TLS write https, with the authority in the environment: SSL_CERT_FILE. token_file=…
names a file with the token that says who this is, read for each request; see docs/guide/access.md.
Without TLS it is sent to this machine only.
"""
import http.client, ipaddress, json, re, secrets, socket, ssl, threading, time, urllib.parse

class Lost(Exception): "The lock is not certain any more: another program may hold it."
class Refused(Exception):
    """A node has said no. args: the message, the code. in_doubt: an attempt before may have taken
    effect."""

clocks = [getattr(time, name)
          for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW")
          if hasattr(time, name)]
def read_clocks(): return [time.clock_gettime(clock) for clock in clocks] or [time.monotonic()]
passed, last, reading = 0.0, read_clocks(), threading.Lock()

# time that has passed, by the fastest of the clocks that nobody sets: one goes on in a suspend, one
# is not slewed
def now():
    global passed, last
    with reading:
        these = read_clocks()
        passed, last = passed + max(b - a for a, b in zip(last, these)), these
        return passed

def seconds(text): # "1m54.5s" is 114.5
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s|(\d+)ms)?", text)
    if not text or not parts: raise ValueError(f"{text!r} is no duration")
    return sum(float(n or 0) * unit for n, unit in zip(parts.groups(), (3600, 60, 1, 0.001)))

def is_here(host): # the address of this machine
    try: return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError: return False

def check_nodes(nodes, token_file):
    if isinstance(nodes, str) or not nodes:
        raise ValueError(f'nodes is {nodes!r}, and not a list as ["http://node1:5752"]')
    for node in nodes:
        url = urllib.parse.urlsplit(node)
        if (url.scheme not in ("http", "https") or not url.hostname or url.port == 0
                or "@" in url.netloc):
            raise ValueError(f"{node!r} is no address of a node, as http://node1:5752")
        if token_file and url.scheme != "https" and not is_here(url.hostname):
            raise ValueError(f"{node}: a token is sent over https only, or to this machine: "
                             "others could read it on the way")

def speaks_first(url): # as a server of gRPC does, and none of HTTP/1
    try:
        with socket.create_connection((url.hostname, url.port or 80), 1) as connection:
            connection.settimeout(0.5)
            return url.scheme == "http" and bool(connection.recv(1))
    except OSError: return False

# of each list of nodes: the cluster that answered first. In another one, another program may hold
# the same lock
clusters = {}

def request(nodes, path, body, until, timeout, token_file=None, **headers):
    """Sends the same request to one node after another until one answers it: when it was sent, the
    status, the answer."""
    listed, in_doubt, pause = tuple(nodes), False, 0.2
    while True:
        problems, wrong = [], 0 # of each node; how many of them are no nodes
        for node in nodes:
            url, sent = urllib.parse.urlsplit(node), now()
            connection = getattr(http.client, url.scheme.upper() + "Connection")(
                url.netloc, timeout=min(timeout, 2))
            arrived, text = False, b"" # it may have arrived
            try:
                if token_file:
                    with open(token_file) as file:
                        headers["Authorization"] = "Bearer " + file.read().strip()
                if listed in clusters: headers["Zamok-Cluster"] = clusters[listed]
                connection.connect() # a node that is off costs two seconds
                connection.sock.settimeout(timeout)
                arrived = True
                connection.request("POST", url.path.rstrip("/") + path, json.dumps(body), headers)
                response = connection.getresponse()
                text, cluster = response.read(), response.getheader("Zamok-Cluster")
                if response.status in (429, 502, 503, 504):
                    pause = float(response.headers.get("Retry-After", pause))
                    arrived, error = (
                        b'"outcome":"not_done"' not in text, text.decode(errors="replace"))
                else:
                    answer = json.loads(text)
                    if cluster and clusters.setdefault(listed, cluster) != cluster:
                        answer = {"code": "wrong_cluster", "message":
                            f"{node} belongs to cluster {cluster}, "
                            f"and another node of the list to {clusters[listed]}"}
                    elif response.status < 300 and cluster: return sent, response.status, answer
                    refused = Refused(answer["message"], answer["code"])
                    # which no attempt has done then
                    refused.in_doubt = in_doubt and answer.get("outcome") != "not_done"
                    raise refused
            except ssl.SSLError as e:
                wrong, error = wrong + (not isinstance(e, ssl.SSLEOFError)), f"no TLS: {e}"
            # the answer is lost; the request may have arrived
            except (ConnectionError, http.client.BadStatusLine) as e:
                error = e
                if arrived and speaks_first(url):
                    wrong, error = wrong + 1, "it does not speak HTTP/1; is that the port for gRPC?"
            except (KeyError, TypeError, ValueError):
                wrong, error = wrong + 1, f"it does not answer as a node does: {text[:100]!r}"
            except (OSError, http.client.HTTPException) as e: error = e
            finally: connection.close()
            in_doubt = in_doubt or arrived
            problems.append(f"{node}: {error}")
        if wrong == len(nodes) and path == "/v1/acquire":
            raise ValueError("no address of a node: " + "; ".join(problems))
        if now() + pause >= until: break
        time.sleep(pause)
    problem = TimeoutError("no node has answered in time: " + "; ".join(problems))
    problem.in_doubt = in_doubt
    raise problem

class lock:
    """A lock for a block. wait: seconds, or None for as long as it takes. fields: others of POST
    /v1/acquire, such as meta."""
    def __init__(self, name, nodes, wait=30, ttl=15, token_file=None, **fields):
        check_nodes(nodes, token_file)
        self.nodes, self.ttl, self.patience, self.token_file = (
            nodes, ttl, float("inf") if wait is None else wait, token_file)
        self.body = dict(
            name=name, ttl=f"{ttl}s", wait="forever" if wait is None else f"{wait}s",
            poll=f"{ttl / 3}s", **fields)
        # the lock is lost; the block has been left
        self.lost, self.left = threading.Event(), threading.Event()

    def __enter__(self):
        self.grant, key = None, {"Idempotency-Key": secrets.token_hex(16)} # a key is secret
        end, status = now() + self.patience + self.ttl, 202
        try:
            while status == 202: # it waits; the same request under the same key keeps its place
                try:
                    sent, status, self.grant = request(
                        self.nodes, "/v1/acquire", self.body, end, self.ttl / 3 + 5,
                        self.token_file, **key)
                except Refused as error:
                    if error.args[1] != "no_session" or not self.grant: raise
                    # granted and lost unnoticed: it begins anew
                    self.grant, key["Idempotency-Key"] = None, secrets.token_hex(16)
            self.token = int(self.grant["token"])
            self.confirm(sent, self.grant)
            if now() > sent + self.valid / 2: self.renew() # the answer took long
            self.check()
        except BaseException as error:
            if self.grant or getattr(error, "in_doubt", True): self.give_up(key)
            raise
        for job in self.keep, self.watch: threading.Thread(target=job, daemon=True).start()
        return self

    def give_up(self, key): # ends what was acquired, or still waits, or is in doubt
        try:
            if not self.grant:
                body = dict(self.body, poll="1ms")
                self.grant = request(
                    self.nodes, "/v1/acquire", body, now(), 2, self.token_file, **key)[2]
            request(self.nodes, "/v1/release", self.grant, now(), 2, self.token_file)
        except Exception: pass # it ends one ttl after the last request

    def confirm(self, sent, answer): # from before the request was sent: so old the lease may be
        self.valid = seconds(answer["valid_for"])
        self.until, self.pause = sent + self.valid, max(self.valid / 3, 0.2)

    def renew(self):
        sent, _, answer = request(
            self.nodes, "/v1/renew", self.grant, self.until, self.pause / len(self.nodes),
            self.token_file)
        self.confirm(sent, answer)

    def keep(self): # a thread: renews after each third of the time for which the lock is certain
        try:
            while not self.left.wait(self.pause) and not self.lost.is_set(): self.renew()
        except Exception: self.lost.set()

    def watch(self): # a thread: says when that time is over, whatever the requests are doing
        while not self.left.wait(max(min(self.until - now(), 1), 0)) and not self.lost.is_set():
            if now() >= self.until: self.lost.set()

    def check(self):
        if self.lost.is_set() or now() >= self.until:
            raise Lost("the lock was lost: another program may hold it")

    # releases; says that the lock was lost unless the block ends with another exception
    def __exit__(self, kind, *_):
        self.left.set()
        lost = self.lost.is_set() or now() >= self.until
        try:
            reason = request(self.nodes, "/v1/release", self.grant, now() + 5, 2,
                             self.token_file)[2].get("reason")
        # it was held to the end of the block, and is free one ttl after the last renewal
        except TimeoutError: reason = None
        # None: an attempt before may have released it
        except Refused as error: reason = None if error.in_doubt else "ended"
        if kind is None and (lost or reason not in (None, "dropped", "closed")):
            raise Lost("another program may have held the lock")
