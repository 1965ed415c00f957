package peer

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// InitialMembers are the initial members of a cluster: the nodes of its --cluster list, each with the
// incarnation that it had when all of them agreed. They decide the first entry of the log, which is
// the same on every node because each has them on disk before any of them writes it. The zero
// Initial members are none: those of a node that joined a running cluster, or has not agreed yet.
type InitialMembers struct{ members []initialMember } // in the order of their names

type initialMember struct {
	Server
	address string
}

// ParseInitialMembers reads what String returns; of "", the zero Initial members.
func ParseInitialMembers(text string) (InitialMembers, error) {
	if text == "" {
		return InitialMembers{}, nil
	}
	incarnations := map[string]Incarnation{}
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		id, address, _ := strings.Cut(item, "=")
		server, err := ParseServer(raft.ServerID(id))
		if err != nil {
			return InitialMembers{}, fmt.Errorf("initial members: %w", err)
		}
		incarnations[server.Name] = server.Incarnation
		items = append(items, server.Name+"="+address)
	}
	list, err := ParseList(strings.Join(items, ","))
	if err != nil {
		return InitialMembers{}, fmt.Errorf("initial members: %w", err)
	}
	f := NewInitialMembers(list, incarnations)
	if f.String() != text {
		return InitialMembers{}, fmt.Errorf("initial members: %q is not as this release writes them", text)
	}
	return f, nil
}

// NewInitialMembers joins the nodes of a list with their incarnations; each node must have one.
func NewInitialMembers(list List, incarnations map[string]Incarnation) InitialMembers {
	var f InitialMembers
	for _, node := range list.nodes {
		f.members = append(f.members, initialMember{Server{node.ID, incarnations[node.ID]}, node.Address})
	}
	return f
}

// String returns n1@incarnation=host:5751,… in the order of the names; of the zero Initial members, "".
func (f InitialMembers) String() string {
	items := make([]string, 0, len(f.members))
	for _, m := range f.members {
		items = append(items, m.Server.String()+"="+m.address)
	}
	return strings.Join(items, ",")
}

// Hash returns the SHA-256 of String; of the zero Initial members, the zero Hash.
func (f InitialMembers) Hash() Hash {
	if len(f.members) == 0 {
		return Hash{}
	}
	return sha256.Sum256([]byte(f.String()))
}

// Has reports whether a server is one of them.
func (f InitialMembers) Has(s Server) bool {
	return slices.ContainsFunc(f.members, func(m initialMember) bool { return m.Server == s })
}

// list is the --cluster list that they were agreed upon under.
func (f InitialMembers) list() List {
	var l List
	for _, m := range f.members {
		l.nodes = append(l.nodes, Node{m.Name, m.address})
	}
	return l
}

// Configuration is Raft's first configuration: every initial member has a vote.
func (f InitialMembers) Configuration() raft.Configuration {
	var c raft.Configuration
	for _, m := range f.members {
		c.Servers = append(c.Servers, raft.Server{
			Suffrage: raft.Voter, ID: m.Server.ID(), Address: raft.ServerAddress(m.address),
		})
	}
	return c
}
