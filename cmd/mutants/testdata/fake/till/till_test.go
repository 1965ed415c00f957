package till

import "testing"

func TestPay(t *testing.T) {
	var till Till
	till.Pay(200)
	if till.Balance() != 200 {
		t.Fatalf("balance %d after paying 200", till.Balance())
	}
}

func TestDraw(t *testing.T) {
	t.Run("what is there", func(t *testing.T) {
		till := Till{balance: 200}
		if !till.Draw(150) || till.Balance() != 50 {
			t.Fatalf("balance %d after drawing 150 from 200", till.Balance())
		}
	})
	t.Run("more than is there", func(t *testing.T) {
		till := Till{balance: 100}
		if till.Draw(150) {
			t.Fatal("drew 150 from 100")
		}
	})
}
