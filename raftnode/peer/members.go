package peer

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
)

// An Incarnation distinguishes a data directory from every other one of the same node name:
// 128 random bits, written once when the directory is made. The zero value is no incarnation.
type Incarnation [16]byte

func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// MarshalText implements encoding.TextMarshaler.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *Incarnation) UnmarshalText(digits []byte) error { return decodeHex(i[:], digits) }

func decodeHex(to, digits []byte) error {
	raw, err := hex.DecodeString(string(digits))
	if err != nil || len(raw) != len(to) {
		return fmt.Errorf("%q is not %d hexadecimal digits", digits, hex.EncodedLen(len(to)))
	}
	copy(to, raw)
	return nil
}

// A Server is a node as Raft knows it: the node's name together with the incarnation of its data
// directory. So a node that lost its data is another server.
type Server struct {
	Name        string
	Incarnation Incarnation
}

// ID is the server id for Raft: name@incarnation.
func (s Server) ID() raft.ServerID { return raft.ServerID(s.String()) }

func (s Server) String() string { return s.Name + "@" + s.Incarnation.String() }

// ParseServer reads what ID returns.
func ParseServer(id raft.ServerID) (Server, error) {
	name, digits, _ := strings.Cut(string(id), "@")
	s := Server{Name: name}
	if err := CheckID(name); err != nil {
		return Server{}, fmt.Errorf("%q is no server id: %w", id, err)
	}
	if err := decodeHex(s.Incarnation[:], []byte(digits)); err != nil {
		return Server{}, fmt.Errorf("%q is no server id: write name@incarnation: %w", id, err)
	}
	if s.ID() != id || s.Incarnation == (Incarnation{}) {
		return Server{}, fmt.Errorf(
			"%q is no server id: the incarnation is not as this release writes it", id)
	}
	return s, nil
}

// NameOf is the name in a server's id; of what is no server id, all of it.
func NameOf(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), "@")
	return name
}

// A ClusterID is the random id in a cluster's first LeaderStart. The zero value: no id is known.
type ClusterID [16]byte

func (c ClusterID) String() string { return hex.EncodeToString(c[:]) }

// MarshalText implements encoding.TextMarshaler.
func (c ClusterID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *ClusterID) UnmarshalText(digits []byte) error { return decodeHex(c[:], digits) }

// generation is drawn at each start of a Network, so that a node which merely restarted differs
// from two processes which run one data directory.
type generation uint64

const (
	// idBytes are what an id and a host name consist of.
	idBytes = "abcdefghijklmnopqrstuvwxyz0123456789._-"
	// idBytesMax bounds a node's id.
	idBytesMax = 64
	// nodesMax bounds a list. More voters than this make a cluster slower and no safer, and the
	// bound keeps an answer, which carries the list and the initial members, below frameBytesMax.
	nodesMax = 32
	// hostBytesMax is the longest name that DNS knows.
	hostBytesMax = 253
)

// A Node is a name or a server id, and the address at which its peers reach it.
type Node struct {
	ID      string
	Address string // host:port in canonical form: lower case, no leading zeros
}

func (n Node) name() string { return NameOf(raft.ServerID(n.ID)) }

// A List is a --cluster list in canonical form, ordered by id. The zero List is empty: that
// of a node which joined a running cluster without one. Equal lists compare equal with ==.
type List struct{ text string }

// ParseList reads "n1=host:5751,n2=host:5751,…". Two spellings of one list (other order, blanks
// around items, upper case in host names) yield equal Lists. An error names the item at fault; its
// caller adds which flag or field the list is from.
func ParseList(text string) (List, error) { return parseList(text, CheckID) }

// parseList reads a list of nodes with ids of a kind: no two have the same name.
func parseList(text string, checkID func(id string) error) (List, error) {
	items := strings.Split(text, ",")
	if strings.TrimSpace(text) == "" {
		return List{}, errors.New("the list is empty: " +
			"name every node of the cluster, this one too, as n1=host:5751,n2=host:5751,…")
	}
	if len(items) > nodesMax {
		return List{}, fmt.Errorf("the list names %d nodes, and %d is the most", len(items),
			nodesMax)
	}
	var nodes []Node
	for i, item := range items {
		node, err := parseNode(strings.TrimSpace(item), checkID)
		if err != nil {
			return List{}, fmt.Errorf("item %d (%q): %w", i+1, item, err)
		}
		for j, other := range nodes {
			if other.name() == node.name() {
				return List{}, fmt.Errorf("items %d and %d have the same id %s: "+
					"every node needs its own", j+1, i+1, node.name())
			}
			if other.Address == node.Address {
				return List{}, fmt.Errorf("items %d and %d (%s and %s) have the same address %s: "+
					"two nodes can't share a peer port", j+1, i+1, other.ID, node.ID, node.Address)
			}
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.name(), b.name()) })
	return listOf(nodes), nil
}

func listOf(nodes []Node) List {
	items := make([]string, len(nodes))
	for i, node := range nodes {
		items[i] = node.ID + "=" + node.Address
	}
	return List{strings.Join(items, ",")}
}

// Nodes returns the nodes in order of id.
func (l List) Nodes() (nodes []Node) {
	for item := range strings.SplitSeq(l.text, ",") {
		if id, address, found := strings.Cut(item, "="); found {
			nodes = append(nodes, Node{id, address})
		}
	}
	return nodes
}

// Has reports whether the list names id.
func (l List) Has(id string) bool {
	return slices.ContainsFunc(l.Nodes(), func(n Node) bool { return n.ID == id })
}

// String returns the canonical form, which ParseList reads back; of the zero List, "".
func (l List) String() string { return l.text }

// MarshalText implements encoding.TextMarshaler.
func (l List) MarshalText() ([]byte, error) { return []byte(l.text), nil }

// UnmarshalText implements encoding.TextUnmarshaler; "" is the zero List.
func (l *List) UnmarshalText(text []byte) (err error) {
	*l = List{}
	if len(text) > 0 {
		*l, err = ParseList(string(text))
	}
	return err
}

// InitialMembers are the initial members of a cluster: the nodes of its --cluster list, each with
// the incarnation that it had when all of them agreed. They decide the first entry of the log,
// which is the same on every node because each has them on disk before any of them writes it. The
// zero InitialMembers are none: those of a node that joined a running cluster, or has not agreed
// yet. They are written n1@incarnation=host:5751,… in the order of the names.
type InitialMembers struct{ List } // its ids are those of servers

// ParseInitialMembers reads what String returns; of "", the zero InitialMembers.
func ParseInitialMembers(text string) (InitialMembers, error) {
	if text == "" {
		return InitialMembers{}, nil
	}
	servers, err := parseList(text, func(id string) error {
		_, err := ParseServer(raft.ServerID(id))
		return err
	})
	if err != nil {
		return InitialMembers{}, fmt.Errorf("initial members: %w", err)
	}
	if servers.text != text {
		return InitialMembers{}, fmt.Errorf(
			"initial members: %q is not as this release writes them", text)
	}
	return InitialMembers{servers}, nil
}

// NewInitialMembers joins the nodes of a list with their incarnations; each node must have one.
func NewInitialMembers(list List, incarnations map[string]Incarnation) InitialMembers {
	servers := list.Nodes()
	for i, node := range servers {
		servers[i].ID = Server{node.ID, incarnations[node.ID]}.String()
	}
	return InitialMembers{listOf(servers)}
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *InitialMembers) UnmarshalText(text []byte) (err error) {
	*m, err = ParseInitialMembers(string(text))
	return err
}

// Has reports whether a server is one of them.
func (m InitialMembers) Has(s Server) bool { return m.List.Has(s.String()) }

// list is the --cluster list that they were agreed upon under.
func (m InitialMembers) list() List {
	nodes := m.Nodes()
	for i, server := range nodes {
		nodes[i].ID = server.name()
	}
	return listOf(nodes)
}

// differ reports whether two nodes that know these can't be of one cluster.
func (m InitialMembers) differ(other InitialMembers) bool {
	return m != other && m != (InitialMembers{}) && other != (InitialMembers{})
}

// Configuration is Raft's first configuration: every initial member has a vote.
func (m InitialMembers) Configuration() raft.Configuration {
	var c raft.Configuration
	for _, server := range m.Nodes() {
		c.Servers = append(c.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(server.ID),
			Address: raft.ServerAddress(server.Address),
		})
	}
	return c
}

// CheckID returns what is wrong with a node's id, or nil. An id is 1 to 64 lower-case letters,
// digits, '.', '_' and '-', beginning with a letter or digit: so it can stand in a certificate,
// where upper and lower case are the same.
func CheckID(id string) error {
	if id == "" {
		return errors.New("the id is missing: write it before the address, as n1=host:5751")
	}
	if len(id) > idBytesMax {
		return fmt.Errorf("the id is %d bytes long, and %d is the most", len(id), idBytesMax)
	}
	rest := strings.TrimLeft(id, idBytes)
	if strings.IndexByte("._-", id[0]) >= 0 {
		rest = id
	}
	if rest != "" {
		return fmt.Errorf("the id %q has %q at byte %d: use lower-case letters, digits, "+
			"'.', '_' and '-', and begin with a letter or digit", id, rest[0], len(id)-len(rest)+1)
	}
	return nil
}

func parseNode(item string, checkID func(id string) error) (Node, error) {
	id, address, found := strings.Cut(item, "=")
	if !found {
		return Node{}, errors.New("no '=' between id and address: write n1=host:5751")
	}
	if err := checkID(id); err != nil {
		return Node{}, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return Node{}, fmt.Errorf("the address %q has no host and port (%w): write %s=host:5751, "+
			"and an IPv6 address in brackets", address, err, id)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return Node{}, fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	}
	if host, err = canonicalHost(host); err != nil {
		return Node{}, err
	}
	return Node{id, net.JoinHostPort(host, strconv.FormatUint(number, 10))}, nil
}

func canonicalHost(host string) (string, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() || ip.Zone() != "" {
			return "", fmt.Errorf("%s means something else on every machine: "+
				"write an address that all nodes reach it by", host)
		}
		return ip.Unmap().String(), nil
	}
	if host == "" || len(host) > hostBytesMax {
		return "", fmt.Errorf(
			"the host is %d bytes long: write a name of 1 to %d, or an IP address",
			len(host), hostBytesMax)
	}
	host = strings.ToLower(host)
	if rest := strings.TrimLeft(host, idBytes); rest != "" {
		return "", fmt.Errorf("the host %q has %q in it, which no host name has", host, rest[0])
	}
	return host, nil
}
