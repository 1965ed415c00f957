package admin

import (
	"context"
	"time"

	"zamok/api/zamokpb"
	"zamok/client"
	"zamok/client/call"
)

// ClusterInfo is the cluster as a whole.
type ClusterInfo struct {
	ID     string
	Leader string       // the id of the node that leads
	Stamp  client.Stamp //  the moment that the rest describes
	// HoldOff is the rest of the restore hold-off: after the restore of a backup no lock is granted
	// until all leases of the old cluster have ended. 0 = none.
	HoldOff time.Duration
	// ElectionTimeout is the time without a leader after which nodes elect another.
	ElectionTimeout time.Duration
	// ShortTTLs is how many sessions have a ttl below four election timeouts: most failovers end
	// them.
	ShortTTLs int
}

// Member is a node of the cluster.
type Member struct {
	ID                 string
	Incarnation        string // of its data directory: another one after a loss of its data
	Client, Peer, HTTP string // addresses
	Version            string
	Voter, Leader      bool
	FreeBytes          uint64 // on the disk of its data directory; 0 without DiskLow = not known
	DiskLow            bool
	// LastContact is the age of the leader's latest message that the node has answered, or the time
	// since the leader was elected if the node has answered none since. It is 0 for the leader
	// itself.
	LastContact time.Duration
	// Behind is the number of entries of the leader's log that the node lacked at LastContact; nil
	// = it is the leader, or has not answered since the leader was elected.
	Behind *uint64
}

// Members reads the nodes, and the state of the cluster. It also sends a call to every endpoint,
// and fails with ErrWrongCluster if one that answers belongs to another cluster.
func (a *Admin) Members(ctx context.Context) (members []Member, cluster ClusterInfo, err error) {
	r, _, err := call.Leader(ctx, a.calls, call.Surveys, call.Node.Members,
		&zamokpb.MembersRequest{})
	if err != nil {
		return nil, ClusterInfo{}, err
	}
	for _, m := range r.GetMembers() {
		members = append(members, Member{
			ID: m.GetId(), Client: m.GetClient(), Peer: m.GetPeer(), HTTP: m.GetHttp(),
			Version: m.GetVersion(), Incarnation: m.GetIncarnation(), Voter: m.GetVoter(),
			Leader: m.GetLeader(), FreeBytes: m.GetFreeBytes(), DiskLow: m.GetDiskLow(),
			LastContact: time.Duration(m.GetLastContact()), Behind: m.Behind,
		})
	}
	return members, ClusterInfo{
		ID: r.GetCluster(), Leader: r.GetLeader(), Stamp: stampOf(r.GetStamp()),
		HoldOff:         time.Duration(r.GetHoldOff()),
		ElectionTimeout: time.Duration(r.GetElectionTimeout()), ShortTTLs: int(r.GetShortTtls()),
	}, nil
}

// Join adds a node to the cluster. The node runs with an empty directory, and the other nodes reach
// it at peer. It replaces a member with the same name and address that has been silent for 30 s.
func (a *Admin) Join(ctx context.Context, id, peer string) error {
	request := &zamokpb.JoinRequest{Id: id, Peer: peer}
	_, _, err := call.Leader(ctx, a.calls, call.ChangesOnce, call.Node.Join, request)
	return err
}

// Remove removes a node from the cluster, if the remaining voters have a majority that answers.
func (a *Admin) Remove(ctx context.Context, id string) error {
	request := &zamokpb.RemoveRequest{Id: id}
	_, _, err := call.Leader(ctx, a.calls, call.ChangesOnce, call.Node.Remove, request)
	return err
}

// Transfer hands the leadership to a node; "" = to the node with the longest log.
func (a *Admin) Transfer(ctx context.Context, to string) error {
	request := &zamokpb.TransferRequest{To: to}
	_, _, err := call.Leader(ctx, a.calls, call.ChangesOnce, call.Node.Transfer, request)
	return err
}
