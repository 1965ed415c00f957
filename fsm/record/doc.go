// Package record writes and reads records by one description of their fields.
//
// A record has one method that visits its fields in order:
//
//	func (s *Session) Code(c *record.Coder) {
//		record.Number(c, "id", &s.ID)
//		c.Text("label", &s.Label)
//	}
//
// A Coder that writes appends each field, and one that reads fills it. So a new field is named
// once, and written and read in the same place. One that describes lists the fields, so that two
// binaries can find out whether their records have the same:
//
//	w := record.NewWriter(nil)
//	s.Code(&w)
//	bytes := w.Bytes()
//
//	r := record.NewReader(bytes)
//	s.Code(&r)
//	err := r.End()
//
//	d := record.NewDescriber(nil)
//	s.Code(&d)
//	fields := d.Bytes()
//
// # Form
//
// Entries of the log and records of a snapshot are made of these:
//
//	number    unsigned: 7 bits a byte, the low ones first, the top bit set while more follow
//	signed    the number 2v for v ≥ 0 and −2v−1 for v < 0, so that values near 0 are short
//	text      its length in bytes, a number, then the bytes, whatever they are
//	raw       bytes whose count the format fixes: hashes and ids
//	checksum  the CRC-32C of the bytes before it, 4 bytes, the low one first
//
// Each value has one form, and reading accepts no other: a number in more bytes than it needs is
// refused. So bytes that were read are exactly the bytes that writing gives again, and no two nodes
// can disagree about a record.
package record
