package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// What bbolt writes, as far as it is checked here: see page.go, meta.go and
// inode.go in bbolt's internal/common. All numbers are in the machine's own order.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltMetaPages  = 2
	boltPageBytes  = 16 // of a page's head
	boltMetaBytes  = 64
	boltElement    = 16 // bytes
	boltBucket     = 16 // bytes: root page, sequence
	boltNoFreelist = ^uint64(0)

	boltBranch = 1
	boltLeaf   = 2
	boltMeta   = 4
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

// boltPages reads the pages of a bbolt file that is not open yet.
//
// bbolt checks no page but the two that say where the tree is, and of these it
// takes the older one when the newer one is damaged. A damaged tree makes it read
// other keys, panic, also on goroutines where no caller can recover, or touch memory
// beyond the end of the file. So the whole tree is checked before bbolt maps the
// file. What bbolt writes has one form only: elements in order and without a gap
// between them, no page used twice, no more pages than the elements need. What is
// in keys and values is checked by the code that wrote them.
//
// bbolt's own Tx.Check does not serve: it needs the file mapped, and panics on such a goroutine.
type boltPages struct {
	file io.ReaderAt
	page int64  // bytes of a page
	end  uint64 // the number of pages that have been in use
	used map[uint64]bool
}

// checkBolt returns what is wrong with a bbolt file, or nil.
func checkBolt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var metas [boltMetaPages]boltMetaPage
	for i := range metas {
		if metas[i], err = readBoltMeta(f, uint64(i), int64(metas[0].PageBytes)); err != nil {
			return fmt.Errorf("%w: meta page %d: %w", errRecord, i, err)
		}
	}
	if metas[0].PageBytes != metas[1].PageBytes || metas[0].Transaction == metas[1].Transaction {
		return fmt.Errorf("%w: its two meta pages contradict each other", errRecord)
	}
	newest := metas[0]
	if metas[1].Transaction > newest.Transaction {
		newest = metas[1]
	}
	p := &boltPages{file: f, page: int64(newest.PageBytes), end: newest.End, used: map[uint64]bool{}}
	if newest.End > uint64(info.Size()/p.page) || newest.Freelist != boltNoFreelist {
		return fmt.Errorf("%w: it has %d bytes, and its meta page counts %d pages of %d", errRecord, info.Size(), newest.End, p.page)
	}
	if err := p.walk(newest.Root, nil, nil); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	return nil
}

func readBoltMeta(file io.ReaderAt, number uint64, pageBytes int64) (m boltMetaPage, err error) {
	text := make([]byte, boltPageBytes+boltMetaBytes)
	if _, err := file.ReadAt(text, int64(number)*pageBytes); err != nil {
		return m, err
	}
	decodeBolt(text, &m)
	sum := fnv.New64a()
	sum.Write(text[boltPageBytes : len(text)-8])
	if m.Sum != sum.Sum64() || m.Magic != boltMagic || m.Version != boltVersion ||
		m.Head.ID != number || m.Head.Kind != boltMeta || int(m.PageBytes) < len(text) {
		return m, errors.New("it does not fit its checksum")
	}
	return m, nil
}

// decodeBolt decodes a value from the beginning of a longer text.
func decodeBolt(text []byte, value any) {
	if _, err := binary.Decode(text, binary.NativeEndian, value); err != nil {
		panic(err)
	}
}

// walk checks a page, with those that continue it, and all below it. Its keys are from least on and below
// end; nil is no bound.
func (p *boltPages) walk(number uint64, least, end []byte) error {
	if number < boltMetaPages || number >= p.end {
		return fmt.Errorf("page %d is beyond the end", number)
	}
	var head boltPageHead
	from := io.NewSectionReader(p.file, int64(number)*p.page, boltPageBytes)
	if err := binary.Read(from, binary.NativeEndian, &head); err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	last := number + uint64(head.Continuation)
	if head.ID != number || last >= p.end || head.Kind != boltBranch && head.Kind != boltLeaf {
		return fmt.Errorf("page %d is not what it is used as", number)
	}
	for i := number; i <= last; i++ {
		if p.used[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		p.used[i] = true
	}
	text := make([]byte, int64(last+1-number)*p.page)
	if _, err := p.file.ReadAt(text, int64(number)*p.page); err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	size, err := p.elements(text, least, end)
	if err != nil {
		return fmt.Errorf("page %d: %w", number, err)
	}
	if pages := (int64(size) + p.page - 1) / p.page; pages*p.page != int64(len(text)) {
		return fmt.Errorf("page %d has another length than its elements", number)
	}
	return nil
}

// elements checks what is on a page, and below it, and returns how many bytes of the page it takes.
func (p *boltPages) elements(text, least, end []byte) (size int, err error) {
	var head boltPageHead
	decodeBolt(text, &head)
	count := int(head.Count)
	size = boltPageBytes + count*boltElement
	if size > len(text) || head.Kind == boltBranch && count == 0 {
		return 0, fmt.Errorf("%d elements", count)
	}
	// A leaf's element is flags, offset, length of the key and of the value; a branch's is offset,
	// length of the key, and page.
	words := make([][4]uint32, count)
	decodeBolt(text[boltPageBytes:], words)
	keys := make([][]byte, count, count+1)
	for i, word := range words {
		flags, offset, key, value := word[0], uint64(word[1]), uint64(word[2]), uint64(word[3])
		if head.Kind == boltBranch {
			flags, offset, key, value = 0, uint64(word[0]), uint64(word[1]), 0
		}
		from := uint64(size)
		to := from + key + value
		if uint64(boltPageBytes+i*boltElement)+offset != from || key == 0 || to > uint64(len(text)) {
			return 0, fmt.Errorf("element %d is at the wrong offset", i)
		}
		size, keys[i] = int(to), text[from:from+key]
		if bytes.Compare(keys[i], least) < 0 || i > 0 && bytes.Equal(keys[i], least) || end != nil && bytes.Compare(keys[i], end) >= 0 {
			return 0, fmt.Errorf("key %d is out of order", i)
		}
		least = keys[i]
		if err := p.value(flags, text[from+key:to]); err != nil {
			return 0, err
		}
	}
	keys = append(keys, end)
	for i := 0; head.Kind == boltBranch && i < count; i++ {
		page := binary.NativeEndian.Uint64(text[boltPageBytes+i*boltElement+8:])
		if err := p.walk(page, keys[i], keys[i+1]); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// value checks the bucket that a value is, if it is one.
func (p *boltPages) value(flags uint32, value []byte) error {
	switch {
	case flags == 0:
		return nil
	case flags != 1 || len(value) < boltBucket:
		return errors.New("a value of an unknown kind")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.walk(root, nil, nil)
	}
	inline := value[boltBucket:]
	if len(inline) < boltPageBytes || binary.NativeEndian.Uint16(inline[8:]) != boltLeaf {
		return errors.New("a bucket without a page")
	}
	if size, err := p.elements(inline, nil, nil); err != nil || size != len(inline) {
		return errors.Join(fmt.Errorf("a bucket of %d bytes with %d bytes of elements", len(inline), size), err)
	}
	return nil
}
