package report

import (
	"zamok/bench/measure"
)

type System struct {
	Name, Title, Keeps, Client, Notes string
	Floor                             bool
}

func Write(docs, source string, systems []System, rs measure.Results) error { return nil }
