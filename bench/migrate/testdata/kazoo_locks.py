"""What the guide says about Kazoo and zamok.py, checked against servers:
kazoo_locks.py ZOOKEEPER ZAMOK."""

import sys
import threading

import zamok
from kazoo.client import KazooClient


def locked(zk, path, work):
    with zk.Lock(path, "me"):
        work()


def if_free(zk, path, work):
    lock = zk.Lock(path, "me")
    if not lock.acquire(blocking=False):
        return False  # another process does it
    try:
        work()
    finally:
        lock.release()
    return True


def reading(zk, path, work):
    with zk.ReadLock(path, "me"):
        work()


def permitted(zk, path, work):
    with zk.Semaphore(path, "me", max_leases=3):
        work()


def elected(zk, path, work):
    zk.Election(path, "me").run(work)


def zamok_locked(nodes, name, work):
    with zamok.lock(name, nodes) as lock:
        work(lock.token)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def main(address, node):
    a, b = KazooClient(address), KazooClient(address)
    a.start()
    b.start()

    locked(a, "/kazoo/lock", lambda: check(
        not if_free(b, "/kazoo/lock", lambda: None), "two hold the lock"))
    check(if_free(b, "/kazoo/lock", lambda: None), "the lock is free")

    lock = a.Lock("/kazoo/again", "me")
    check(lock.acquire(), "the lock is free")
    check(not lock.acquire(blocking=False), "it is reentrant")
    lock.release()

    def beside_a_reader():
        check(not b.WriteLock("/kazoo/rw").acquire(blocking=False), "a writer beside a reader")
        reading(b, "/kazoo/rw", lambda: None)

    reading(a, "/kazoo/rw", beside_a_reader)

    def beside_three():
        check(not b.Semaphore("/kazoo/permits", max_leases=3).acquire(blocking=False),
              "four permits of three")

    permitted(a, "/kazoo/permits", lambda: permitted(
        b, "/kazoo/permits", lambda: permitted(a, "/kazoo/permits", beside_three)))

    second = threading.Event()
    follower = threading.Thread(target=elected, args=(b, "/kazoo/leader", second.set))

    def lead():
        follower.start()
        check(not second.wait(0.3), "two are elected")

    elected(a, "/kazoo/leader", lead)
    check(second.wait(10), "the next one is elected")
    follower.join()
    tokens = []

    def beside_zamok(token):
        tokens.append(token)
        try:
            with zamok.lock("kazoo", [node], wait=0):
                raise AssertionError("two hold the lock")
        except zamok.Refused as refused:
            check(refused.args[1] == "not_acquired", refused)

    zamok_locked([node], "kazoo", beside_zamok)
    zamok_locked([node], "kazoo", tokens.append)
    check(tokens[0] < tokens[1], "tokens do not rise")

    a.stop()
    b.stop()
    print("ok")


main(*sys.argv[1:])
