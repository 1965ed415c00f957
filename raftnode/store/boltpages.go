package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
)

// What bbolt writes, as far as it is checked here: see page.go, meta.go and
// inode.go in bbolt's internal/common. All numbers are in the machine's own order.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageBytes  = 16 // of a page's head
	boltMetaBytes  = 64
	boltElement    = 16 // bytes
	boltBucket     = 16 // bytes: root page, sequence
	boltNoFreelist = ^uint64(0)

	boltLeaf = 2
	boltMeta = 4
)

type boltPageHead struct {
	ID           uint64
	Kind, Count  uint16
	Continuation uint32 // how many pages continue this one
}

type boltMetaPage struct {
	Head                                            boltPageHead
	Magic, Version, PageBytes, Flags                uint32
	Root, Sequence, Freelist, End, Transaction, Sum uint64
}

// checkBolt returns what is wrong with a bbolt file that is not open yet, or nil.
//
// bbolt checks no page but the two that say where the tree is, and of these it
// takes the older one when the newer one is damaged. A damaged tree makes it read
// other keys, panic, also on goroutines where no caller can recover, or touch memory
// beyond the end of the file. So the whole tree is checked before bbolt maps the
// file. It has one bucket with one key: each of its pages is what bbolt writes of that, byte for
// byte. What is in the value is checked by the code that wrote it.
//
// bbolt's own Tx.Check does not serve: it needs the file mapped, and panics on such a goroutine.
func checkBolt(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return recovered(func() error {
		newest := boltMetaIn(text, 0, 0)
		page := uint64(newest.PageBytes)
		second := boltMetaIn(text, 1, page)
		expect(newest.PageBytes == second.PageBytes && newest.Transaction != second.Transaction,
			"its two meta pages contradict each other")
		if second.Transaction > newest.Transaction {
			newest = second
		}
		expect(newest.End <= uint64(len(text))/page && newest.Freelist == boltNoFreelist,
			"it has %d bytes, and its meta page counts %d pages of %d", len(text), newest.End, page)
		bucket := boltElementIn(text[newest.Root*page:], newest.Root, page, 1, tableBucket)
		id := binary.NativeEndian.Uint64(bucket)
		inside := bucket[boltBucket:]
		if id != 0 { // the bucket has a page of its own
			expect(len(inside) == 0, "page %d: a bucket with a page and something behind it",
				newest.Root)
			inside = text[id*page:]
		}
		boltElementIn(inside, id, page, 0, tableKey)
		return nil
	})
}

// expect ends the check of a file that is not as bbolt writes it. checkBolt makes an error of the
// panic, as is done with those of bbolt.
func expect(fulfilled bool, format string, args ...any) {
	if !fulfilled {
		panic(fmt.Sprintf(format, args...))
	}
}

// boltMetaIn reads one of the two pages that say where the tree is.
func boltMetaIn(text []byte, number, page uint64) (m boltMetaPage) {
	text = text[number*page:][:boltPageBytes+boltMetaBytes]
	_, err := binary.Decode(text, binary.NativeEndian, &m)
	sum := fnv.New64a()
	sum.Write(text[boltPageBytes : len(text)-8])
	expect(err == nil && m.Sum == sum.Sum64() && m.Magic == boltMagic && m.Version == boltVersion &&
		m.Head.ID == number && m.Head.Kind == boltMeta && int(m.PageBytes) >= len(text),
		"meta page %d: it does not fit its checksum", number)
	return m
}

// boltElementIn returns the value on a page that has one element, of this key.
func boltElementIn(text []byte, id, page uint64, flags uint32, key []byte) []byte {
	begin := boltPageBytes + boltElement + len(key)
	length := binary.NativeEndian.Uint32(text[boltPageBytes+12:])
	value := text[begin:][:length]
	size := uint64(begin) + uint64(length)
	head := boltPageHead{ID: id, Kind: boltLeaf, Count: 1}
	if id != 0 {
		head.Continuation = uint32((size - 1) / page)
	}
	want, err := binary.Append(nil, binary.NativeEndian, head)
	want, err2 := binary.Append(want, binary.NativeEndian,
		[4]uint32{flags, boltElement, uint32(len(key)), length})
	want = append(want, key...)
	expect(err == nil && err2 == nil && bytes.HasPrefix(text, want),
		"page %d is not what bbolt writes", id)
	return value
}
