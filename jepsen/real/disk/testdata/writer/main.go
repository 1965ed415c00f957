// Writer writes a node's log, vote and snapshots until it is killed, and says what was acknowledged.
//
//	writer write DIR    prints "written N" for each entry and "snapshot N" for each snapshot
//	writer check DIR    prints "holds N": all entries to N are there, or covered by a snapshot that ends before; else why not
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/hashicorp/raft"

	"zamok/raftnode/store"
)

const (
	snapshotEvery = 40 // entries
	trailing      = 10 // entries that stay behind a snapshot
	entryMost     = 12 << 10
	termEntries   = 8 // so that most flushes are the log's
)

func main() {
	do := map[string]func(*store.Store) error{"write": write, "check": check}[os.Args[1]]
	st, err := store.Open(store.Config{NodeID: "n1", Dir: os.Args[2], Fatal: func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}})
	if err == nil {
		err = errors.Join(do(st), st.Close())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// payload is what entry n holds: it says so itself, and fills some pages.
func payload(n uint64) []byte {
	dice := rand.New(rand.NewPCG(n, 0))
	return bytes.Repeat([]byte(fmt.Sprintf("%20d\n", n)), 1+dice.IntN(entryMost)/21)
}

func term(n uint64) uint64 { return 1 + n/termEntries }

func write(st *store.Store) error {
	last, err := st.Logs().LastIndex()
	if err != nil {
		return err
	}
	for n := last + 1; ; n++ {
		if n == last+1 || n%termEntries == 0 {
			if err := st.Votes().SetUint64([]byte("CurrentTerm"), term(n)); err != nil {
				return err
			}
		}
		data := payload(n)
		entry := &raft.Log{Index: n, Term: term(n), Data: data, Extensions: store.Checksum(data)}
		if err := st.Logs().StoreLogs([]*raft.Log{entry}); err != nil {
			return err
		}
		fmt.Println("written", n)
		if n%snapshotEvery == 0 {
			if err := snapshot(st, n); err != nil {
				return err
			}
			fmt.Println("snapshot", n)
		}
	}
}

// snapshot makes one, and drops what it covers from the log.
func snapshot(st *store.Store, n uint64) error {
	_, transport := raft.NewInmemTransport("n1")
	sink, err := st.Snapshots().Create(1, n, term(n), raft.Configuration{}, 0, transport)
	if err != nil {
		return err
	}
	if _, err := sink.Write(payload(n)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	first, err := st.Logs().FirstIndex()
	if err != nil || first > n-trailing {
		return err
	}
	return st.Logs().DeleteRange(first, n-trailing)
}

// newestSnapshot reads the newest snapshot, if there is one, and returns where it ends.
func newestSnapshot(st *store.Store) (uint64, error) {
	list, err := st.Snapshots().List()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	_, content, err := st.Snapshots().Open(list[0].ID)
	if err != nil {
		return 0, err
	}
	got, err := io.ReadAll(content)
	if err == nil && !bytes.Equal(got, payload(list[0].Index)) {
		err = fmt.Errorf("snapshot %d holds something else", list[0].Index)
	}
	return list[0].Index, errors.Join(err, content.Close())
}

func check(st *store.Store) error {
	newest, err := newestSnapshot(st)
	if err != nil {
		return err
	}
	first, err := st.Logs().FirstIndex()
	if err != nil {
		return err
	}
	last, err := st.Logs().LastIndex()
	if err != nil {
		return err
	}
	if first > newest+1 || last < newest {
		return fmt.Errorf("the log has %d to %d, and the newest snapshot ends at %d", first, last, newest)
	}
	for n := first; n <= last && n > 0; n++ {
		var entry raft.Log
		if err := st.Logs().GetLog(n, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", n, err)
		}
		if entry.Index != n || entry.Term != term(n) || !bytes.Equal(entry.Data, payload(n)) {
			return fmt.Errorf("entry %d holds something else", n)
		}
	}
	known, err := st.Votes().GetUint64([]byte("CurrentTerm"))
	if last > 0 && (err != nil || known < term(last)) {
		return fmt.Errorf("the log ends in term %d, the votes know term %d: %w", term(last), known, err)
	}
	fmt.Println("holds", last)
	return nil
}
