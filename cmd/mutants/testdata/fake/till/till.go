// Package till is a small thing to plant bugs in.
package till

// Till holds money.
type Till struct {
	balance int
	refused int
}

// Pay puts an amount in.
func (t *Till) Pay(amount int) {
	t.balance += amount
}

// Draw takes an amount out, or refuses.
func (t *Till) Draw(amount int) bool {
	if amount > t.balance {
		t.refused++
		return false
	}
	t.balance -= amount
	return true
}

// Balance is what Draw can take.
func (t *Till) Balance() int {
	return t.balance
}

// Refused counts draws; nobody tests it.
func (t *Till) Refused() int {
	return t.refused
}
