// Package netns makes a network of a run's own out of network namespaces: one for each node and each machine
// of clients, and a router between them. It needs root, and ip(8) of iproute2.
//
//	net, err := netns.Make("n1", "n2", "n3", "c1")   // see ErrUnsupported
//	err = net.Start("n1", cmd)                        // a process that sees only the network of n1
//	err = net.Hole("n1", "n2")                        // what n1 sends to n2 vanishes; not the other way
//	err = net.Close()
//
// A hole is a rule of the router, so nobody is told: no reset, no ICMP, as with a cable that is cut in one
// direction. What TCP sends again after the hole is closed arrives.
//
// N1. Nothing is changed outside of the namespaces that Make has made: all interfaces, addresses, routes and
// rules are in them, and go with them.
//
// N2. The namespaces carry the name of their run (package claim). Make removes those of dead runs, whose
// processes are to have ended (a namespace goes when nobody is in it any more).
package netns
