package peer

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// Founders are the initial members of a cluster: the nodes of its --cluster list, each with the
// incarnation that it had when all of them agreed. They decide the first entry of the log, which is
// the same on every node because each has them on disk before any of them writes it. The zero
// Founders are none: those of a node that joined a running cluster, or has not agreed yet.
type Founders struct{ founders []founder } // in the order of their names

type founder struct {
	Server
	address string
}

// ParseFounders reads what String returns; of "", the zero Founders.
func ParseFounders(text string) (Founders, error) {
	if text == "" {
		return Founders{}, nil
	}
	incarnations := map[string]Incarnation{}
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		id, address, _ := strings.Cut(item, "=")
		server, err := ParseServer(raft.ServerID(id))
		if err != nil {
			return Founders{}, fmt.Errorf("initial members: %w", err)
		}
		incarnations[server.Name] = server.Incarnation
		items = append(items, server.Name+"="+address)
	}
	list, err := ParseList(strings.Join(items, ","))
	if err != nil {
		return Founders{}, fmt.Errorf("initial members: %w", err)
	}
	f := NewFounders(list, incarnations)
	if f.String() != text {
		return Founders{}, fmt.Errorf("initial members: %q is not as this release writes them", text)
	}
	return f, nil
}

// NewFounders joins the nodes of a list with their incarnations; each node must have one.
func NewFounders(list List, incarnations map[string]Incarnation) Founders {
	var f Founders
	for _, node := range list.nodes {
		f.founders = append(f.founders, founder{Server{node.ID, incarnations[node.ID]}, node.Address})
	}
	return f
}

// String returns n1@incarnation=host:5751,… in the order of the names; of the zero Founders, "".
func (f Founders) String() string {
	items := make([]string, 0, len(f.founders))
	for _, m := range f.founders {
		items = append(items, m.Server.String()+"="+m.address)
	}
	return strings.Join(items, ",")
}

// Hash returns the SHA-256 of String; of the zero Founders, the zero Hash.
func (f Founders) Hash() Hash {
	if len(f.founders) == 0 {
		return Hash{}
	}
	return sha256.Sum256([]byte(f.String()))
}

// Has reports whether a server is one of them.
func (f Founders) Has(s Server) bool {
	return slices.ContainsFunc(f.founders, func(m founder) bool { return m.Server == s })
}

// list is the --cluster list that they were agreed upon under.
func (f Founders) list() List {
	var l List
	for _, m := range f.founders {
		l.nodes = append(l.nodes, Node{m.Name, m.address})
	}
	return l
}

// Configuration is Raft's first configuration: every founder has a vote.
func (f Founders) Configuration() raft.Configuration {
	var c raft.Configuration
	for _, m := range f.founders {
		c.Servers = append(c.Servers, raft.Server{
			Suffrage: raft.Voter, ID: m.Server.ID(), Address: raft.ServerAddress(m.address),
		})
	}
	return c
}
