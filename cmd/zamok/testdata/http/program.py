"""count FILE ROUNDS counts in a file under a lock; hold NAME waits until the lock is lost; use NAME does nothing under it; brief NAME
waits for it for a second; believe NAME MAX_HOLD says for how long it held the lock to be its own."""
import os
import sys
import time

import zamok

if "ZAMOK_TEST_RATE" in os.environ: # this program's clock is slow
    right, rate = zamok.now, float(os.environ["ZAMOK_TEST_RATE"])
    zamok.now = lambda: right() * rate

nodes = os.environ["ZAMOK_HTTP"].split()

def count(file, rounds):
    for _ in range(int(rounds)):
        with zamok.lock("counter", nodes, wait=60, meta="a test") as lock:
            with open(file) as f:
                so_far, last = map(int, f.read().split())
            if lock.token <= last:
                sys.exit(f"the token {lock.token} follows {last}")
            lock.check()
            with open(file, "w") as f:
                f.write(f"{so_far + 1} {lock.token}\n")

def hold(name):
    try:
        with zamok.lock(name, nodes, ttl=10) as lock:
            print("holding", flush=True)
            lock.lost.wait()
            try:
                lock.check()
            except zamok.Lost:
                print("lost", flush=True)
        sys.exit("the end of the block did not say that the lock was lost")
    except zamok.Lost:
        sys.exit(123)

def believe(name, max_hold):
    try:
        with zamok.lock(name, nodes, wait=60, ttl=10, max_hold=max_hold) as lock:
            print("holding", flush=True)
            while True:
                before = time.time()
                lock.check()
                believed = before
                time.sleep(0.002)
    except zamok.Lost:
        print("believed", believed, flush=True)

def use(name, **fields):
    try:
        with zamok.lock(name, nodes, token_file=os.environ.get("ZAMOK_TOKEN_FILE"), **fields):
            print("used", flush=True)
    except zamok.Lost:
        sys.exit(123)

def brief(name): # as use, and waits for a second at most
    use(name, ttl=1, wait=0)

def text(name): # a mistake
    zamok.lock(name, " ".join(nodes))

{"count": count, "hold": hold, "believe": believe, "use": use, "brief": brief, "text": text}[sys.argv[1]](*sys.argv[2:])
