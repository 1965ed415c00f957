"""count FILE ROUNDS counts in a file under a lock; hold NAME waits until the lock is lost; use NAME does nothing under it."""
import os
import sys

import zamok

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

def use(name):
    try:
        with zamok.lock(name, nodes, token_file=os.environ.get("ZAMOK_TOKEN_FILE")):
            print("used", flush=True)
    except zamok.Lost:
        sys.exit(123)

{"count": count, "hold": hold, "use": use}[sys.argv[1]](*sys.argv[2:])
