import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** What the guide says about Curator, checked against a server: java Curator.java ADDRESS. */
public class Curator {
    interface Work {
        void run() throws Exception;
    }

    static void locked(CuratorFramework zk, String path, Work work) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(zk, path);
        mutex.acquire();
        try {
            work.run();
        } finally {
            mutex.release();
        }
    }

    static boolean ifFree(CuratorFramework zk, String path, Work work) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(zk, path);
        if (!mutex.acquire(0, TimeUnit.SECONDS)) {
            return false; // another process does it
        }
        try {
            work.run();
        } finally {
            mutex.release();
        }
        return true;
    }

    static void permitted(CuratorFramework zk, String path, Work work) throws Exception {
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(zk, path, 3);
        Lease lease = semaphore.acquire();
        try {
            work.run();
        } finally {
            semaphore.returnLease(lease);
        }
    }

    static void elected(CuratorFramework zk, String path, String id, Work work) throws Exception {
        try (LeaderLatch latch = new LeaderLatch(zk, path, id)) {
            latch.start();
            latch.await();
            work.run();
        }
    }

    static CuratorFramework connect(String address) throws Exception {
        CuratorFramework zk = CuratorFrameworkFactory.newClient(
                address, new ExponentialBackoffRetry(100, 5));
        zk.start();
        zk.blockUntilConnected();
        return zk;
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework a = connect(args[0]);
        CuratorFramework b = connect(args[0]);

        locked(a, "/curator/lock", () ->
                check(!ifFree(b, "/curator/lock", () -> {}), "two hold the lock"));
        check(ifFree(b, "/curator/lock", () -> {}), "the lock is free");

        InterProcessMutex mutex = new InterProcessMutex(a, "/curator/reentrant");
        mutex.acquire();
        mutex.acquire(); // by the same thread, of the same object: at once
        mutex.release();
        check(mutex.isOwnedByCurrentThread(), "one release of two frees the lock");
        mutex.release();
        locked(a, "/curator/object", () ->
                check(!ifFree(a, "/curator/object", () -> {}),
                        "another object of the same client is let in"));

        InterProcessReadWriteLock rw = new InterProcessReadWriteLock(a, "/curator/rw");
        InterProcessReadWriteLock other = new InterProcessReadWriteLock(b, "/curator/rw");
        rw.writeLock().acquire();
        rw.readLock().acquire(); // a writer may read
        check(!other.readLock().acquire(0, TimeUnit.SECONDS), "a reader beside a writer");
        rw.writeLock().release(); // a downgrade
        check(other.readLock().acquire(5, TimeUnit.SECONDS), "a reader beside a reader");
        check(!other.writeLock().acquire(0, TimeUnit.SECONDS), "an upgrade");
        other.readLock().release();
        rw.readLock().release();

        permitted(a, "/curator/permits", () ->
                permitted(b, "/curator/permits", () -> permitted(a, "/curator/permits", () -> {
                    Lease fourth = new InterProcessSemaphoreV2(b, "/curator/permits", 3)
                            .acquire(0, TimeUnit.SECONDS);
                    check(fourth == null, "four permits of three");
                    Lease larger = new InterProcessSemaphoreV2(b, "/curator/permits", 4)
                            .acquire(5, TimeUnit.SECONDS);
                    // clients must agree by themselves
                    check(larger != null, "another limit is not noticed");
                })));

        LeaderLatch second = new LeaderLatch(b, "/curator/leader", "b");
        elected(a, "/curator/leader", "a", () -> {
            second.start();
            check(!second.await(300, TimeUnit.MILLISECONDS), "two are elected");
            check(second.getLeader().getId().equals("a"), "the leader's id");
        });
        check(second.await(10, TimeUnit.SECONDS), "the next one is elected");
        second.close();

        a.close();
        b.close();
        System.out.println("ok");
    }
}
