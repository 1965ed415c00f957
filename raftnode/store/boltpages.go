package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// What bbolt writes, as far as it is checked here: see page.go, meta.go and
// inode.go in bbolt's internal/common. All numbers are in the machine's own order.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltMetaPages  = 2
	boltMetaBytes  = 64 // its last 8 are the checksum
	boltPageHeader = 16 // id, flags, count, overflow
	boltElement    = 16
	boltBucket     = 16 // root page, sequence
	boltNoFreelist = ^uint64(0)

	boltBranch   = 1
	boltLeaf     = 2
	boltMeta     = 4
	boltFreelist = 16
)

// boltPages reads the pages of a bbolt file that is not open yet.
//
// bbolt checks no page but the two that say where the tree is, and of these it
// takes the older one when the newer one is damaged. A damaged tree makes it read
// other keys, panic, also on goroutines where no caller can recover, or touch memory
// beyond the end of the file. So the whole tree is checked before bbolt maps the
// file. What bbolt writes has one form only: elements in order and without a gap
// between them, no page used twice, no more pages than the elements need. What is
// in keys and values is checked by the code that wrote them.
type boltPages struct {
	file io.ReaderAt
	page int64  // bytes of a page
	end  uint64 // the number of pages that have been in use
	used map[uint64]bool
}

type boltMetaPage struct {
	page                       uint32
	root, freelist, end, chain uint64
}

// checkBolt returns what is wrong with a bbolt file of so many bytes, or nil.
func checkBolt(file io.ReaderAt, size int64) error {
	first, err := readBoltMeta(file, 0, 0)
	if err != nil {
		return err
	}
	second, err := readBoltMeta(file, int64(first.page), 1)
	if err != nil {
		return err
	}
	if first.page != second.page || first.chain == second.chain {
		return fmt.Errorf("%w: its two meta pages contradict each other", errRecord)
	}
	newest := first
	if second.chain > first.chain {
		newest = second
	}
	p := &boltPages{file: file, page: int64(newest.page), end: newest.end, used: map[uint64]bool{}}
	if newest.end > uint64(size)/uint64(p.page) {
		return fmt.Errorf("%w: it has %d bytes, and its meta page counts %d pages of %d", errRecord, size, newest.end, p.page)
	}
	if newest.freelist != boltNoFreelist {
		if _, err := p.read(newest.freelist, boltFreelist); err != nil {
			return err
		}
	}
	return p.walk(newest.root, nil, nil)
}

func readBoltMeta(file io.ReaderAt, at int64, number uint64) (m boltMetaPage, err error) {
	text := make([]byte, boltPageHeader+boltMetaBytes)
	if _, err := file.ReadAt(text, at); err != nil {
		return m, fmt.Errorf("%w: meta page %d can't be read: %w", errRecord, number, err)
	}
	meta := text[boltPageHeader:]
	sum := fnv.New64a()
	sum.Write(meta[:boltMetaBytes-8])
	order := binary.NativeEndian
	m = boltMetaPage{
		page: order.Uint32(meta[8:]), root: order.Uint64(meta[16:]), freelist: order.Uint64(meta[32:]),
		end: order.Uint64(meta[40:]), chain: order.Uint64(meta[48:]),
	}
	switch {
	case order.Uint64(meta[boltMetaBytes-8:]) != sum.Sum64(), order.Uint32(meta) != boltMagic, order.Uint32(meta[4:]) != boltVersion,
		order.Uint64(text) != number, order.Uint16(text[8:]) != boltMeta, m.page < boltPageHeader+boltMetaBytes:
		return m, fmt.Errorf("%w: meta page %d does not fit its checksum", errRecord, number)
	}
	return m, nil
}

// read returns a page, with those that continue it.
func (p *boltPages) read(number uint64, kinds ...uint16) ([]byte, error) {
	broken := func(what string) error { return fmt.Errorf("%w: page %d %s", errRecord, number, what) }
	if number < boltMetaPages || number >= p.end {
		return nil, broken("is beyond the end")
	}
	text := make([]byte, p.page)
	if _, err := p.file.ReadAt(text, int64(number)*p.page); err != nil {
		return nil, broken(err.Error())
	}
	more := uint64(binary.NativeEndian.Uint32(text[12:]))
	fits := binary.NativeEndian.Uint64(text) == number && number+more < p.end
	if !fits || !slices.Contains(kinds, binary.NativeEndian.Uint16(text[8:])) {
		return nil, broken("is not what it is used as")
	}
	for i := number; i <= number+more; i++ {
		if p.used[i] {
			return nil, broken("is used twice")
		}
		p.used[i] = true
	}
	if more == 0 {
		return text, nil
	}
	text = append(text, make([]byte, int64(more)*p.page)...)
	if _, err := p.file.ReadAt(text[p.page:], int64(number+1)*p.page); err != nil {
		return nil, broken(err.Error())
	}
	return text, nil
}

// walk checks a page and all below it. Its keys are from least on and below end; nil is no bound.
func (p *boltPages) walk(number uint64, least, end []byte) error {
	text, err := p.read(number, boltBranch, boltLeaf)
	if err != nil {
		return err
	}
	size, err := p.elements(text, least, end)
	if err != nil {
		return fmt.Errorf("%w: page %d: %w", errRecord, number, err)
	}
	if pages := (int64(size) + p.page - 1) / p.page; pages*p.page != int64(len(text)) {
		return fmt.Errorf("%w: page %d has another length than its elements", errRecord, number)
	}
	return nil
}

// elements checks what is on a page, and below it, and returns how many bytes of the page it takes.
func (p *boltPages) elements(text, least, end []byte) (size int, err error) {
	leaf := binary.NativeEndian.Uint16(text[8:]) == boltLeaf
	count := int(binary.NativeEndian.Uint16(text[10:]))
	if !leaf && count == 0 {
		return 0, fmt.Errorf("%w: no elements", errRecord)
	}
	size = boltPageHeader + count*boltElement
	if size > len(text) {
		return 0, fmt.Errorf("%w: more elements than it has room for", errRecord)
	}
	keys := make([][]byte, count, count+1)
	below := make([]uint64, count)
	for i := range count {
		at := boltPageHeader + i*boltElement
		e := boltElementAt(text[at:], leaf)
		from := uint64(at) + e.pos
		if from != uint64(size) || e.key == 0 || from+e.key+e.value > uint64(len(text)) {
			return 0, fmt.Errorf("%w: element %d is not in its place", errRecord, i)
		}
		size += int(e.key + e.value)
		keys[i], below[i] = text[from:from+e.key], e.page
		if i == 0 && bytes.Compare(keys[0], least) < 0 || i > 0 && bytes.Compare(keys[i-1], keys[i]) >= 0 ||
			end != nil && bytes.Compare(keys[i], end) >= 0 {
			return 0, fmt.Errorf("%w: key %d is out of order", errRecord, i)
		}
		if !leaf {
			continue
		}
		if err := p.value(e.flags, text[from+e.key:size]); err != nil {
			return 0, err
		}
	}
	if leaf {
		return size, nil
	}
	keys = append(keys, end)
	for i := range below {
		if err := p.walk(below[i], keys[i], keys[i+1]); err != nil {
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
		return fmt.Errorf("%w: a value of an unknown kind", errRecord)
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.walk(root, nil, nil)
	}
	inline := value[boltBucket:]
	if len(inline) < boltPageHeader || binary.NativeEndian.Uint16(inline[8:]) != boltLeaf {
		return fmt.Errorf("%w: a bucket without a page", errRecord)
	}
	size, err := p.elements(inline, nil, nil)
	if err == nil && size != len(inline) {
		err = fmt.Errorf("%w: a bucket of another length than its elements", errRecord)
	}
	return err
}

type boltElementHead struct {
	pos, key, value, page uint64
	flags                 uint32
}

func boltElementAt(text []byte, leaf bool) boltElementHead {
	order := binary.NativeEndian
	if leaf {
		return boltElementHead{
			flags: order.Uint32(text), pos: uint64(order.Uint32(text[4:])),
			key: uint64(order.Uint32(text[8:])), value: uint64(order.Uint32(text[12:])),
		}
	}
	return boltElementHead{pos: uint64(order.Uint32(text)), key: uint64(order.Uint32(text[4:])), page: order.Uint64(text[8:])}
}
