package record

// Sum is a hash of one record, made word by word. The digest of a state is the sum of the Sums of
// its records, so it is kept up to date record by record and does not depend on the order in which
// they changed. It guards against faults, not against an adversary.
type Sum uint64

// The multiplier is 2^64 divided by the golden ratio, made odd: each step is then a bijection that
// spreads low bits upward, and the shift brings high ones back down. The increment makes a word of
// zero count.
const (
	sumMultiplier = 0x9E3779B97F4A7C15
	sumIncrement  = 0x632BE59BD9B4E019
)

// Word adds a number.
func (s Sum) Word(v uint64) Sum {
	s = (s^Sum(v))*sumMultiplier + sumIncrement
	return s ^ s>>29
}

// Text adds a string, with its length, so that neighbouring strings can't run into each other.
func (s Sum) Text(t string) Sum {
	s = s.Word(uint64(len(t)))
	for len(t) >= 8 {
		s = s.Word(uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
			uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56)
		t = t[8:]
	}
	var rest uint64
	for i := range len(t) {
		rest |= uint64(t[i]) << (8 * i)
	}
	return s.Word(rest)
}
